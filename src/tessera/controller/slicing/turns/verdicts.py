"""Records what planning found for each waiting pod: its slices, or the reason why it gets none."""

from collections import Counter
from collections.abc import Iterable, Mapping

from tessera.api.names import PodUid
from tessera.api.pods.gangs import Gang
from tessera.controller.objects.pod_info import PodInfo
from tessera.controller.slicing.planning.allocation_lifecycle import AllocationLifecycle
from tessera.controller.slicing.planning.batch_placement import Placed
from tessera.controller.slicing.planning.fair_order import add_holdings, holding_of, reserved_for_others
from tessera.controller.slicing.planning.lasting_refusals import LastingRefusal
from tessera.controller.slicing.planning.planner import Planner
from tessera.controller.slicing.planning.pod_kinds import PodKind, kind_of
from tessera.controller.slicing.reservations.reserver import Reserver
from tessera.controller.slicing.state.allocation import Allocation
from tessera.controller.slicing.state.messages import lost_slices_text, waiting_text
from tessera.controller.slicing.state.refusals import competes_for_room
from tessera.controller.slicing.state.slicer_state import SlicerState
from tessera.controller.slicing.state.waiting_pod import PodState
from tessera.controller.slicing.state.waiting_pods import Rank, rank
from tessera.limits.planning import BATCH_PODS
from tessera.reasons.reason import QueueFull, Reason


class Verdicts:
    """Allocates and refuses.

    Args:
        state: the slicer's state.
        lifecycle: keeps the allocations.
        planner: knows which pods only fixed layouts serve.
        reserver: is told who waits for room.

    Attributes:
        decisions: allocations made so far; never decreases.
        moves: pods that got other slices after theirs were taken back; never decreases.
        refusals: how often planning refused a pod for a new reason, by the reason's word; never decreases.
    """

    def __init__(
        self, state: SlicerState, lifecycle: AllocationLifecycle, planner: Planner, reserver: Reserver
    ) -> None:
        self.decisions = 0
        self.moves = 0
        self.refusals: Counter[str] = Counter()
        self._state = state
        self._cluster = state.cluster
        self._ledger = state.ledger
        self._lifecycle = lifecycle
        self._planner = planner
        self._reserver = reserver
        #: Queues of which the present decision plans pods, or leaves some to the next one.
        self._planned_queues: set[str] = set()
        #: By queue, the rank of the first pod that it cannot hold whatever the present decision places.
        self._first_above: dict[str, Rank] = {}
        #: Kinds that the present decision has refused, with the last reason.
        self._refused_kinds: dict[PodKind, Reason] = {}

    def begin(self, pods: Iterable[PodInfo], held_back: Mapping[PodUid, QueueFull]) -> None:
        """Begins a decision.

        Args:
            pods: the pods that it plans, or leaves to the next one.
            held_back: other pods, for which their queue has no room if all pods before them are placed.
        """
        self._planned_queues = {self._cluster.queue_of(pod) for pod in pods}
        self._first_above = {}
        for uid, reason in held_back.items():
            if not reason.never and self._is_above_maximum(uid, reason):
                self._first_above.setdefault(reason.queue, rank(self._cluster.pods[uid], {}))

    def allocate(self, placed: Placed) -> None:
        """Gives a pod the slices that planning found for it."""
        pod = placed.pod
        by_pod = bool(pod.devices)
        allocation = Allocation(
            placed.node, pod.uid, pod.namespace, pod.name, placed.slices, pod.amounts, by_pod=by_pod
        )
        taken = self._state.inventory.occupy(allocation)
        assert taken, f"planned slots of {pod.key} on {placed.node} are taken"
        self._state.ages.note(pod, self._state.now, competes=True)
        one = self._state.pods.record(pod.uid)
        self.moves += one.displaced
        one.displaced = False
        self._lifecycle.add(allocation)
        self._reserver.release(pod.uid)
        self._state.reservations_due |= bool(self._state.reservations)
        self.decisions += 1

    def refuse(self, pod: PodInfo, reason: Reason | None, *, dependent: bool) -> None:
        """Notes why a pod gets no slices; None repeats the last reason. A new one is told by an event.

        ``dependent``: a change of other pods or volumes alone may lift the refusal.
        """
        one = self._state.waiting[pod.uid]
        self._state.pods.note_refusal(pod.uid)
        one.refused_by_all = False
        if pod.gated and self._planner.only_fixed_layouts_serve(pod):
            self._state.pods.move(pod.uid, PodState.FIXED)
            return
        if dependent:
            one.dependent = True
            self._cluster.placed_pods.watch(pod.uid, pod.relations)
        if reason is None:
            return
        self._state.ages.note(pod, self._state.now, competes=competes_for_room(reason))
        self._state.pods.refuse(pod, reason, self._reserver.queue_key(pod))
        self._state.reservations_due = True
        if one.last_event == type(reason).__name__:
            return
        one.last_event = type(reason).__name__
        self.refusals[reason.metric()] += 1
        if self._cluster.required_node(pod) is None:
            self._lifecycle.record_event(pod, "SliceWaiting", waiting_text(pod, reason))
        else:
            self._lifecycle.record_event(pod, "SliceLost", lost_slices_text(pod, reason), warning=True)

    def hold_back(self, held_back: Mapping[PodUid, QueueFull | LastingRefusal]) -> list[PodUid]:
        """Refuses pods that all nodes refuse, or for which their queue has no room.

        Returns:
            The pods that are not decided: pods before them were refused, and left room.
        """
        for uid, reason in held_back.items():
            if isinstance(reason, LastingRefusal):
                self.refuse(self._cluster.pods[uid], reason.reason, dependent=reason.dependent)
                if uid in self._state.waiting:
                    self._state.waiting[uid].refused_by_all = True
        full = {uid: reason for uid, reason in held_back.items() if isinstance(reason, QueueFull)}
        binding = self.binding(full)
        for uid, reason in binding.items():
            pod = self._cluster.pods[uid]
            self.refuse(pod, reason, dependent=False)
            if not reason.never:
                self._state.pods.note_limit(uid)
        return [uid for uid in full if uid not in binding]

    def binding(self, held_back: Mapping[PodUid, QueueFull], gang: Gang | None = None) -> Mapping[PodUid, QueueFull]:
        """Returns those of the pods for which their queue has no room indeed, now that pods before them are decided.

        A pod of which that is not certain is planned again: a queue of which no pod was planned with it leaves no more
        room.

        Args:
            held_back: pods for which there was no room if all pods before them were placed.
            gang: the pods of this gang do not wait for each other.
        """
        return {uid: reason for uid, reason in held_back.items() if self._is_binding(uid, reason, gang)}

    def _is_binding(self, uid: PodUid, reason: QueueFull, gang: Gang | None) -> bool:
        if reason.never or reason.queue not in self._planned_queues:
            return True
        if self._is_above_maximum(uid, reason):
            return True
        above = self._first_above.get(reason.queue)
        if gang is not None and above is not None and above < rank(self._cluster.pods[uid], {}):
            return True
        first = self._state.pods.first_limited(reason.queue)  # an older pod that waits for the maximum goes first
        if first is None or rank(self._cluster.pods[first], {}) >= rank(self._cluster.pods[uid], {}):
            return False
        of = self._state.gangs.gang_of(first)
        return gang is None or of is None or of.key != gang.key

    def _is_above_maximum(self, uid: PodUid, reason: QueueFull) -> bool:
        pod = self._cluster.pods[uid]
        more = add_holdings([holding_of(self._state, pod), reserved_for_others(self._state, reason.queue, pod)])
        return self._ledger.is_above_maximum(reason.queue, more)

    def note_kind(self, pod: PodInfo, reason: Reason | None) -> None:
        """Notes that the refusal of a pod answers for its kind."""
        kind = kind_of(self._state, pod) if pod.uid in self._state.waiting else None
        if kind is not None:
            self._state.pods.note_refusal_of_kind(pod, kind)
            if reason is not None:
                self._refused_kinds[kind] = reason

    def share_reasons(self) -> None:
        """Gives the reason of a refused pod to the pods of its kind that were not asked.

        A pod whose reason becomes one of another class is refused like the first, with an event. Of more such pods than
        one batch has, the others are planned in further decisions.
        """
        reasons, self._refused_kinds = self._refused_kinds, {}
        left = int(BATCH_PODS)
        for kind, reason in reasons.items():
            for uid in self._state.pods.pods_of_kind(kind):
                if type(self._state.waiting[uid].reason) is type(reason):
                    self._state.waiting[uid].reason = reason
                    self._state.ages.note(self._cluster.pods[uid], self._state.now, competes=competes_for_room(reason))
                elif left > 0:
                    left -= 1
                    pod = self._cluster.pods[uid]
                    self.refuse(pod, reason, dependent=False)
                    self.note_kind(pod, None)
                else:
                    self._state.pods.forget_refusal(uid)
