"""Changes the state after outcomes of writes, and takes slices back from pods that the scheduler refuses."""

from tessera.api.names import NodeName, PodUid
from tessera.controller.objects.pod_info import PodInfo
from tessera.controller.slicing.evictions.mover import Mover
from tessera.controller.slicing.evictions.unbound_pods import UnboundPods
from tessera.controller.slicing.planning.allocation_lifecycle import AllocationLifecycle
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


class WriteOutcomes:
    """Brings the state in line with outcomes of writes. It has no state of its own.

    Args:
        state: the slicer's state.
        lifecycle: gives allocations up.
        mover: is told of refused evictions.
        unbound: takes slices back.
    """

    def __init__(self, state: SlicerState, lifecycle: AllocationLifecycle, mover: Mover, unbound: UnboundPods) -> None:
        self._state = state
        self._cluster = state.cluster
        self._lifecycle = lifecycle
        self._mover = mover
        self._unbound = unbound

    def finish(self, write: Write) -> None:
        """The server took a write."""
        if isinstance(write, ReportNodeCondition):
            self._state.reported_objects[write.node] = write.text
        elif isinstance(write, PatchRequests):
            for uid in write.drop:
                allocation = self._state.allocations.get(write.node, uid)
                if allocation is not None:
                    allocation.sent = False
        self._state.busy.discard(write.key)
        self._mark_affected(write)

    def note_refusal(self, write: Write, reason: str) -> None:
        """The server refused a write for a reason; it is tried again, or not, when its retry is due."""
        if isinstance(write, PatchRequests):
            for uid in write.put:
                allocation = self._state.allocations.get(write.node, uid)
                if allocation is not None:
                    allocation.sent = False
        elif isinstance(write, Evict):
            self._mover.note_refusal(write.uid, reason)

    def note_no_answer(self, write: Write) -> None:
        """Nothing shows if the server took a write: the object that the watch shows decides."""
        if isinstance(write, Evict):
            self._mover.note_no_answer(write.uid)

    def retry(self, write: Write) -> None:
        """The pause after a failed write is over."""
        self._state.busy.discard(write.key)
        self._mark_affected(write)

    def deny(self, write: Ungate, reason: str) -> None:
        """The server will never take the pin of a pod: its slices go back, and an event says why."""
        self._state.busy.discard(write.key)
        pod = self._cluster.pods.get(write.uid)
        if pod is None:
            return
        self._state.pods.record(write.uid).denied = pod
        text = f"The pod cannot be pinned to its node: {reason}"
        self._lifecycle.record_event(pod, "SliceRefused", text, warning=True)
        allocation = self._state.allocations.current_of(write.uid)
        if allocation is not None:
            self._lifecycle.give_up(allocation)

    def end_denial(self, uid: PodUid) -> None:
        """A pod whose pin was denied may be planned again."""
        one = self._state.pods.get(uid)
        if one is not None and one.denied is not None:
            one.denied = None
            self._cluster.changed_pods.add(uid)

    def withdraw(self, uid: PodUid, avoid_until: float) -> None:
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
            text = unbound_text if pod.gates else withdrawn_text
            self._unbound.take_back(pod, allocation, text(pod, allocation.node))
        elif pod.owner:
            self._replace(pod, allocation.node if allocation is not None else pod.node, avoid_until)

    def _replace(self, pod: PodInfo, node: NodeName, avoid_until: float) -> None:
        """Has a pod's owner make it anew; ``node`` is the one that refuses it, empty if its slices are gone already."""
        # Cards that a pod of another namespace took count as taken, so the node needs no avoidance.
        outrun = any(f"Insufficient {each}" in pod.unschedulable_message for each in set(pod.devices))
        avoided = bool(node) and not self._lifecycle.agent_is_down(node) and not outrun
        text = withdrawn_text(pod, node or pod.hostname, avoided=avoided)
        self._lifecycle.record_event(pod, "SliceReclaimed", text, warning=True)
        if avoided:
            self._state.avoidance.add(pod.owner, node, avoid_until)
        self._state.evictions[pod.uid] = Evict(uid=pod.uid, namespace=pod.namespace, name=pod.name, version=pod.version)

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
