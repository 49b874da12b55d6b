"""Gives the slots of a Deployment's old pods to its new ones, one by one, and back if a new one fails.

By default a rolling update ends no old pod before a new one is ready. Where the new pod has no room beside the old one,
both wait for each other. This module names that, and ends it for pods with the annotation
``tessera.dev/update: hand-over``. A Deployment that may be without some pods (``maxUnavailable``) ends old ones itself,
whose slots the new ones inherit: it is left alone. Rules:

- What makes room without the service's loss goes first: a free slot, a preemption, and a move if pods move.
- The slots are reserved for the new pod, as inherited ones, and the reservation is on record before the old pod is
  evicted. So nobody else gets them, and a new controller goes on where the old one ended: nothing is only in memory.
- The new pod's images come to the old pod's node first (:attr:`.Progress.pulls`), for ten minutes at most. While the
  node is refused one, no old pod ends.
- One old pod ends at a time. The next one does when all new pods with slots have been ready for ``minReadySeconds``,
  and as many pods are ready as are wanted; the latter for ``progressDeadlineSeconds`` at most.
- No old pod ends for a new one that its queue may not hold: one of another queue, or of a queue above its maximum;
  nor for one that requests more CPU or memory than the node has without the old one.
- Evictions go through the eviction API, which keeps PodDisruptionBudgets. A refused one is told, and asked for again.
- A new pod that is not ready within ``progressDeadlineSeconds``, was restarted three times, or gets no image is
  evicted if a pod of an older revision waits: that one gets the slots. The revision gets no further try; the node's
  object records that (:mod:`tessera.controller.slicing.state.node_records`) while pods of it exist.
- Owner references are written by tenants, and records by agents: only pods end that the API server's answers call pods
  of an older revision, or of a failed one, of the same Deployment. The answers are fresh when an eviction is decided.
"""

from collections.abc import Iterable, Iterator, Mapping
from itertools import islice

import msgspec

from tessera.api.names import HAND_OVER, UPDATE_ANNOTATION, NodeName, PodUid
from tessera.controller.objects.pod_info import Owner, PodInfo, Workload
from tessera.controller.slicing.proposals import (
    EndOfReservation,
    FailedUpdate,
    NewReservation,
    Notice,
    Proposal,
    Proposer,
    evict,
)
from tessera.controller.slicing.state.messages import waiting_text
from tessera.controller.slicing.state.node_records import Reservation, read_moves, read_reservations
from tessera.controller.slicing.state.reservation_rules import holders_of
from tessera.controller.slicing.state.slicer_state import SlicerState
from tessera.handover.owner_pods import Family, OwnerPods, family_of, place_within, reserve_inherited
from tessera.handover.updates import (
    NAMED_PODS,
    Progress,
    Update,
    Updates,
    ends,
    find_old_pods,
    keeps_maximum,
    reservations_on,
)
from tessera.reasons.reason import OldPods, UpdateStep
from tessera.reasons.words import steps
from tessera.text import one_line

#: Most new pods of one update that are told why they wait.
TOLD_PODS = 32
#: Seconds until a pod is asked to end again.
EVICTED_AGAIN = 15.0


def update_text(pod: PodInfo, reason: OldPods) -> str:
    """Returns the event message of a new pod of a Deployment that waits for the slots of an old one."""
    advice = "; ".join(steps(reason, pod.namespace))
    return f"{waiting_text(pod, reason)}{f'. To end this: {advice}' if advice else ''}"


def handed_over_text(pod: PodInfo) -> str:
    """Returns the event message of an old pod of a Deployment that is evicted for a new one."""
    return (
        f"To be evicted, unless a PodDisruptionBudget keeps it: {pod.name} is the new pod of its Deployment, has no"
        f" room beside it, and gets its slots (annotation {UPDATE_ANNOTATION}: {HAND_OVER})"
    )


def given_back_text(last: PodInfo, pod: PodInfo) -> str:
    """Returns the event message of a new pod of a Deployment that has failed, and is evicted for an old one."""
    why = f"a container was restarted {last.restarts} times" if last.restarts else "it is not ready after its deadline"
    if last.lacks_image:
        why = "its node does not get its image"
    return (
        f"To be evicted: {why}, so {pod.name} of the old revision gets the slots. This revision gets no further try:"
        " correct the pod template, or take the update back (kubectl rollout undo)"
    )


class HandOver(Proposer):
    """Names updates that wait for their own old pods, and hands slots over.

    Args:
        state: the slicer's state.
        pods: the pods of owners.
        acts: False to name only.
        moves: True if pods are moved, which goes first.

    Attributes:
        updates: the updates in which a pod waits.
        progress: how far they are.
    """

    follows = "maker"

    def __init__(self, state: SlicerState, pods: OwnerPods, *, acts: bool, moves: bool) -> None:
        self._state = state
        self.updates = Updates(state, pods)
        self._acts = acts
        #: By pod that was asked to end, when that was, and what the server said against it.
        self._evicted: dict[PodUid, float] = {}
        self._refused: dict[PodUid, str] = {}
        self.progress = Progress(state, moves=moves)
        #: The families for whose next pods slots are kept.
        self._kept: set[Family] = set()
        #: By waiting pod, its step, and when that began.
        self._told: dict[PodUid, tuple[UpdateStep, float]] = {}
        self._dues = self.progress.dues

    # What is known

    def observe(self, uid: PodUid) -> None:
        """Takes in a pod that changed, or is gone."""
        if uid not in self._state.cluster.pods:
            self._evicted.pop(uid, None)
            self._refused.pop(uid, None)
        self._state.reservations_due |= self.updates.concern(uid)

    def note_owner(self, owner: Owner, workload: Workload | None) -> None:
        """Takes in what the API server says of an owner."""
        self._state.reservations_due |= self.updates.note_owner(owner, workload)

    def note_images(self, uid: PodUid, node: NodeName, refusal: str) -> None:
        """Takes in that the images of a waiting pod are on a node, cannot be brought there, or are refused."""
        self._state.reservations_due |= self.progress.note_images(uid, node, refusal)

    def note_refusal(self, uid: PodUid, reason: str) -> Iterator[Proposal]:
        """Takes in that the server refused an eviction."""
        if uid in self._evicted:
            self._refused[uid] = one_line(reason, 200)
            self._state.reservations_due = True
        yield from ()

    @property
    def unknown_owners(self) -> Iterator[Owner]:
        """The owners of updates about which somebody should ask the API server."""
        return self.updates.unknown_owners

    @property
    def pulls(self) -> Mapping[PodUid, NodeName]:
        """Where the images of new pods should come."""
        return self.progress.pulls

    # Proposing

    def propose(self) -> Iterator[Proposal]:
        """Takes each update one step further."""
        if not self._state.now:
            return
        self._dues.clear()
        self._kept = {family_of(each.kept_for) for each in self._state.reservations.kept.values() if each.kept_for}
        before, self._state.updates = self._state.updates, {}
        for update in self.updates.review():
            yield from self._advance(update)
        kept = self.updates.unanswered
        self._state.updates.update({uid: each for uid, each in before.items() if uid in kept})
        yield from self._tell()
        self.progress.forget()
        self.asks = bool(self.updates.asked)
        self.next_due = min((*self._dues, *self.updates.dues), default=None)

    def _advance(self, update: Update) -> Iterator[Proposal]:
        """Takes one update a step further."""
        switch = next((each for each in map(self._switch_to, (*update.new, *update.old)) if each is not None), None)
        if switch is not None:
            yield from self._carry_on(update, *switch)
            return
        failed = next((pod for pod in update.new if self.progress.has_failed(update, pod)), None)
        if failed is not None and self._acts:
            yield from self._give_back(update, failed)
            return
        waits = filter(self.updates.waits, update.new)
        waiting = sorted(waits, key=lambda each: (-each.priority, each.created, each.key))
        if not waiting:
            self._name_heirs(update)
            return
        found = find_old_pods(self._state, update, waiting[0])
        if not found:
            return
        if not (self._acts and waiting[0].hands_over):
            self._name(update, waiting, found, UpdateStep.STAY)
        elif self.progress.is_marked(waiting[0], update.newest):
            self._name(update, waiting, found, UpdateStep.FAILED)
        elif not self._is_turn(update, waiting[0]) or self.progress.may_get_room(waiting[0]):
            self._name(update, waiting, found, UpdateStep.FOLLOW)
        elif not self.progress.may_end(update, found[0], waiting[0]):
            self._name(update, waiting, found, UpdateStep.SHORT)
        elif not self.progress.has_images(waiting[0], found[0].node):
            refusal = self.progress.refusals.get(waiting[0].uid, "")
            self._name(update, waiting, found, UpdateStep.FOLLOW)
            self._name(update, waiting[:1], found, UpdateStep.IMAGE if refusal else UpdateStep.PULL, refusal)
        elif not self.updates.is_fresh(update):
            self._name(update, waiting, found, UpdateStep.FOLLOW)
            self.updates.ask(update.family)
        else:
            self._name(update, waiting, found, UpdateStep.FOLLOW)
            yield from self._reserve(waiting[0], found[0])

    # Whose slots go to whom

    def _reserve(self, pod: PodInfo, last: PodInfo) -> Iterator[Proposal]:
        """Reserves the slots of a pod for another one; its eviction follows once that is on record."""
        one = self._state.allocations.current_of(last.uid)
        slices = place_within(self._state, one, pod) if one is not None else None
        made = reserve_inherited(self._state, pod, one.node, slices) if one is not None and slices is not None else None
        if made is None:
            return
        made.holders = {each.uid for each in holders_of(self._state, made)}
        own = self._state.reservations.get(pod.uid)
        for other in [*([own] if own is not None else []), *reservations_on(self._state, last)]:
            yield EndOfReservation(other)
        yield NewReservation(pod, made)

    # Switching

    def _switch_to(self, pod: PodInfo) -> tuple[PodInfo, Reservation] | None:
        """Returns a waiting pod for which slots of its service are reserved, with the reservation."""
        own = self._state.reservations.get(pod.uid) if pod.uid in self._state.waiting else None
        return (pod, own) if own is not None and own.is_inherited else None

    def _carry_on(self, update: Update, pod: PodInfo, own: Reservation) -> Iterator[Proposal]:
        """Ends the pod whose slots are reserved for another, unless that is no longer right."""
        members = {each.uid: each for each in (*update.new, *update.old)}
        holders = [each.uid for each in holders_of(self._state, own) if not ends(self._state, each.uid)]
        lasts = [members[uid] for uid in holders if uid in members]
        is_new = pod in update.new
        others = [each for each in update.new if each.uid != pod.uid and self.updates.waits(each)]
        if len(lasts) < len(holders) or any(not self._goes_before(update, each, pod) for each in lasts):
            yield EndOfReservation(own)
            return
        waiting = [pod, *others] if is_new else others
        step: UpdateStep = UpdateStep.END if is_new else UpdateStep.FAILED
        if not is_new and others and not lasts and not self.progress.is_marked(others[0], update.newest):
            step = UpdateStep.FOLLOW
        self._name(update, waiting, lasts, step)
        for last in lasts:
            yield from self._evict(update, last, pod, own)

    def _goes_before(self, update: Update, last: PodInfo, pod: PodInfo) -> bool:
        """True if a pod's slots go to another one: to a newer revision, or back from a failed one."""
        if not self._acts:
            return False
        if pod in update.new:
            is_turn = self._is_turn(update, pod) and self.progress.may_end(update, last, pod)
            is_next = last.uid in self._evicted or is_turn
            may_end = is_next and last in update.old and keeps_maximum(self._state, last, pod)
            return may_end and pod.hands_over and not self.progress.is_marked(pod, update.newest)
        return last in update.new and not last.ready_since and self.progress.is_marked(last, update.newest)

    def _is_turn(self, update: Update, pod: PodInfo) -> bool:
        """False while another new pod is not ready, or slots are kept for one: those of a pod that ended by itself."""
        others = (each for each in update.new if each.uid != pod.uid)
        gets_slots = update.family in self._kept or any(map(self._switch_to, others))
        return not gets_slots and self.progress.are_ready(update)

    def _evict(self, update: Update, last: PodInfo, pod: PodInfo, own: Reservation) -> Iterator[Proposal]:
        if last.uid in self._refused:
            refused = self._state.updates.get(pod.uid)
            if refused is not None and pod in update.new:
                told = msgspec.structs.replace(refused, step=UpdateStep.REFUSED, said=self._refused[last.uid])
                self._state.updates[pod.uid] = told
        due = self._evicted.get(last.uid, 0.0) + EVICTED_AGAIN
        if self._state.now < due or ("pod", last.uid) in self._state.busy:
            self._dues.append(max(due, self._state.now + 1.0))
            return
        if not self._is_recorded(last, own):
            return
        if last.uid not in self._evicted:
            text = handed_over_text(pod) if pod in update.new else given_back_text(last, pod)
            yield Notice(last, "SliceHandedOver" if pod in update.new else "SliceGivenBack", text)
        self._evicted[last.uid] = self._state.now
        self._refused.pop(last.uid, None)
        self._dues.append(self._state.now + EVICTED_AGAIN)
        yield from evict(last)

    def _is_recorded(self, last: PodInfo, own: Reservation) -> bool:
        """True if the node's object shows what a new controller must know; a node without one cannot."""
        item = self._state.cluster.objects.get(own.node)
        if item is None:
            return True
        marks = [each for each in self._state.moves.get(own.node, ()) if each.uid == last.uid and each.revision]
        is_reserved = any(uid == own.uid for _, uid, _ in read_reservations(item))
        return is_reserved and set(marks) <= set(read_moves(item))

    # Going back

    def _give_back(self, update: Update, failed: PodInfo) -> Iterator[Proposal]:
        """Gives the slots of a failed pod to one of an older revision, if one waits."""
        one = self._state.allocations.current_of(failed.uid)
        heirs = [each for each in update.old if self.updates.waits(each)]
        heir = next((each for each in heirs if one is not None and place_within(self._state, one, each)), None)
        waiting = [each for each in update.new if self.updates.waits(each)]
        if heir is None or one is None:
            self._name(update, waiting, (), UpdateStep.FOLLOW)
            return
        if not self.updates.is_fresh(update):
            self.updates.ask(update.family)
            return
        yield FailedUpdate(failed, update.newest.revision, one.node)
        self._name(update, waiting, (), UpdateStep.FAILED)
        yield from self._reserve(heir, failed)

    # Telling

    def _name(
        self, update: Update, waiting: Iterable[PodInfo], old: Iterable[PodInfo], step: UpdateStep, said: str = ""
    ) -> None:
        found = OldPods(update.family[0], update.newest.name, tuple(each.key for each in old), step, said)
        self._state.updates.update({each.uid: found for each in islice(waiting, TOLD_PODS)})

    def _name_heirs(self, update: Update) -> None:
        """Names the old pods that wait while a new one starts on the slots that were theirs."""
        has_slots = self._state.allocations.current_of
        starting = [each for each in update.new if each.hands_over and not each.ready_since and has_slots(each.uid)]
        if starting and self._acts:
            heirs = filter(self.updates.waits, update.old)
            self._name(update, heirs, islice(starting, NAMED_PODS), UpdateStep.BACK)

    def _tell(self) -> Iterator[Proposal]:
        updates = self._state.updates
        self._told = {uid: told for uid, told in self._told.items() if uid in updates}
        for uid, reason in updates.items():
            step, since = self._told.get(uid, (None, 0.0))
            if step is not reason.step:
                self._told[uid] = reason.step, (since := self._state.now)
                pod = self._state.cluster.pods[uid]
                stuck = reason.step in {UpdateStep.STAY, UpdateStep.IMAGE, UpdateStep.REFUSED, UpdateStep.FAILED}
                if reason.step is not UpdateStep.BACK:
                    yield Notice(pod, "SliceUpdate", update_text(pod, reason), warning=stuck)
            updates[uid] = msgspec.structs.replace(reason, since=since)
