"""The scenarios of Red Hat's article: OpenShift 4.13, one Tesla T4 a node, drivers that are built or precompiled.

The means are theirs (Red Hat, "How precompiled drivers improve NVIDIA GPU autoscaling on Red Hat OpenShift"); the
article has no number of runs and no spread. Kernel and image are those of a 4.13 release.

:func:`article_registries` makes the registries of a lab of machines without drivers. The article's repository has
finished modules of its driver for that kernel, of a newer driver, and of one that never comes up; and images that build
them for any other kernel. The publishers are the article's, the next versions are invented, and everything is
simulated.
"""

from collections.abc import Mapping
from typing import Any

import msgspec

from tessera_lab.cluster.options import LabNodeSpec
from tessera_lab.drivers.driver_catalogue import INTERNAL_REGISTRY, build_catalogue, builder_image, driver_image
from tessera_lab.drivers.driver_containers import broken_driver, driver_toolkit
from tessera_lab.kubelet.images.catalogue import SimulatedImage
from tessera_lab.reference_operator.manifests import REFERENCE
from tessera_lab.simulation.cost_model import CostModel

KERNEL = "5.14.0-284.25.1.el9_2.x86_64"
OSTREE = "413.92.202307260246-0"
OS_IMAGE = f"Red Hat Enterprise Linux CoreOS {OSTREE} (Plow)"
OS_TAG = "rhcos4.13"
VERSION = "525.125.06"
#: OpenShift brings the Driver Toolkit of each release in an image stream of this name.
DRIVER_TOOLKIT = f"{INTERNAL_REGISTRY}/openshift/driver-toolkit:{OSTREE}"
MODEL = "T4"

#: The policy's name, as OpenShift's console makes it.
POLICY = "gpu-cluster-policy"


class ArticleScenario(msgspec.Struct, frozen=True, kw_only=True):
    """One way to bring drivers to nodes.

    Attributes:
        name: for people and files.
        title: a line for tables.
        precompiled: the image holds finished modules.
        repository: where the driver's image lies.
        image: its name.
    """

    name: str
    title: str
    precompiled: bool
    repository: str
    image: str

    @property
    def reference(self) -> str:
        """The image that the reference operator names."""
        kernel = f"{KERNEL}-" if self.precompiled else ""
        return f"{self.repository}/{self.image}:{VERSION}-{kernel}{OS_TAG}"

    def policy(self) -> dict[str, Any]:
        """The ClusterPolicy, with the article's snippet in it."""
        driver: dict[str, Any] = {"repository": self.repository, "image": self.image, "version": VERSION}
        if self.precompiled:
            driver["usePrecompiled"] = True
        return {
            "apiVersion": "nvidia.com/v1",
            "kind": "ClusterPolicy",
            "metadata": {"name": POLICY},
            "spec": {
                "driver": driver,
                "toolkit": {
                    "repository": "nvcr.io/nvidia/k8s",
                    "image": "container-toolkit",
                    "version": "v1.13.4-ubi8",
                },
            },
        }


BUILT = ArticleScenario(
    name="built", title="built on the node", precompiled=False, repository="nvcr.io/nvidia", image="driver"
)
PUBLIC = ArticleScenario(
    name="precompiled-public",
    title="precompiled, public registry",
    precompiled=True,
    repository="quay.io/vemporop",
    image="nvidia-gpu-driver",
)
INTERNAL = ArticleScenario(
    name="precompiled-internal",
    title="precompiled, cluster's registry",
    precompiled=True,
    repository=f"{INTERNAL_REGISTRY}/nvidia",
    image="nvidia-gpu-driver",
)

SCENARIOS: Mapping[str, ArticleScenario] = {each.name: each for each in (BUILT, PUBLIC, INTERNAL)}


#: A driver that comes after the article's, and one that hangs for longer than anybody waits for it.
NEWER, BROKEN = "535.104.05", "535.129.03"
_HANGS = 7200.0


def article_machine(template: LabNodeSpec, costs: CostModel) -> LabNodeSpec:
    """Makes a template one of the article's: images are pulled while a new node waits for its network."""
    return msgspec.structs.replace(template, network_seconds=costs.network_seconds)


def article_registries() -> dict[str, Any]:
    """The options of a cluster of that scenario; its kubelets publish as real ones do."""
    costs = CostModel()
    name = f"{PUBLIC.repository}/{PUBLIC.image}"
    images = {
        f"{name}:{version}-{KERNEL}-{OS_TAG}": driver_image(version, costs, kernel=KERNEL)
        for version in (VERSION, NEWER)
    }
    images |= {f"{name}:{version}-{OS_TAG}": builder_image(version, costs) for version in (VERSION, NEWER, BROKEN)}
    images[f"{name}:{BROKEN}-{KERNEL}-{OS_TAG}"] = SimulatedImage(
        size_mib=costs.precompiled_mib, program=broken_driver("the driver does not come up", after=_HANGS)
    )
    images[DRIVER_TOOLKIT] = SimulatedImage(size_mib=costs.driver_toolkit_mib, program=driver_toolkit(costs))
    return {
        "drivers": True,
        "kernel": KERNEL,
        "os_image": OS_IMAGE,
        "catalogue": build_catalogue(costs, images),
        "publish_every": REFERENCE.publish_every,
    }
