"""What a lab of machines without drivers finds in its registries: the world of Red Hat's article, and what comes next.

Machines run the kernel of an OpenShift 4.13 release. The article's repository has finished modules of its driver for
that kernel, of a newer driver, and of one that never comes up; and images that build them for any other kernel. Who
published what is the article's; which versions come next is made up, and all of it is simulated.
"""

from typing import Any

from tessera_lab.drivers.driver_catalogue import builder_image, catalogue, driver_image
from tessera_lab.drivers.driver_containers import broken
from tessera_lab.drivers.driver_toolkit import driver_toolkit
from tessera_lab.experiments.scenarios import DRIVER_TOOLKIT, KERNEL, OS_IMAGE, OS_TAG, PUBLIC, VERSION
from tessera_lab.kubelet.images.catalogue import SimulatedImage
from tessera_lab.simulation.cost_model import CostModel

#: A driver that comes after the article's, and one that hangs for longer than anybody waits for it.
NEWER, BROKEN = "535.104.05", "535.129.03"
_HANGS = 7200.0


def published() -> dict[str, Any]:
    """The options of a cluster in that world."""
    costs = CostModel()
    name = f"{PUBLIC.repository}/{PUBLIC.image}"
    images = {
        f"{name}:{version}-{KERNEL}-{OS_TAG}": driver_image(version, costs, kernel=KERNEL)
        for version in (VERSION, NEWER)
    }
    images |= {f"{name}:{version}-{OS_TAG}": builder_image(version, costs) for version in (VERSION, NEWER, BROKEN)}
    images[f"{name}:{BROKEN}-{KERNEL}-{OS_TAG}"] = SimulatedImage(
        size_mib=costs.precompiled_mib, program=broken("the driver does not come up", after=_HANGS)
    )
    images[DRIVER_TOOLKIT] = SimulatedImage(size_mib=costs.driver_toolkit_mib, program=driver_toolkit(costs))
    return {"drivers": True, "kernel": KERNEL, "os_image": OS_IMAGE, "catalogue": catalogue(costs, images)}
