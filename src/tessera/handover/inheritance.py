"""Keeps the slots of a deleted pod for the next pod of its owner.

A service whose pod is replaced, by an update with ``maxSurge: 0``, the restart of a StatefulSet or a deletion by hand,
would otherwise lose its slots to whoever waits: its new pod is the youngest of all. Rules:

- A pod that is being deleted leaves its slots if it has run on them, and if its topmost owner (the Deployment of a
  ReplicaSet, the group of a LeaderWorkerSet, else the owner) wants more pods than have slots. So scaling down leaves
  nothing, and neither does a Job.
- A pod that was evicted or preempted leaves nothing, nor does one that has ended by itself. Moves, drains, preemption
  and repairs all evict.
- The slots go to a waiting pod of that owner that asks for the same or for less, of the newest revision first. Until it
  has come, nobody gets them, for :data:`KEPT_SECONDS` after they are free. Some pods come later: those of a Deployment
  with the strategy Recreate once all old ones have ended, the new leader of a LeaderWorkerSet's group once the old one
  has, a gang once it is complete, workers once their leader is ready, and each pod of a StatefulSet once those before
  it are. So these seconds begin anew while another old pod of the owner or group still ends, and while the leader or
  another pod of the StatefulSet starts on its slots. They are kept no longer than :data:`LONGEST_SECONDS`, and no
  longer than the pod has run. So an owner that deletes its pods for ever holds slots no longer than its pods run on
  them.
- The pods of a gang get their slots together. So slots stay kept until the new gang, such as a group of a
  LeaderWorkerSet, is complete, no longer than others, and go to it only if each of its missing pods gets some. The
  reservations are then those of a gang: they end together, as when one of its pods goes.
- Kept slots count for the queue as the pod's own did. No bound of other reservations counts inherited slots: they are
  taken from nobody.
- Owner references are written by tenants. The API server is asked about each owner (:attr:`Inheritance.unknown_owners`)
  and its answer decides; until then the slots are kept. An owner inherits in its own namespace only.

The node's Instaslice object records kept slots like other reservations, so a new controller keeps them.
"""

from collections import Counter, deque
from collections.abc import Hashable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace
from itertools import islice

from tessera.api.instaslice import Slice
from tessera.api.names import NodeName, PodUid
from tessera.api.pod_annotations import Gang
from tessera.controller.objects.pod_info import Owner, PodInfo, Workload
from tessera.controller.slicing.gangs import GangPlanner
from tessera.controller.slicing.planner import Planner
from tessera.controller.slicing.proposals import EndOfReservation, NewReservation, Proposal, Proposer
from tessera.controller.slicing.proposers.place_search import residual_seconds
from tessera.controller.slicing.proposers.reserver import GANG_RESERVED_PODS
from tessera.controller.slicing.state.node_records import Reservation
from tessera.controller.slicing.state.reservation_rules import holders_of, make_holds, overlap
from tessera.controller.slicing.state.slicer_state import SlicerState
from tessera.handover.owner_pods import (
    Family,
    KeptFor,
    KeptSlotTrials,
    OwnedPod,
    OwnerPods,
    family_of,
    owner_of,
    place_within,
    reserve_inherited,
)

#: Most seconds for which free slots wait for the next pod. A StatefulSet or a ReplicaSet makes it within a second; a
#: controller manager that changes leaders takes some 15.
KEPT_SECONDS = 30.0
#: Most seconds for which free slots are kept at all: the default of a Deployment's ``progressDeadlineSeconds``.
LONGEST_SECONDS = 600.0
#: Most pods whose slots are kept at the same time; each is applied to every decision. Of more, a namespace keeps its
#: share.
KEPT_PODS = 512
#: Most kinds of waiting pods of one owner that are tried in kept slots. A rollout has two: the new pods and the old.
TRIED_KINDS = 8


class GangHeirs:
    """Proposes the reservations of gangs.

    Args:
        state: the slicer's state.
    """

    def __init__(self, state: SlicerState) -> None:
        self._state = state
        self._gangs = GangPlanner(state, Planner(state))

    def give(self, waiting: Sequence[PodInfo], kept_for: KeptFor) -> Iterator[Proposal]:
        """Gives kept slots to the complete gangs of waiting pods."""
        trials = KeptSlotTrials(self._state, kept_for)
        gangs: dict[str, Gang] = {}
        for pod in waiting:
            gang = self._state.gangs.gang_of(pod.uid)
            if gang is not None:
                gangs.setdefault(gang.key, gang)
        for gang in gangs.values():
            found = self._gangs.look(gang)
            missing = found.ready[: found.missing] if found.is_complete else ()
            own = [each for pod in missing if (each := self._state.reservations.get(pod.uid)) is not None]
            if missing and len(missing) <= GANG_RESERVED_PODS and not any(each.is_inherited for each in own):
                yield from self._give(gang, missing, own, trials)

    def _give(
        self, gang: Gang, pods: Sequence[PodInfo], own: Sequence[Reservation], trials: KeptSlotTrials
    ) -> Iterator[Proposal]:
        taken: dict[str, Reservation] = {}
        made: list[tuple[PodInfo, Reservation]] = []
        for pod in pods:
            place = trials.find(pod, taken)
            new = reserve_inherited(self._state, pod, place[0].node, place[1]) if place is not None else None
            if place is None or new is None:
                return
            taken[place[0].uid] = place[0]
            made.append((pod, new))
        yield from (EndOfReservation(one) for one in (*taken.values(), *own[:1]))  # with one of a gang's, all end
        seconds = 0.0
        for _, new in made:
            holders = holders_of(self._state, new)
            new.gang, new.holders = gang.key, {each.uid for each in holders}
            seconds = max([seconds, *(residual_seconds(self._state, each) for each in holders)])
        for pod, new in made:
            new.until = self._state.now + seconds
            yield NewReservation(pod, new)


class Inheritance(Proposer):
    """Proposes to keep slots for the next pods of owners, and to give them to these pods.

    Args:
        state: the slicer's state.

    Attributes:
        pods: the pods of owners.
    """

    follows = "maker"
    keeps_slots = True

    def __init__(self, state: SlicerState) -> None:
        self._state = state
        self.pods = OwnerPods()
        self._gangs = GangHeirs(state)
        #: Pods that have left slots since the last review.
        self._left: list[OwnedPod] = []
        #: What the API server says of owners; None if one does not exist. Only while slots are kept.
        self._workloads: dict[Owner, Workload | None] = {}
        #: Since when slots that are kept are free, and when they go to others, seconds since 1970.
        self._free: dict[PodUid, float] = {}
        self._ends: dict[PodUid, float] = {}
        self._has_begun = False

    # What pods leave

    def observe(self, uid: PodUid) -> None:
        """Takes in a pod that changed, or is gone."""
        pod, known = self._state.cluster.pods.get(uid), self.pods.get(uid)
        if pod is not None and not pod.terminating and not pod.finished:
            if _may_leave(pod) and (pod.profiles or pod.devices or pod.device_claims):
                self.pods.put(OwnedPod(pod, self._state.allocations.current_of(uid)))
        elif known is not None:
            self.pods.drop(known.pod)
            self._leave(replace(known, pod=pod or known.pod, was_asked=pod is not None))
        elif pod is not None and _may_leave(pod) and not self._has_begun:  # it was asked to end before that
            self._leave(OwnedPod(pod, self._state.allocations.current_of(uid), was_asked=True))
        if pod is not None and pod.is_held and self.keeps:
            self._state.reservations_due = True

    def _leave(self, member: OwnedPod) -> None:
        pod = member.pod
        if not pod.finished and not pod.disrupted and pod.uid not in self._state.evictions:
            self._left.append(member)
            self.has_news = True

    def review(self, _nodes: AbstractSet[NodeName]) -> Iterator[Proposal]:
        """Keeps the slots that pods have left; then gives them to waiting pods, or ends what is over."""
        left, self._left = self._left, []
        self.has_news, self._has_begun = False, True
        counts = Counter(each.namespace for each in self._kept_owners())
        for member in left:
            if not self._is_over_share(member.pod, counts):
                for proposal in self._keep(member):
                    counts[member.pod.namespace] += isinstance(proposal, NewReservation)
                    yield proposal
        yield from self.propose()

    def _keep(self, member: OwnedPod) -> Iterator[Proposal]:
        pod, one, state = member.pod, member.allocation, self._state
        seconds = min(LONGEST_SECONDS, state.now - pod.started) if pod.started and state.now else 0.0
        if one is None or one.given_up or seconds <= 0 or pod.uid in state.reservations:
            return
        made = reserve_inherited(state, pod, one.node, one.slices)
        if made is None:
            return
        made.patience, made.kept_for = seconds, owner_of(pod)
        made.holders = {each.uid for each in holders_of(state, made)}
        if not made.holders <= {pod.uid}:  # another pod has got them meanwhile
            return
        others = [each for each in state.reservations.on(made.node) if overlap(each, made)]
        if others and not member.was_asked:  # preemption or a move may have ended it
            return
        for other in others:
            yield EndOfReservation(other)
        self._workloads.pop(owner_of(pod), None)  # what it wants now
        yield NewReservation(None, made)

    def _is_over_share(self, pod: PodInfo, counts: Counter[str]) -> bool:
        share = KEPT_PODS // max(1, len(counts.keys() | {pod.namespace}))
        return counts.total() >= KEPT_PODS or counts[pod.namespace] >= share

    # Who is asked about

    def _kept(self) -> Sequence[tuple[Owner, Reservation]]:
        found = self._state.reservations.kept.values()
        return [(each.kept_for, each) for each in found if each.kept_for is not None]

    @property
    def keeps(self) -> bool:
        """True if slots are kept for pods that have not come."""
        return bool(self._state.reservations.kept)

    def _kept_owners(self) -> Iterator[Owner]:
        return (owner for owner, _ in self._kept())

    @property
    def unknown_owners(self) -> Iterator[Owner]:
        """The owners about which somebody should ask the API server."""
        for owner in dict.fromkeys(self._kept_owners()):
            yield from (each for each in self.pods.siblings(owner) if each not in self._workloads)

    def note_owner(self, owner: Owner, workload: Workload | None) -> None:
        """Takes in what the API server says of an owner."""
        if self.keeps:
            self._workloads[owner] = workload
            self._state.reservations_due = True

    def has_pods_of(self, owner: str) -> bool:
        """True if the owner with this UID has pods."""
        return self.pods.have_owner(owner)

    # Who gets the slots

    def propose(self) -> Iterator[Proposal]:
        """Gives kept slots to waiting pods of their owners, and ends what is over."""
        yield from self._end_what_is_over()
        found: dict[str, list[tuple[Owner, Reservation]]] = {}
        for owner, one in self._kept():
            if all(each in self._workloads for each in self.pods.siblings(owner)):
                workload = self._workloads[owner]
                if workload is None:
                    yield EndOfReservation(one)
                else:
                    found.setdefault(workload.top, []).append((owner, one))
        for top, kept in found.items():
            yield from self._give(top, kept)
        yield from self._give_to_gangs(found)
        left = {one.uid for _, one in self._kept()}
        self._free = {uid: since for uid, since in self._free.items() if uid in left}
        self._ends = {uid: end for uid, end in self._ends.items() if uid in left}
        if not left:
            self._workloads.clear()
        self.next_due = min(self._ends.values(), default=None)

    def _end_what_is_over(self) -> Iterator[Proposal]:
        state, free = self._state, list[Reservation]()
        last: dict[Family, float] = {}
        for _, one in self._kept():
            holders = {each.uid for each in holders_of(state, one)}
            if make_holds(state, one.node, one.slices, one.key) != one.holds or not holders <= {one.uid}:
                yield EndOfReservation(one)
                continue
            since = state.now if holders else self._free.setdefault(one.uid, state.now)
            last |= {family: max(since, last.get(family, 0.0)) for family in _families(one)}
            if not holders:
                free.append(one)
        starting: dict[Family, AbstractSet[str]] = {}
        for one in free:
            self._ends[one.uid] = self._end_of(one, last, is_awaited=self._is_awaited(one, starting))
            if state.now >= self._ends[one.uid]:
                yield EndOfReservation(one)

    def _end_of(self, one: Reservation, last: Mapping[Family, float], *, is_awaited: bool) -> float:
        """Returns when free slots go to others.

        Args:
            one: the slots.
            last: by family, when the last kept slots became free; now if some are not.
            is_awaited: a pod starts before the next one comes.
        """
        since = self._state.now if is_awaited else max(last[each] for each in _families(one))
        end = max(self._ends.get(one.uid, 0.0), since + KEPT_SECONDS)
        return min(end, self._free[one.uid] + one.patience)

    def _is_awaited(self, one: Reservation, starting: dict[Family, AbstractSet[str]]) -> bool:
        """True for slots of a StatefulSet while one of its pods starts, or the leader after which it is named.

        Args:
            one: the slots.
            starting: by family, the names of pods that start; filled here.
        """
        owner = one.kept_for
        if owner is None or not owner.maker.startswith("StatefulSet/"):
            return False
        leaders = owner.namespace, owner.maker.rpartition("-")[0]
        for family in (family_of(owner), leaders):
            if family not in starting:
                members = (pod for each in self.pods.owners(family) for pod in self.pods.of(each))
                starting[family] = {each.name for each in members if self._starts(each)}
        return bool(starting[family_of(owner)]) or owner.maker.partition("/")[2] in starting[leaders]

    def _starts(self, pod: PodInfo) -> bool:
        """True for a pod with slots that is not ready, or was not a moment ago."""
        is_new = not pod.ready_since or self._state.now < pod.ready_since + KEPT_SECONDS
        return is_new and self._state.allocations.current_of(pod.uid) is not None

    def _give(self, top: str, kept: Sequence[tuple[Owner, Reservation]]) -> Iterator[Proposal]:
        """Gives slots to waiting pods of one topmost owner; what it does not want any more is free."""
        owner = kept[0][0]
        members = [
            (workload.revision, pod)
            for each in self.pods.siblings(owner)
            if (workload := self._workloads[each]) is not None and workload.top == top
            for pod in self.pods.of(each)
        ]
        holding = sum(self._has_slots(pod.uid) for _, pod in members)
        wanted = max((each.wanted for each in self._workloads.values() if each and each.top == top), default=0)
        alone = self._state.gangs.gang_of
        waiting = [(revision, pod) for revision, pod in members if self._may_inherit(pod) and alone(pod.uid) is None]
        waiting.sort(key=lambda each: (-each[0], -each[1].priority, each[1].created, each[1].key))
        kinds: dict[Hashable, deque[PodInfo]] = {}
        for revision, pod in waiting:
            kinds.setdefault((revision, pod.priority, pod.profiles, pod.spread, pod.constraints), deque()).append(pod)
        for index, (_, one) in enumerate(kept):
            if holding + index >= wanted:
                yield EndOfReservation(one)
                continue
            for kind, pods in islice(kinds.items(), TRIED_KINDS):
                slices = place_within(self._state, one, pods[0])
                if slices is not None:
                    yield from self._hand_over(one, pods.popleft(), slices)
                    if not pods:
                        del kinds[kind]
                    break

    def _give_to_gangs(self, found: Mapping[str, Sequence[tuple[Owner, Reservation]]]) -> Iterator[Proposal]:
        """Gives what is still kept to gangs, whose pods may have several topmost owners."""
        asked = dict.fromkeys(each for kept in found.values() for one, _ in kept for each in self.pods.siblings(one))
        tops = {owner: workload.top for owner in asked if (workload := self._workloads[owner]) is not None}
        waiting = [pod for owner in tops for pod in self.pods.of(owner) if self._may_inherit(pod)]
        left = self._state.reservations

        def kept_for(pod: PodInfo) -> Sequence[Reservation]:
            return [one for _, one in found.get(tops.get(owner_of(pod), ""), ()) if left.get(one.uid) is one]

        yield from self._gangs.give(waiting, kept_for)

    def _has_slots(self, uid: PodUid) -> bool:
        if self._state.allocations.current_of(uid) is not None:
            return True
        own = self._state.reservations.get(uid)
        return own is not None and own.is_inherited and not self._waits_for_the_living(own)

    def _waits_for_the_living(self, own: Reservation) -> bool:
        """True for a hand-over that has not begun to end the old pod: two pods with one place."""
        held = [each.uid for each in holders_of(self._state, own)]
        is_asked = any(uid in self._state.evictions or ("pod", uid) in self._state.busy for uid in held)
        return bool(held) and not is_asked and all(map(self.pods.get, held))

    def _may_inherit(self, pod: PodInfo) -> bool:
        own = self._state.reservations.get(pod.uid)
        is_free = own is None or not own.is_inherited or self._waits_for_the_living(own)
        return pod.uid in self._state.waiting and pod.ready_to_place and is_free

    def _hand_over(self, one: Reservation, pod: PodInfo, slices: tuple[Slice, ...]) -> Iterator[Proposal]:
        state = self._state
        own = state.reservations.get(pod.uid)
        yield EndOfReservation(one)
        if own is not None:
            yield EndOfReservation(own)
        made = reserve_inherited(state, pod, one.node, slices)
        if made is None:
            return
        holders = holders_of(state, made)
        seconds = max((residual_seconds(state, each) for each in holders), default=0.0)
        made.holders, made.until = {each.uid for each in holders}, state.now + seconds
        yield NewReservation(pod, made)


def _families(one: Reservation) -> Iterator[Family]:
    """Yields the families in which kept slots belong together: that of the owner, and that of a leader's workers."""
    if one.kept_for is not None:
        yield family_of(one.kept_for)
        yield one.kept_for.namespace, f"StatefulSet/{one.key.partition('/')[2]}"


def _may_leave(pod: PodInfo) -> bool:
    """True if a pod may leave slots: its owner makes others in its place."""
    return not pod.maker.startswith("Job/")
