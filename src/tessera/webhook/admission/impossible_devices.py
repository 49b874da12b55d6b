"""Finds requests for whole cards or shares that no node could hold, even if it were empty.

The devices of a pod are all on one node. Rules, as in :mod:`.impossible_requests`:

- The nodes that the pod's author selects decide; if none of them has the resources, all nodes do.
- While some node has not told its devices, nothing is certain. Nor while a new node may turn out to have GPUs
  (:mod:`tessera.webhook.nodes.new_nodes`), or if nodes with other cards may come.
- Nodes of the groups that an autoscaler can make (ConfigMap ``tessera-node-groups``) count like present ones.
- Nothing is refused that no node has at all: the devices may come with a sharing profile, or with the first node.
"""

from collections.abc import Mapping
from typing import Any

from tessera.api.names import GPU_RESOURCES
from tessera.kube.quantity import count_or_zero
from tessera.offers.selection import Nodes
from tessera.webhook.nodes.capabilities import Capabilities
from tessera.webhook.nodes.device_counts import DeviceCounts

Json = Mapping[str, Any]


def requested_devices(spec: Json) -> dict[str, int]:
    """Returns the whole cards and shares that a pod holds at most at a time; no number is 0.

    Init containers run one after the other, and before the app containers; a sidecar keeps its devices.
    """
    most: dict[str, int] = {}
    for resource in GPU_RESOURCES:
        kept = peak = 0
        for container in spec.get("initContainers") or ():
            amount = _amount(container, resource)
            peak = max(peak, kept + amount)
            kept += amount if container.get("restartPolicy") == "Always" else 0
        apps = sum(_amount(container, resource) for container in spec.get("containers") or ())
        if count := max(peak, kept + apps):
            most[resource] = count
    return most


def _amount(container: Json, resource: str) -> int:
    amount = ((container.get("resources") or {}).get("limits") or {}).get(resource)
    return 0 if amount is None else count_or_zero(str(amount))


def find_impossible_devices(wanted: Mapping[str, int], capabilities: Capabilities, nodes: Nodes) -> str:
    """Returns the reason that no node could hold a pod's whole cards and shares; empty if one may.

    Args:
        wanted: the devices that the pod holds, by resource.
        capabilities: the GPU resources of the cluster.
        nodes: the nodes that the pod's author selects.
    """
    if capabilities.more_may_come or capabilities.unread_devices:
        return ""
    able = {counts: at for counts, at in capabilities.devices.items() if _has_all(counts, wanted)}
    groups = [counts for counts in capabilities.group_devices if _has_all(counts, wanted)]
    selected = [counts for counts, at in able.items() if at & nodes]
    every = not selected or nodes == capabilities.every
    candidates = [*(selected or able), *groups]
    if not candidates or any(_holds(counts, wanted) for counts in candidates):
        return ""
    asked = " and ".join(f"{count} x {resource}" for resource, count in sorted(wanted.items()))
    largest = dict(max(candidates, key=lambda counts: [dict(counts)[resource] for resource in sorted(wanted)]))
    has = " and ".join(f"{largest[resource]} x {resource}" for resource in sorted(wanted))
    where = "no node of the cluster" if every else "no node that the pod selects"
    return (
        f"spec.containers ask for {asked}; all cards of a pod are on one node, and {where} has as many even if it is "
        f"empty: the largest has {has}. Ask for no more than that, or divide the work among pods"
    )


def _has_all(counts: DeviceCounts, wanted: Mapping[str, int]) -> bool:
    return wanted.keys() <= dict(counts).keys()


def _holds(counts: DeviceCounts, wanted: Mapping[str, int]) -> bool:
    has = dict(counts)
    return all(has[resource] >= count for resource, count in wanted.items())
