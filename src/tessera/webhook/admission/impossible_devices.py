"""Finds requests for whole cards or shares that no node could hold, even if it were empty.

The devices of a pod are all on one node. Rules, as in :mod:`.impossible_requests`:

- The nodes that the pod's author selects decide, and the groups that an autoscaler can make (ConfigMap
  ``tessera-node-groups``) whose declared labels do not contradict the selection. If none of them has the resources, all
  nodes and groups decide.
- While some node has not told its devices, nothing is certain. Nor while a new node may turn out to have GPUs
  (:mod:`tessera.api.nodes.undecided_nodes`), or if nodes with other cards may come.
- Nothing is refused that no node has at all: the devices may come with a sharing profile, or with the first node.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from tessera.api.names import GPU_RESOURCES
from tessera.api.nodes.device_counts import DeviceCounts
from tessera.kube.quantity import count_or_zero
from tessera.offers.selection import Nodes
from tessera.reasons.words import cannot_hold
from tessera.webhook.nodes.capabilities import Capabilities, GroupNode

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


def find_impossible_devices(
    wanted: Mapping[str, int], capabilities: Capabilities, nodes: Nodes, groups: Sequence[GroupNode]
) -> str:
    """Returns the reason that no node could hold a pod's whole cards and shares; empty if one may.

    Args:
        wanted: the devices that the pod holds, by resource.
        capabilities: the GPU resources of the cluster.
        nodes: the nodes that the pod's author selects.
        groups: the groups of new nodes that the author may select.
    """
    if capabilities.more_may_come or capabilities.unread_devices:
        return ""
    able = {counts: at for counts, at in capabilities.devices.items() if _has_all(counts, wanted)}
    selected = _Candidates(
        [counts for counts, at in able.items() if at & nodes],
        {each.devices: each.group for each in groups if _has_all(each.devices, wanted)},
    )
    every = _Candidates(
        list(able), {each.devices: each.group for each in capabilities.groups if _has_all(each.devices, wanted)}
    )
    chosen = selected if selected.all else every
    if not chosen.all or any(_holds(counts, wanted) for counts in chosen.all):
        return ""
    most = max(chosen.all, key=lambda counts: [dict(counts)[resource] for resource in sorted(wanted)])
    has = _amounts({resource: dict(most)[resource] for resource in wanted})
    selects = chosen is selected and chosen != every
    return f"spec.containers: {cannot_hold(_amounts(wanted), 'cards', chosen.name(most), has, selected=selects)}"


def _amounts(amounts: Mapping[str, int]) -> str:
    """Amounts in the form of :func:`tessera.reasons.words.name_profiles`; each may be any number."""
    return " + ".join(f"{count} x {resource}" for resource, count in sorted(amounts.items()) if count)


class _Candidates(msgspec.Struct):
    """The devices of nodes that may hold a pod: of present ones, and of new ones by their group."""

    present: Sequence[DeviceCounts]
    new: Mapping[DeviceCounts, str]

    @property
    def all(self) -> Sequence[DeviceCounts]:
        return [*self.present, *self.new]

    def name(self, counts: DeviceCounts) -> str:
        if counts in self.present:
            return "the largest"
        return f"the largest, a new node of group {self.new[counts]},"


def _has_all(counts: DeviceCounts, wanted: Mapping[str, int]) -> bool:
    return wanted.keys() <= dict(counts).keys()


def _holds(counts: DeviceCounts, wanted: Mapping[str, int]) -> bool:
    has = dict(counts)
    return all(has[resource] >= count for resource, count in wanted.items())
