"""Reads PodGroup objects of the coscheduling plugin: how many pods of the group start together."""

from collections.abc import Mapping
from typing import Any

from tessera.api.pods.gangs import pod_group_key
from tessera.kube.resources.meta import Resource
from tessera.limits.pods import GANG_SIZE

#: The kind, of scheduler-plugins (``scheduling.x-k8s.io``).
POD_GROUPS: Resource[dict[str, Any]] = Resource("scheduling.x-k8s.io", "v1alpha1", "podgroups", "PodGroup", True, dict)


def read_pod_group(item: Mapping[str, Any]) -> tuple[str, int]:
    """Returns the key of the gang of a PodGroup, and its size.

    The size is 1 if ``spec.minMember`` is missing or no number, and 0, which is no size, if it is above the limit.
    """
    meta, spec = (found if isinstance(found := item.get(each), dict) else {} for each in ("metadata", "spec"))
    size = spec.get("minMember")
    key = pod_group_key(str(meta.get("namespace", "")), str(meta.get("name", "")))
    size = max(1, size) if isinstance(size, int) else 1
    return key, size if size <= GANG_SIZE else 0
