"""The order of waiting pods, and each one's position among those that compete for room.

Pods compete if a node may take both. Positions count in one order all pods that compete with each other, directly or
through others, so that they can be compared: a pod that two kinds of nodes may take joins their orders. How many of the
pods before it compete with a pod itself is told beside its position.

The queue's page is brought up to date between two rounds: without the pods that wait no more, with those that have
come, and with what the last plan said of each, so that ``tessera queue``, ``tessera why`` and the live page of one
second agree. A round takes some time, and the next one comes later still. Positions count without the pods that have
left; expected starts, and the positions of new pods, come with the next round.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from functools import reduce
from operator import or_
from types import MappingProxyType

import msgspec

from tessera.api.names import NodeName, PodUid
from tessera.clock import parse_time_or_zero
from tessera.controller.objects.pod_info import PodInfo
from tessera.controller.slicing.cycle.order import FairOrder
from tessera.controller.slicing.state.slicer_state import SlicerState
from tessera.controller.slicing.state.waiting_pod import competes_for_room
from tessera.forecast.queue_page import ExpectedStart, QueuedPod, QueuePage
from tessera.reasons.reason import OtherGate, Planning, Reason, SharedClaim
from tessera.reasons.words import sentence
from tessera.text import one_line

#: Kinds of pods that wait no more, by the nodes that might have taken them, up to which positions are counted anew: the
#: cost is so much for each row. With more kinds, positions stay as they are until the next round.
_KINDS = 64
#: Most pods: waiting pods on the controller's page `/queue`; the number of others is shown. Nobody reads more; each has
#: some 500 bytes.
QUEUE_PODS = 5_000
#: Characters of a sentence: gates of others may have long names.
_SENTENCE = 1_000


@dataclass(frozen=True, slots=True)
class Place:
    """A waiting pod's place.

    Attributes:
        pod: the pod.
        nodes: mask of the nodes that may take it and whose cards have its profiles.
        room: mask of the nodes that pods of its order may take.
        position: from 1, in the order; 0 for a pod that takes no room that becomes free.
        of: the number of pods in the order; 0 likewise.
        ahead: those before it that share a node with it.
    """

    pod: PodInfo
    nodes: int
    room: int = 0
    position: int = 0
    of: int = 0
    ahead: int = 0


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
    rooms = _rooms(masks[pod.uid] for pod in competing)
    sizes = Counter(rooms[masks[pod.uid]] for pod in competing)
    before, ahead = dict.fromkeys(sizes, 0), dict.fromkeys(rooms, 0)
    found = {pod.uid: Place(pod, masks[pod.uid]) for pod in pods}
    for pod in competing:
        mask = masks[pod.uid]
        room = rooms[mask]
        before[room] += 1
        found[pod.uid] = Place(pod, mask, room, before[room], sizes[room], ahead[mask])
        for other in ahead:
            if _compete(mask, other):
                ahead[other] += 1
    return found


def _rooms(masks: Iterable[int]) -> Mapping[int, int]:
    """By mask, all nodes of the masks that overlap with it, directly or through others."""
    kinds = set(masks)
    rooms: list[int] = []
    for mask in kinds:
        joined = [each for each in rooms if each & mask]
        rooms = [each for each in rooms if not each & mask]
        rooms.append(reduce(or_, joined, mask))
    return {mask: next(each for each in rooms if each & mask) if mask else 0 for mask in kinds}


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
    """The page of one round, brought up to date.

    Args:
        page: the page as the round made it.
        places: the places of all pods that waited when the round began, in their order.
        told: what the last plan had said of each of its rows when it was made.
    """

    def __init__(
        self, page: QueuePage, places: Sequence[Place] = (), told: Mapping[PodUid, Reason | None] = MappingProxyType({})
    ) -> None:
        self._page = page
        self._places = places
        self._told = told
        #: Rows of pods that other gates hold, or that follow another pod; they have no place.
        self._held = [row for row in page.pods if isinstance(row.why, OtherGate | SharedClaim)]
        followers = {PodUid(row.uid) for row in self._held if isinstance(row.why, SharedClaim)}
        self._known = {each.pod.uid for each in places} | followers
        #: The last answer, and what it rests on.
        self._current = page
        self._rests_on: tuple[object, ...] = (frozenset(), {}, {})

    def read(self, state: SlicerState) -> QueuePage:
        """Returns the page without the pods that wait no more, with new ones, and with what the last plans said."""
        if not self._page.leads:
            return self._page
        pods = state.cluster.pods
        gone = {each.pod.uid for each in self._places if each.pod.uid not in pods or each.pod.uid not in state.waiting}
        gone |= {PodUid(row.uid) for row in self._held if not _is_held(row, pods.get(PodUid(row.uid)))}
        reasons = ((uid, before, state.pods.reason_of(uid)) for uid, before in self._told.items() if uid not in gone)
        changed = {uid: now for uid, before, now in reasons if now is not before and now != before}
        new = {
            uid: state.pods.reason_of(uid)
            for uid in state.waiting
            if uid not in self._known and uid in pods and pods[uid].ready_to_place
        }
        if (gone, changed, new) != self._rests_on:
            self._rests_on = (gone, changed, new)
            rows = [_replanned(row, changed) for row in self._rows(gone)]
            first = [row for row in rows if not isinstance(row.why, OtherGate | SharedClaim)]
            added = [row_of(pods[uid], reason or Planning()) for uid, reason in new.items()]
            added = sorted(added, key=lambda row: (row.since, row.key))[: max(0, QUEUE_PODS - len(rows))]
            omitted = self._page.omitted - len(gone - {row.uid for row in self._page.pods}) + len(new) - len(added)
            rows = [*first, *added, *rows[len(first) :]]
            self._current = msgspec.structs.replace(self._page, pods=tuple(rows), omitted=max(0, omitted))
        return self._current

    def _rows(self, gone: AbstractSet[PodUid]) -> Iterator[QueuedPod]:
        """The rows of the other pods, with their positions among those that are left."""
        competing = [each for each in self._places if each.position]
        if len({each.nodes for each in competing if each.pod.uid in gone}) > _KINDS:
            competing = []
        left = Counter(each.room for each in competing if each.pod.uid in gone)
        before = {each.pod.uid: (each, lost, ahead) for each, lost, ahead in _count_before(competing, gone)}
        for row in self._page.pods:
            uid = PodUid(row.uid)
            if uid in before:
                place, lost, ahead = before[uid]
                position, of = row.position - lost, row.of - left[place.room]
                yield msgspec.structs.replace(row, position=position, of=of, ahead=(row.ahead or 0) - ahead)
            elif uid not in gone:
                yield row


def _is_held(row: QueuedPod, pod: PodInfo | None) -> bool:
    """True if the pod still follows another one, or waits for a gate of others."""
    return pod is not None and not pod.node and (isinstance(row.why, SharedClaim) or bool(pod.earlier_gates))


def _replanned(row: QueuedPod, changed: Mapping[PodUid, Reason | None]) -> QueuedPod:
    """The row with what a plan has said since; the next round reckons its start anew."""
    if row.uid not in changed:
        return row
    reason = changed[PodUid(row.uid)] or Planning()
    row = msgspec.structs.replace(row, reason=reason.case, detail=one_line(sentence(reason), _SENTENCE), why=reason)
    if reason.waits_for_room:
        return row
    return msgspec.structs.replace(row, position=0, of=0, ahead=None, start=ExpectedStart(starts=row.start.starts))


def row_of(pod: PodInfo, reason: Reason, place: Place | None = None, start: ExpectedStart | None = None) -> QueuedPod:
    """Returns the row of a waiting pod."""
    return QueuedPod(
        namespace=pod.namespace,
        name=pod.name,
        uid=pod.uid,
        profiles=pod.profiles,
        since=parse_time_or_zero(pod.created),
        priority=pod.priority,
        position=0 if place is None else place.position,
        of=0 if place is None else place.of,
        ahead=place.ahead if place is not None and place.position else None,
        reason=reason.case,
        detail=one_line(sentence(reason), _SENTENCE),
        why=reason,
        start=start or ExpectedStart(),
    )


def _count_before(competing: Sequence[Place], gone: AbstractSet[PodUid]) -> Iterator[tuple[Place, int, int]]:
    """Yields each place of a pod that still waits, and how many before it have left: of its order, of its rivals."""
    rooms: Counter[int] = Counter()
    lost: Counter[int] = Counter()
    known: dict[int, int] = {}
    for each in competing:
        if each.pod.uid in gone:
            rooms[each.room] += 1
            lost[each.nodes] += 1
            known.clear()
            continue
        if each.nodes not in known:
            known[each.nodes] = _count(lost, each.nodes)
        yield each, rooms[each.room], known[each.nodes]


def _count(lost: Counter[int], nodes: int) -> int:
    return sum(count for mask, count in lost.items() if _compete(mask, nodes))
