"""Step 1, for each event: takes in an observation of the cluster, the passing of time, or the outcome of a write.

What a pod or node has to do with its slices changes later, when it is absorbed.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from tessera.api.instaslice import INSTASLICES
from tessera.api.names import LAST_GATES, QUEUE_LABEL, NodeName, PodUid
from tessera.api.queues import Queue
from tessera.controller.objects.pod_info import PodInfo, Record
from tessera.controller.slicing.cycle.settle import Settlement
from tessera.controller.slicing.kinds import Kinds
from tessera.controller.slicing.proposals import (
    Notice,
    Proposal,
    Proposer,
    Return,
    Withdrawal,
    evict,
)
from tessera.controller.slicing.state import events
from tessera.controller.slicing.state.instructions import (
    Evict,
    PatchRecord,
    PatchRequests,
    ReportNodeCondition,
    ReportPodCondition,
    ReportQueue,
    Ungate,
    Write,
)
from tessera.controller.slicing.state.messages import unbound_text, withdrawn_text
from tessera.controller.slicing.state.slicer_state import SlicerState
from tessera.controller.slicing.state.waiting_pod import competes_for_room


class Observer:
    """Brings the observed cluster up to date.

    Args:
        state: the slicer's state.
        settlement: carries out what follows on outcomes of writes.
        proposers: may be due once time has passed, and are told of refused evictions.
        kinds: observe pods, nodes and namespaces.
    """

    def __init__(
        self,
        state: SlicerState,
        settlement: Settlement,
        proposers: Sequence[Proposer],
        kinds: Kinds,
    ) -> None:
        self._state = state
        self._cluster = state.cluster
        self._settlement = settlement
        self._proposers = proposers
        self._kinds = kinds
        #: True once the first decision has looked for objects without a node; this happens once.
        self._orphans_found = False

    def observe(self, event: events.SlicerEvent) -> None:
        """Takes in an event."""
        self._take_in(event)
        self.reread()

    def reread(self) -> None:
        """Takes in pods again whose requests have changed, though the pods have not."""
        for kind in self._kinds.having["reread"]:
            while pods := kind.reread():
                for pod in pods:
                    self._put_pod(pod)

    def _take_in(self, event: events.SlicerEvent) -> None:
        match event:
            case events.PodObserved(pod):
                self._put_pod(pod)
            case events.InstasliceObserved(item):
                self._cluster.put_object(item)
            case events.NodeObserved(node):
                self._cluster.put_node(node)
                for kind in self._kinds.having["observe_node"]:
                    kind.observe_node(node.name)
            case events.PodDeleted(uid):
                self._drop_pod(uid)
            case events.InstasliceDeleted(name):
                self._cluster.drop_object(name)
            case events.NodeDeleted(name):
                self._cluster.drop_node(name)
            case events.TimePassed(now, date):
                self._pass_time(now, date)
            case events.EndsExpected(ends):
                self._state.expect_ends(ends)
            case events.StorageObserved(item, deleted):
                self._cluster.put_storage(item, deleted=deleted)
            case events.NamespaceObserved(name, labels):
                self._put_namespace(name, labels)
            case events.QueueObserved(queue):
                self._put_queue(queue)
            case events.QueueDeleted(name):
                self._state.ledger.drop(name)
                self._follow_queues()
            case events.PodGroupObserved(key, size):
                self._state.gangs.put_group(key, size)
            case events.PodGroupsListed(served):
                self._state.gangs.note_groups(served=served)
            case events.LastGatesObserved(gates):
                self._set_last_gates(gates)
            case events.OwnerLookedUp() | events.ImagesPulled():
                self._note_answer(event)
            case events.InstasliceUnreadable(name, error):
                self._cluster.set_object_error(name, error)
            case events.RecordObserved() | events.RecordsListed():
                self._observe_record(event)
            case events.PodVersionsReset():
                self._cluster.reset_pod_versions()
            case events.InstasliceVersionsReset() | events.InstasliceKindMissing():
                self._note_records(event)
            case events.StorageListed():
                self._cluster.note_storage_listed()
            case events.DecisionDue() | events.WritesDue():
                raise TypeError(f"{event} is no observation")
            case _:
                self._observe_outcome(event)

    def _note_answer(self, event: events.OwnerLookedUp | events.ImagesPulled) -> None:
        """Takes in the answer to a question of a proposer, or of the ages."""
        if isinstance(event, events.ImagesPulled):
            for proposer in self._proposers:
                proposer.note_images(event.uid, event.node, event.refusal)
            return
        for uid in self._state.ages.judge(event.owner, exists=event.workload is not None):
            self._put_pod(self._cluster.pods[uid])
        for proposer in self._proposers:
            proposer.note_owner(event.owner, event.workload)

    def _note_records(self, event: events.InstasliceVersionsReset | events.InstasliceKindMissing) -> None:
        """Takes in what concerns the Instaslice objects of all nodes."""
        if isinstance(event, events.InstasliceVersionsReset):
            self._cluster.reset_instaslice_versions()
            return
        self._state.inventory.fleet.missing_kind = INSTASLICES.label if event.missing else ""
        self._cluster.capacity_changes.room_may_have_grown_anywhere()

    def _observe_record(self, event: events.RecordObserved | events.RecordsListed) -> None:
        kind = self._kinds.by_name[event.kind]
        if isinstance(event, events.RecordObserved):
            kind.observe(event.item, deleted=event.deleted)
        else:
            kind.note_listed()

    def find_orphans(self) -> None:
        """Notes objects of nodes that were deleted while no controller led. Runs once, at the start."""
        if not self._orphans_found:
            self._orphans_found = True
            for node in sorted(self._cluster.objects.keys() - self._cluster.nodes.keys()):
                self._cluster.note_orphan(node)

    def _put_pod(self, pod: PodInfo) -> None:
        for kind in self._kinds.having["read"]:
            pod = kind.read(pod)
        if pod.gated and pod.kind.name in self._kinds.asleep:
            self._kinds.wake(pod.kind.name)
        if not self._state.last_gates.issuperset(LAST_GATES) and pod.gates:
            pod = replace(pod, last_gates=self._state.last_gates)
        known = pod.uid in self._cluster.pods
        competes = pod.terminating and self._competes(pod.uid)
        self._cluster.put_pod(self._state.ages.observe(pod, self._state.now, known=known, competes=competes))
        if pod.gang is not None or self._state.gangs.known:
            self._state.gangs.observe(self._cluster.pods[pod.uid])

    def _drop_pod(self, uid: PodUid) -> None:
        pod = self._cluster.pods.get(uid)
        self._state.ages.forget(uid, pod, self._state.now, competes=self._competes(uid))
        self._state.gangs.drop(uid)
        self._cluster.drop_pod(uid)
        for kind in self._kinds.having["forget"]:
            kind.forget(uid)

    def _competes(self, uid: PodUid) -> bool:
        """True if planning found that a waiting pod lacks nothing but room."""
        reason = self._state.pods.reason_of(uid)
        return reason is not None and competes_for_room(reason) and not self._state.ages.is_idle(uid)

    def _set_last_gates(self, gates: frozenset[str]) -> None:
        if self._state.last_gates != gates:
            self._state.last_gates = gates
            for pod in list(self._cluster.pods.values()):
                if not LAST_GATES.keys().isdisjoint(pod.gates):
                    self._put_pod(replace(pod, last_gates=gates))

    def _put_namespace(self, name: str, labels: Mapping[str, str] | None) -> None:
        placed = self._cluster.placed_pods
        before = (placed.namespace_label(name, QUEUE_LABEL), self._cluster.is_managed(name))
        self._cluster.put_namespace(name, labels)
        if (placed.namespace_label(name, QUEUE_LABEL), self._cluster.is_managed(name)) != before:
            self._follow_namespace(name)
        self._kinds.observe_namespace(name)

    def _put_queue(self, queue: Queue) -> None:
        known = self._cluster.queues.get(queue.name)
        if known is not None and known.version > queue.version:
            return
        self._state.ledger.put(queue, self._state.now)
        rules = (queue.weight, queue.guaranteed, queue.maximum, queue.namespaces)
        if known is None or rules != (known.weight, known.guaranteed, known.maximum, known.namespaces):
            self._follow_queues()
        spare = (queue.spare, queue.auto, queue.waiting_price)
        self._state.reservations_due |= known is None or spare != (known.spare, known.auto, known.waiting_price)

    def _follow_queues(self) -> None:
        """After a change of a Queue object, counts every pod for its queue again, and plans all waiting pods again."""
        self._count_again(self._cluster.pods.keys())

    def _follow_namespace(self, name: str) -> None:
        """After a change of a namespace's label, counts its pods for their queue again, and plans waiting pods again.

        Whoever creates namespaces can do this often, so pods of other namespaces are left alone.
        """
        found = {uid for uid, pod in self._cluster.pods.items() if pod.namespace == name}
        if found:
            self._count_again(found)

    def _count_again(self, pods: Iterable[PodUid]) -> None:
        self._cluster.changed_pods.update(pods)
        self._cluster.capacity_changes.room_may_have_grown_anywhere()
        self._state.pods.relieve_all()  # what is reserved for these pods may count for another queue now

    def _pass_time(self, now: float, date: float) -> None:
        self._state.now, self._state.monotonic = date, now
        dues = (each.next_due for each in self._proposers)
        self._state.reservations_due |= any(due is not None and due <= date for due in dues)
        if self._state.avoidance.refusals:
            self._end_avoidance(now)

    def _end_avoidance(self, now: float) -> None:
        for node in self._state.avoidance.expire(now):
            self._cluster.capacity_changes.room_may_have_grown(node)
        owners = self._state.avoidance.expire_pauses(now)
        for uid in self._state.waiting if owners else ():
            if self._cluster.pods[uid].avoids_as in owners:
                self._state.pods.forget_refusal(uid)

    # Outcomes of writes

    def _observe_outcome(self, event: events.SlicerEvent) -> None:
        match event:
            case events.WriteDone(write):
                self._finish(write)
            case events.WriteRefused(write, reason):
                self._note_refusal(write, reason)
            case events.WriteOutcomeUnknown(Evict(uid=uid)):
                for proposer in self._proposers:
                    proposer.note_no_answer(uid)
            case events.WriteOutcomeUnknown():
                pass
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
        elif isinstance(write, PatchRecord) and write.drop and self._is_record(write):
            self._settlement.allocations.note_sent(write.node, [write.uid], sent=False)
        self._state.busy.discard(write.key)
        self._mark_affected(write)

    def _note_refusal(self, write: Write, reason: str) -> None:
        """The server refused a write for a reason; it is tried again, or not, when its retry is due."""
        if isinstance(write, PatchRequests):
            self._settlement.allocations.note_sent(write.node, write.put, sent=False)
        elif isinstance(write, PatchRecord) and not write.drop and self._is_record(write):
            self._settlement.allocations.note_sent(write.node, [write.uid], sent=False)
        elif isinstance(write, Evict):
            for proposer in self._proposers:
                self._settlement.settle(proposer.note_refusal(write.uid, reason))

    def _is_record(self, write: PatchRecord) -> bool:
        """True if the write is the record of a place, and no write beside it."""
        return self._kinds.by_name[write.kind].kind.record is Record.OTHER

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
        if allocation is not None and not pod.kind.needs_gate and not pod.gates and not pod.node:
            self._state.avoidance.add(pod.avoids_as, allocation.node, avoid_until)
            yield Return(allocation)  # nothing holds the pod there, so it is placed elsewhere
        elif allocation is not None and (pod.gates or not pod.owner):
            text: Callable[[PodInfo, str], str] = unbound_text if pod.gates else withdrawn_text
            yield Withdrawal(pod, allocation, text(pod, allocation.node))
        elif pod.owner:
            yield from self._replace(pod, allocation.node if allocation is not None else pod.node, avoid_until)

    def _replace(self, pod: PodInfo, node: NodeName, avoid_until: float) -> Iterable[Proposal]:
        """Has a pod's owner make it anew; ``node`` is the one that refuses it, empty if its slices are gone already."""
        # Cards that a pod of another namespace took count as taken, so the node needs no avoidance.
        outrun = any(f"Insufficient {each}" in pod.unschedulable_message for each in set(pod.devices))
        avoided = bool(node) and not self._state.agent_is_down(node) and not outrun
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
