"""Keeps the slots of a deleted pod for the next pod of its owner.

A service whose pod is replaced, by an update with ``maxSurge: 0``, the restart of a StatefulSet or a deletion by hand,
would otherwise lose its slots to whoever waits: its new pod is the youngest of all. Rules:

- A pod that is being deleted leaves its slots if it has run on them, and if its topmost owner (the Deployment of a
  ReplicaSet, or a StatefulSet) wants more pods than have slots. So scaling down leaves nothing, and neither does a Job.
- A pod that was evicted or preempted leaves nothing, nor does one that has ended by itself. Moves, drains, preemption
  and repairs all evict.
- The slots go to a waiting pod of that owner that asks for the same or for less, of the newest revision first. Until it
  has come, nobody gets them, but no longer than :data:`KEPT_SECONDS` after they are free, and no longer than the pod
  has run. So an owner that deletes its pods for ever holds slots no longer than its pods run on them.
- Kept slots count for the queue as the pod's own did. No bound of other reservations counts inherited slots: they are
  taken from nobody.
- Owner references are written by tenants. The API server is asked about each owner (:attr:`Inheritance.unknown_owners`)
  and its answer decides; until then the slots are kept. An owner inherits in its own namespace only.

The node's Instaslice object records kept slots like other reservations, so a new controller keeps them.
"""

from collections import Counter, deque
from collections.abc import Hashable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from itertools import islice

from tessera.api.instaslice import Slice
from tessera.api.names import NodeName, PodUid, device_id
from tessera.controller.objects.owners import Owner, Workload
from tessera.controller.objects.pod_info import PodInfo
from tessera.controller.slicing.planning.proposals import EndOfReservation, NewReservation, Proposal, Proposer
from tessera.controller.slicing.reservations.place_search import residual_seconds
from tessera.controller.slicing.state.allocation import Allocation
from tessera.controller.slicing.state.reservation import INHERITED, Reservation
from tessera.controller.slicing.state.reservation_rules import holders_of, make_holds, overlap, queue_key
from tessera.controller.slicing.state.slicer_state import SlicerState
from tessera.mig.names import resource_spelling
from tessera.placement.fleet import UnknownCard
from tessera.placement.reserved_slots import Hold

#: Most seconds for which free slots wait for the next pod. A StatefulSet or a ReplicaSet makes it within a second; a
#: controller manager that changes leaders takes some 15.
KEPT_SECONDS = 30.0
#: Most pods whose slots are kept at the same time; each is applied to every decision. Of more, a namespace keeps its
#: share.
KEPT_PODS = 512
#: Most ReplicaSets of one name that are asked about for one ended pod; a Deployment keeps 10 old ones by default.
ASKED_SIBLINGS = 32
#: Most kinds of waiting pods of one owner that are tried in kept slots. A rollout has two: the new pods and the old.
TRIED_KINDS = 8


@dataclass(frozen=True, slots=True)
class _Member:
    """A pod that a controller made, and the slots that it has or had.

    Attributes:
        pod: the pod as it lived.
        allocation: its slots; None without any.
        was_asked: it was seen while it was being deleted, and not only found gone.
    """

    pod: PodInfo
    allocation: Allocation | None
    was_asked: bool = False


class Inheritance(Proposer):
    """Proposes to keep slots for the next pods of owners, and to give them to these pods.

    Args:
        state: the slicer's state.
    """

    follows = "maker"

    def __init__(self, state: SlicerState) -> None:
        self._state = state
        self._members: dict[PodUid, _Member] = {}
        #: The same by owner, and the owners by namespace and common part of their names; nothing in them is empty.
        self._pods: dict[Owner, dict[PodUid, None]] = {}
        self._owners: dict[tuple[str, str], dict[Owner, None]] = {}
        #: Pods that have left slots since the last review.
        self._left: list[_Member] = []
        #: What the API server says of owners; None if one does not exist. Only while slots are kept.
        self._workloads: dict[Owner, Workload | None] = {}
        #: When free slots that are kept go to others, seconds since 1970.
        self._ends: dict[PodUid, float] = {}
        self._has_begun = False

    # What pods leave

    def observe(self, uid: PodUid) -> None:
        """Takes in a pod that changed, or is gone."""
        pod, known = self._state.cluster.pods.get(uid), self._members.get(uid)
        if pod is not None and not pod.terminating and not pod.finished:
            if _may_leave(pod) and (pod.profiles or pod.devices or pod.device_claims):
                self._add(_Member(pod, self._state.allocations.current_of(uid)))
        elif known is not None:
            self._drop(known.pod)
            self._leave(replace(known, pod=pod or known.pod, was_asked=pod is not None))
        elif pod is not None and _may_leave(pod) and not self._has_begun:  # it was asked to end before that
            self._leave(_Member(pod, self._state.allocations.current_of(uid), was_asked=True))
        if pod is not None and pod.is_held and self.keeps:
            self._state.reservations_due = True

    def _leave(self, member: _Member) -> None:
        pod = member.pod
        if not pod.finished and not pod.disrupted and pod.uid not in self._state.evictions:
            self._left.append(member)
            self.has_news = True

    def _add(self, member: _Member) -> None:
        owner = _owner_of(member.pod)
        self._members[member.pod.uid] = member
        self._pods.setdefault(owner, {})[member.pod.uid] = None
        self._owners.setdefault(_family_of(owner), {})[owner] = None

    def _drop(self, pod: PodInfo) -> None:
        owner = _owner_of(pod)
        del self._members[pod.uid], self._pods[owner][pod.uid]
        family = _family_of(owner)
        if not self._pods[owner]:
            del self._pods[owner], self._owners[family][owner]
        if not self._owners.get(family, True):
            del self._owners[family]

    def review(self, _nodes: AbstractSet[NodeName]) -> Iterator[Proposal]:
        """Keeps the slots that pods have left; then gives them to waiting pods, or ends what is over."""
        left, self._left = self._left, []
        self.has_news, self._has_begun = False, True
        for member in left:
            yield from self._keep(member)
        yield from self.propose()

    def _keep(self, member: _Member) -> Iterator[Proposal]:
        pod, one, state = member.pod, member.allocation, self._state
        seconds = min(KEPT_SECONDS, state.now - pod.started) if pod.started and state.now else 0.0
        if one is None or one.given_up or seconds <= 0 or pod.uid in state.reservations or self._is_over_share(pod):
            return
        holds = make_holds(state, one.node, one.slices, pod.key)
        if not holds:
            return
        made = self._inherited(pod, one.node, one.slices, holds)
        made.patience, made.kept_for = seconds, _owner_of(pod)
        made.holders = {each.uid for each in holders_of(state, made)}
        if not made.holders <= {pod.uid}:  # another pod has got them meanwhile
            return
        others = [each for each in state.reservations.values() if overlap(each, made)]
        if others and not member.was_asked:  # preemption or a move may have ended it
            return
        for other in others:
            yield EndOfReservation(other)
        self._workloads.pop(_owner_of(pod), None)  # what it wants now
        yield NewReservation(None, made, 0.0)

    def _is_over_share(self, pod: PodInfo) -> bool:
        counts = Counter(each.namespace for each in self._kept_owners())
        share = KEPT_PODS // max(1, len(counts.keys() | {pod.namespace}))
        return counts.total() >= KEPT_PODS or counts[pod.namespace] >= share

    # Who is asked about

    def _kept(self) -> Sequence[tuple[Owner, Reservation]]:
        found = self._state.reservations.values()
        return [(each.kept_for, each) for each in found if each.kept_for is not None]

    @property
    def keeps(self) -> bool:
        """True if slots are kept for pods that have not come."""
        return any(each.kept_for is not None for each in self._state.reservations.values())

    def _kept_owners(self) -> Iterator[Owner]:
        return (owner for owner, _ in self._kept())

    @property
    def unknown_owners(self) -> Iterator[Owner]:
        """The owners about which somebody should ask the API server."""
        for owner in dict.fromkeys(self._kept_owners()):
            yield from (each for each in self._siblings(owner) if each not in self._workloads)

    def _siblings(self, owner: Owner) -> Iterator[Owner]:
        """Yields an owner, and others whose names say that they are of the same Deployment."""
        yield owner
        if owner.maker.startswith("ReplicaSet/"):
            alike = self._owners.get(_family_of(owner), ())
            yield from islice((each for each in alike if each != owner), ASKED_SIBLINGS)

    def note_owner(self, owner: Owner, workload: Workload | None) -> None:
        """Takes in what the API server says of an owner."""
        if self.keeps:
            self._workloads[owner] = workload
            self._state.reservations_due = True

    # Who gets the slots

    def propose(self) -> Iterator[Proposal]:
        """Gives kept slots to waiting pods of their owners, and ends what is over."""
        yield from self._end_what_is_over()
        found: dict[str, list[tuple[Owner, Reservation]]] = {}
        for owner, one in self._kept():
            if all(each in self._workloads for each in self._siblings(owner)):
                workload = self._workloads[owner]
                if workload is None:
                    yield EndOfReservation(one)
                else:
                    found.setdefault(workload.top, []).append((owner, one))
        for top, kept in found.items():
            yield from self._give(top, kept)
        left = {one.uid for _, one in self._kept()}
        self._ends = {uid: end for uid, end in self._ends.items() if uid in left}
        if not left:
            self._workloads.clear()
        self.next_due = min(self._ends.values(), default=None)

    def _end_what_is_over(self) -> Iterator[Proposal]:
        state = self._state
        for _, one in self._kept():
            holders = {each.uid for each in holders_of(state, one)}
            is_lost = make_holds(state, one.node, one.slices, one.key) != one.holds
            if (
                is_lost
                or not holders <= {one.uid}
                or (not holders and state.now >= self._ends.setdefault(one.uid, state.now + one.patience))
            ):
                yield EndOfReservation(one)

    def _give(self, top: str, kept: Sequence[tuple[Owner, Reservation]]) -> Iterator[Proposal]:
        """Gives slots to waiting pods of one topmost owner; what it does not want any more is free."""
        owner = kept[0][0]
        members = [
            (workload.revision, self._members[uid].pod)
            for each in self._siblings(owner)
            if (workload := self._workloads[each]) is not None and workload.top == top
            for uid in self._pods.get(each, ())
        ]
        holding = sum(self._has_slots(pod.uid) for _, pod in members)
        wanted = max((each.wanted for each in self._workloads.values() if each and each.top == top), default=0)
        waiting = [(revision, pod) for revision, pod in members if self._may_inherit(pod)]
        waiting.sort(key=lambda each: (-each[0], -each[1].priority, each[1].created, each[1].key))
        kinds: dict[Hashable, deque[PodInfo]] = {}
        for revision, pod in waiting:
            kinds.setdefault((revision, pod.priority, pod.profiles, pod.one_card, pod.constraints), deque()).append(pod)
        for index, (_, one) in enumerate(kept):
            if holding + index >= wanted:
                yield EndOfReservation(one)
                continue
            for kind, pods in islice(kinds.items(), TRIED_KINDS):
                slices = self._places_in(one, pods[0])
                if slices is not None:
                    yield from self._hand_over(one, pods.popleft(), slices)
                    if not pods:
                        del kinds[kind]
                    break

    def _has_slots(self, uid: PodUid) -> bool:
        own = self._state.reservations.get(uid)
        return self._state.allocations.current_of(uid) is not None or (own is not None and own.is_inherited)

    def _may_inherit(self, pod: PodInfo) -> bool:
        own = self._state.reservations.get(pod.uid)
        return pod.uid in self._state.waiting and pod.ready_to_place and (own is None or not own.is_inherited)

    def _places_in(self, one: Reservation, pod: PodInfo) -> tuple[Slice, ...] | None:
        """Returns the slices of a pod within kept slots; None if it asks for more, or may not run on the node."""
        index = self._state.cluster.index
        if not index.open_to(pod.constraints) & index.mask_of(one.node):
            return None
        if pod.one_card and len(one.holds) > 1:
            return None
        if pod.profiles == tuple(resource_spelling(each.profile) for each in one.slices):
            return one.slices
        left = {each.gpu: each.bits for each in one.holds}
        found: list[Slice] = []
        for profile in pod.profiles:
            place = self._place_in(one.node, left, profile)
            if place is None:
                return None
            found.append(place)
        return tuple(found)

    def _place_in(self, node: NodeName, left: dict[str, int], profile: str) -> Slice | None:
        """Takes the first place of a profile within these bits of cards; None if there is none."""
        for gpu, bits in left.items():
            try:
                card = self._state.inventory.fleet.card(node, gpu)
            except UnknownCard:
                continue
            row = card.geometry.find(profile)
            if row is None:
                continue
            for start in row.starts:
                claim = card.geometry.claim(row, start)
                if claim & bits == claim:
                    left[gpu] = bits & ~claim
                    return Slice(
                        id=device_id(gpu, row.name, start), profile=row.name, gpu_uuid=gpu, start=start, size=row.size
                    )
        return None

    def _hand_over(self, one: Reservation, pod: PodInfo, slices: tuple[Slice, ...]) -> Iterator[Proposal]:
        state = self._state
        holds = make_holds(state, one.node, slices, pod.key)
        own = state.reservations.get(pod.uid)
        yield EndOfReservation(one)
        if own is not None:
            yield EndOfReservation(own)
        if holds is None:
            return
        made = self._inherited(pod, one.node, slices, holds)
        holders = holders_of(state, made)
        seconds = max((residual_seconds(state, each) for each in holders), default=0.0)
        made.holders, made.until = {each.uid for each in holders}, state.now + seconds
        yield NewReservation(pod, made, seconds)

    def _inherited(
        self, pod: PodInfo, node: NodeName, slices: tuple[Slice, ...], holds: tuple[Hold, ...]
    ) -> Reservation:
        return Reservation(
            uid=pod.uid,
            key=pod.key,
            queue=queue_key(self._state, pod),
            priority=INHERITED,
            number=0,
            node=node,
            slices=slices,
            holds=holds,
            made=self._state.now,
            until=self._state.now,
        )


def _owner_of(pod: PodInfo) -> Owner:
    return Owner(pod.namespace, pod.maker, pod.owner)


def _may_leave(pod: PodInfo) -> bool:
    """True if a pod may leave slots: its owner makes others in its place, and they start one by one."""
    return pod.gang is None and not pod.maker.startswith("Job/")


def _family_of(owner: Owner) -> tuple[str, str]:
    """Returns what the ReplicaSets of one Deployment have in common: the namespace, and the name without the hash."""
    return owner.namespace, owner.maker.rpartition("-")[0] or owner.maker
