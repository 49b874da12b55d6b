"""The order of waiting pods, and each one's position among those that compete for the same room.

The queue's page is brought up to date between two rounds: without the pods that wait no more. A round takes some time,
and the next one comes later still. After the end of many pods the page would show them meanwhile, and count them in the
positions of the others.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

import msgspec

from tessera.api.names import NodeName, PodUid
from tessera.controller.objects.pod_info import PodInfo
from tessera.controller.slicing.cycle.order import FairOrder
from tessera.controller.slicing.state.slicer_state import SlicerState
from tessera.controller.slicing.state.waiting_pod import competes_for_room
from tessera.forecast.queue_page import QueuedPod, QueuePage
from tessera.reasons.reason import OtherGate, SharedClaim

#: Kinds of pods that wait no more, by the nodes that might have taken them, up to which positions are counted anew: the
#: cost is so much for each row. With more kinds, positions stay as they are until the next round.
_KINDS = 64


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
    counts = Counter(masks[pod.uid] for pod in competing)
    rivals = {mask: _count(counts, mask) for mask in counts}
    before = dict.fromkeys(counts, 0)
    found = {pod.uid: Place(pod, masks[pod.uid], 0, 0) for pod in pods}
    for pod in competing:
        mask = masks[pod.uid]
        found[pod.uid] = Place(pod, mask, before[mask] + 1, rivals[mask])
        for other in before:
            if _compete(mask, other):
                before[other] += 1
    return found


def _mask(state: SlicerState, profiles: Iterable[str]) -> int:
    wanted = frozenset(profiles)
    mask = 0
    for name, made in state.profiles_by_node.items():
        if made.issuperset(wanted):
            mask |= state.cluster.index.mask_of(NodeName(name))
    return mask


def _compete(one: int, other: int) -> bool:
    """True if two pods compete; pods that no node may take compete with each other alone."""
    return bool(one & other) or one == other


class CurrentPage:
    """The page of one round, less the pods that have left since.

    Args:
        page: the page as the round made it.
        places: the places of all pods that waited when the round began, in their order.
    """

    def __init__(self, page: QueuePage, places: Sequence[Place] = ()) -> None:
        self._page = page
        self._places = places
        #: Rows of pods that other gates hold, or that follow another pod; they have no place.
        self._held = [row for row in page.pods if isinstance(row.why, OtherGate | SharedClaim)]
        #: The last answer, and the pods that it leaves out.
        self._current = page
        self._gone: AbstractSet[PodUid] = frozenset()

    def read(self, state: SlicerState) -> QueuePage:
        """Returns the page without the pods that wait no more; positions count the others."""
        pods = state.cluster.pods
        gone = {each.pod.uid for each in self._places if each.pod.uid not in pods or each.pod.uid not in state.waiting}
        gone |= {PodUid(row.uid) for row in self._held if row.uid not in pods or pods[PodUid(row.uid)].node}
        if gone != self._gone:
            self._gone = gone
            omitted = self._page.omitted - len(gone - {row.uid for row in self._page.pods})
            rows = tuple(self._rows(gone))
            self._current = msgspec.structs.replace(self._page, pods=rows, omitted=max(0, omitted))
        return self._current

    def _rows(self, gone: AbstractSet[PodUid]) -> Iterator[QueuedPod]:
        """The rows of the other pods, with their positions among those that are left."""
        competing = [each for each in self._places if each.position]
        lost = Counter(each.nodes for each in competing if each.pod.uid in gone)
        if len(lost) > _KINDS:
            competing, lost = [], Counter()
        ahead = dict(_count_ahead(competing, gone))
        nodes = {each.pod.uid: each.nodes for each in competing}
        for row in self._page.pods:
            uid = PodUid(row.uid)
            if uid in ahead:
                of = row.of - _count(lost, nodes[uid])
                yield msgspec.structs.replace(row, position=row.position - ahead[uid], of=of)
            elif uid not in gone:
                yield row


def _count_ahead(competing: Sequence[Place], gone: AbstractSet[PodUid]) -> Iterator[tuple[PodUid, int]]:
    """Yields for each pod that still waits the number of its competitors before it that have left."""
    lost: Counter[int] = Counter()
    known: dict[int, int] = {}
    for each in competing:
        if each.pod.uid in gone:
            lost[each.nodes] += 1
            known.clear()
            continue
        if each.nodes not in known:
            known[each.nodes] = _count(lost, each.nodes)
        yield each.pod.uid, known[each.nodes]


def _count(lost: Counter[int], nodes: int) -> int:
    return sum(count for mask, count in lost.items() if _compete(mask, nodes))
