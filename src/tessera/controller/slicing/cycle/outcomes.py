"""Step 1, for each outcome of a write: changes the state by what the API server answered."""

from collections.abc import Callable, Iterable

from tessera.api.names import NodeName, PodUid
from tessera.controller.objects.pod_info import PodInfo
from tessera.controller.slicing.cycle.settle import Settlement
from tessera.controller.slicing.evictions.mover import Mover
from tessera.controller.slicing.planning.allocations import agent_is_down
from tessera.controller.slicing.planning.proposals import (
    Notice,
    Proposal,
    Return,
    Withdrawal,
    evict,
)
from tessera.controller.slicing.state import events
from tessera.controller.slicing.state.instructions import (
    Evict,
    PatchRequests,
    ReportNodeCondition,
    ReportPodCondition,
    ReportQueue,
    Ungate,
    Write,
)
from tessera.controller.slicing.state.messages import unbound_text, withdrawn_text
from tessera.controller.slicing.state.slicer_state import SlicerState


class Outcomes:
    """Brings the state in line with outcomes of writes. It has no state of its own.

    Args:
        state: the slicer's state.
        settlement: carries out what follows.
        mover: is told of refused evictions; None if nothing moves.
    """

    def __init__(self, state: SlicerState, settlement: Settlement, mover: Mover | None) -> None:
        self._state = state
        self._cluster = state.cluster
        self._settlement = settlement
        self._mover = mover

    def take_in(self, event: events.SlicerEvent) -> None:
        """Takes in an outcome."""
        match event:
            case events.WriteDone(write):
                self._finish(write)
            case events.WriteRefused(write, reason):
                self._note_refusal(write, reason)
            case events.WriteOutcomeUnknown(write):
                if isinstance(write, Evict) and self._mover is not None:
                    self._mover.note_no_answer(write.uid)
            case events.RetryDue(write):
                self._state.busy.discard(write.key)
                self._mark_affected(write)
            case events.UngateDenied(write, reason):
                self._settlement.settle(self._deny(write, reason))
            case events.DenialExpired(uid):
                self._end_denial(uid)
            case events.RefusalTimedOut(uid, avoid_until):
                self._settlement.settle(self._withdraw(uid, avoid_until))
            case _:
                raise TypeError(f"{event} is no outcome")

    def _finish(self, write: Write) -> None:
        """The server took a write."""
        if isinstance(write, ReportNodeCondition):
            self._state.reported_objects[write.node] = write.text
        elif isinstance(write, PatchRequests):
            self._settlement.allocations.note_sent(write.node, write.drop, sent=False)
        self._state.busy.discard(write.key)
        self._mark_affected(write)

    def _note_refusal(self, write: Write, reason: str) -> None:
        """The server refused a write for a reason; it is tried again, or not, when its retry is due."""
        if isinstance(write, PatchRequests):
            self._settlement.allocations.note_sent(write.node, write.put, sent=False)
        elif isinstance(write, Evict) and self._mover is not None:
            self._settlement.settle(self._mover.note_refusal(write.uid, reason))

    def _deny(self, write: Ungate, reason: str) -> Iterable[Proposal]:
        """The server will never take the pin of a pod: its slices go back, and an event says why."""
        self._state.busy.discard(write.key)
        pod = self._cluster.pods.get(write.uid)
        if pod is None:
            return
        self._state.pods.record(write.uid).denied = pod
        yield Notice(pod, "SliceRefused", f"The pod cannot be pinned to its node: {reason}", warning=True)
        allocation = self._state.allocations.current_of(write.uid)
        if allocation is not None:
            yield Return(allocation)
        else:
            self._settlement.allocations.follow(write.uid)

    def _end_denial(self, uid: PodUid) -> None:
        """A pod whose pin was denied may be planned again."""
        one = self._state.pods.get(uid)
        if one is not None and one.denied is not None:
            one.denied = None
            self._cluster.changed_pods.add(uid)

    def _withdraw(self, uid: PodUid, avoid_until: float) -> Iterable[Proposal]:
        """Takes slices back from a pod that its node did not take in time.

        A pod with an owner is evicted, and its successors avoid the node; any other pod is told, and keeps waiting. So
        does a pod that a gate holds: its next pod would be held too.
        """
        pod, allocation = self._cluster.pods.get(uid), self._state.allocations.current_of(uid)
        if pod is None or ("pod", uid) in self._state.busy or uid not in self._state.pods.cannot_start:
            return
        if pod.node and self._state.pods.record(uid).told:
            return
        if allocation is not None and (pod.gates or not pod.owner):
            text: Callable[[PodInfo, str], str] = unbound_text if pod.gates else withdrawn_text
            yield Withdrawal(pod, allocation, text(pod, allocation.node))
        elif pod.owner:
            yield from self._replace(pod, allocation.node if allocation is not None else pod.node, avoid_until)

    def _replace(self, pod: PodInfo, node: NodeName, avoid_until: float) -> Iterable[Proposal]:
        """Has a pod's owner make it anew; ``node`` is the one that refuses it, empty if its slices are gone already."""
        # Cards that a pod of another namespace took count as taken, so the node needs no avoidance.
        outrun = any(f"Insufficient {each}" in pod.unschedulable_message for each in set(pod.devices))
        avoided = bool(node) and not agent_is_down(self._state, node) and not outrun
        text = withdrawn_text(pod, node or pod.hostname, avoided=avoided)
        yield Notice(pod, "SliceReclaimed", text, warning=True)
        if avoided:
            self._state.avoidance.add(pod.owner, node, avoid_until)
        yield from evict(pod, version=pod.version)

    def _mark_affected(self, write: Write) -> None:
        if isinstance(write, Evict | ReportQueue):
            return
        if isinstance(write, ReportPodCondition):
            self._state.pods_to_report.add(write.uid)
        elif isinstance(write, Ungate):
            self._cluster.changed_pods.add(write.uid)  # no decision reviewed the promise while the write was in flight
            allocation = self._state.allocations.current_of(write.uid)
            if allocation is not None:
                self._state.dirty_nodes.add(allocation.node)
        else:
            self._state.dirty_nodes.add(write.node)
