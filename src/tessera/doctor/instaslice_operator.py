"""InstaSlice's own operator (the dynamic accelerator slicer), by which Tessera must not run on the same cards.

Both cut the same cards, answer to the same gate, and the versions up to v0.0.2 write the same Instaslice objects. The
names are those of openshift/instaslice-operator: v0.0.2, and its successor DAS, whose images are called ``das-...``.
"""

from collections.abc import Mapping
from typing import Any

#: Names of its Deployment and of the DaemonSet that it makes.
_NAMES = frozenset({"instaslice-operator-controller-manager", "instaslice-operator-controller-daemonset"})
#: Beginnings of the last part of its images' names.
_IMAGES = ("instaslice", "das-operator", "das-daemonset")


def is_instaslice(workload: Mapping[str, Any]) -> bool:
    """True for a Deployment or DaemonSet of InstaSlice's that has pods or will have some."""
    spec, status = workload.get("spec") or {}, workload.get("status") or {}
    if spec.get("replicas", 1) == 0 or status.get("desiredNumberScheduled", 1) == 0:
        return False
    if workload["metadata"]["name"] in _NAMES:
        return True
    containers = ((spec.get("template") or {}).get("spec") or {}).get("containers") or ()
    return any(str(each.get("image", "")).rpartition("/")[2].startswith(_IMAGES) for each in containers)


#: Next step, for messages that name the operator's workloads.
REMOVE_IT = (
    "delete its Deployment (with OLM: its Subscription and ClusterServiceVersion), then its DaemonSet, and keep its"
    " Instaslice objects: by them Tessera knows the slices of running pods (docs/from-nvidia.md#from-instaslice)"
)
