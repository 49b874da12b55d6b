"""The order of waiting pods, and each one's position among those that compete for the same room."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from tessera.api.names import NodeName, PodUid
from tessera.controller.objects.pod_info import PodInfo
from tessera.controller.slicing.cycle.order import FairOrder
from tessera.controller.slicing.state.slicer_state import SlicerState
from tessera.controller.slicing.state.waiting_pod import competes_for_room


@dataclass(frozen=True, slots=True)
class Place:
    """A waiting pod's place.

    Attributes:
        pod: the pod.
        nodes: mask of the nodes that may take it and whose cards have its profiles.
        position: from 1, among the pods that share a node with it; 0 for a pod that takes no room that becomes free.
        of: the number of these; 0 likewise.
    """

    pod: PodInfo
    nodes: int
    position: int
    of: int


def waiting_in_order(state: SlicerState) -> list[PodInfo]:
    """Returns the pods that wait for slices, in the order in which the slicer gives them room."""
    pods = (state.cluster.pods.get(each.uid) for each in FairOrder(state).all())
    return [pod for pod in pods if pod is not None and pod.ready_to_place]


def places(state: SlicerState, pods: Sequence[PodInfo]) -> Mapping[PodUid, Place]:
    """Returns the place of each of these pods, which are in order; the cost grows with the number of kinds of pods."""
    makers: dict[tuple[str, ...], int] = {}
    masks: dict[PodUid, int] = {}
    competing = [pod for pod in pods if competes_for_room(state.pods.reason_of(pod.uid))]
    for pod in pods:
        if pod.profiles not in makers:
            makers[pod.profiles] = _mask(state, pod.profiles)
        masks[pod.uid] = makers[pod.profiles] & state.cluster.index.open_to(pod.constraints)
    counts = _count(masks[pod.uid] for pod in competing)
    rivals = {mask: sum(count for other, count in counts.items() if compete(mask, other)) for mask in counts}
    before = dict.fromkeys(counts, 0)
    found = {pod.uid: Place(pod, masks[pod.uid], 0, 0) for pod in pods}
    for pod in competing:
        mask = masks[pod.uid]
        found[pod.uid] = Place(pod, mask, before[mask] + 1, rivals[mask])
        for other in before:
            if compete(mask, other):
                before[other] += 1
    return found


def _mask(state: SlicerState, profiles: Iterable[str]) -> int:
    wanted = frozenset(profiles)
    mask = 0
    for name, made in state.profiles_by_node.items():
        if made.issuperset(wanted):
            mask |= state.cluster.index.mask_of(NodeName(name))
    return mask


def _count(masks: Iterable[int]) -> dict[int, int]:
    counts: dict[int, int] = {}
    for mask in masks:
        counts[mask] = counts.get(mask, 0) + 1
    return counts


def compete(one: int, other: int) -> bool:
    """True if two pods compete; pods that no node may take compete with each other alone."""
    return bool(one & other) or one == other
