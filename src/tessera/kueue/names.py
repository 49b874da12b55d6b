"""Names of Kueue's API, as its documentation and its published types have them (Kueue 0.13 to 0.19)."""

import re
from typing import Literal

from tessera.api.names import KUEUE_QUEUE_LABEL

GROUP = "kueue.x-k8s.io"
CONFIGURATION_GROUP = "config.kueue.x-k8s.io"
VISIBILITY_GROUP = "visibility.kueue.x-k8s.io"

#: Versions of all three groups; 0.14 and older serve only the first.
Version = Literal["v1beta1", "v1beta2"]
VERSIONS: tuple[Version, ...] = ("v1beta1", "v1beta2")

#: Prefix of Kueue's labels, annotations and gates.
PREFIX = f"{GROUP}/"
#: Gates of a pod: until its Workload is admitted, and until its place in a topology is chosen.
ADMISSION_GATE = f"{GROUP}/admission"
TOPOLOGY_GATE = f"{GROUP}/topology"
QUEUE_LABEL = KUEUE_QUEUE_LABEL

#: Where Kueue's own manifests put its Configuration.
CONFIG_NAMESPACE = "kueue-system"
CONFIG_MAP = "kueue-manager-config"
CONFIG_KEY = "controller_manager_config.yaml"
#: The Deployment of Kueue's own manifests.
MANAGER = "kueue-controller-manager"

#: The resource into which Kueue transforms each MIG resource. It is not the quota resource that admission writes into
#: pods: an output of that name would be added to it, and pods charged double.
CHARGED_RESOURCE = "tessera.dev/gpu-memory"

#: Tessera's admission check: the name of its object in the manifests that Tessera writes, and of its controller.
CHECK_NAME = "packable"
CHECK_CONTROLLER = "tessera.dev/packable"


#: A major and a minor number.
Release = tuple[int, int]

_TAG = re.compile(r":v?(\d{1,4})\.(\d{1,4})(?:[.+-][\w.+-]*)?(?:@|$)")


def release_of(image: str) -> Release | None:
    """Returns the release by an image: ``(0, 18)`` of ``kueue/kueue:v0.18.1``; None if it has no tag that says it.

    Kueue's manifests and its Helm chart write the tag.
    """
    found = _TAG.search(image)
    return (int(found[1]), int(found[2])) if found else None
