"""What a lab of machines without drivers finds in its registries: the world of Red Hat's article, and what comes next.

Machines run the kernel of an OpenShift 4.13 release. The article's repository has finished modules of its driver for
that kernel, of a newer driver, and of one that is no good; and an image that builds the article's driver for any other
kernel. Who published what is the article's; which versions come next is made up, and all of it is simulated.
"""

from typing import Any

from tessera.lab.costs import CostModel
from tessera.lab.drivers.containers import broken
from tessera.lab.drivers.world import builder_image, catalogue, driver_image
from tessera.lab.experiments.scenarios import KERNEL, OS_IMAGE, OS_TAG, PUBLIC, VERSION
from tessera.lab.kubelet.images import SimulatedImage

#: A driver that comes after the article's, and one that does not start.
NEWER, BROKEN = "535.104.05", "535.129.03"
#: What the log of the second one ends with.
FAULT = "modprobe nvidia: Exec format error"


def published() -> dict[str, Any]:
    """The options of a cluster in that world."""
    costs = CostModel()
    name = f"{PUBLIC.repository}/{PUBLIC.image}"
    images = {
        f"{name}:{VERSION}-{KERNEL}-{OS_TAG}": driver_image(VERSION, costs, kernel=KERNEL),
        f"{name}:{VERSION}-{OS_TAG}": builder_image(VERSION, costs),
        f"{name}:{NEWER}-{KERNEL}-{OS_TAG}": driver_image(NEWER, costs, kernel=KERNEL),
        f"{name}:{BROKEN}-{KERNEL}-{OS_TAG}": SimulatedImage(
            size_mib=costs.precompiled_mib, program=broken(FAULT, after=costs.install_seconds)
        ),
    }
    return {"drivers": True, "kernel": KERNEL, "os_image": OS_IMAGE, "catalogue": catalogue(costs, images)}
