"""The world of Red Hat's article: OpenShift 4.13, one Tesla T4 a node, drivers that are built or precompiled.

The means are theirs (Red Hat, "How precompiled drivers improve NVIDIA GPU autoscaling on Red Hat OpenShift"): n and
spread were not published. Kernel and image are those of a 4.13 release.
"""

from collections.abc import Mapping
from typing import Any

import msgspec

from tessera_lab.drivers.driver_catalogue import INTERNAL_REGISTRY

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


class Scenario(msgspec.Struct, frozen=True, kw_only=True):
    """How drivers come.

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


BUILT = Scenario(
    name="built", title="built on the node", precompiled=False, repository="nvcr.io/nvidia", image="driver"
)
PUBLIC = Scenario(
    name="precompiled-public",
    title="precompiled, public registry",
    precompiled=True,
    repository="quay.io/vemporop",
    image="nvidia-gpu-driver",
)
INTERNAL = Scenario(
    name="precompiled-internal",
    title="precompiled, cluster's registry",
    precompiled=True,
    repository=f"{INTERNAL_REGISTRY}/nvidia",
    image="nvidia-gpu-driver",
)

SCENARIOS: Mapping[str, Scenario] = {each.name: each for each in (BUILT, PUBLIC, INTERNAL)}
