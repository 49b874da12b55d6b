"""Step 1, for each event: takes in an observation of the cluster, or the passing of time.

What a pod or node has to do with its slices changes later, when it is absorbed.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace

from tessera.api.names import LAST_GATES, QUEUE_LABEL, PodUid
from tessera.api.queues import Queue
from tessera.controller.objects.pod_info import PodInfo
from tessera.controller.slicing.cycle.outcomes import Outcomes
from tessera.controller.slicing.planning.proposals import Proposer
from tessera.controller.slicing.state import events
from tessera.controller.slicing.state.refusals import competes_for_room
from tessera.controller.slicing.state.slicer_state import SlicerState


class Observer:
    """Brings the observed cluster up to date.

    Args:
        state: the slicer's state.
        outcomes: takes in the outcomes of writes.
        proposers: may be due once time has passed.
    """

    def __init__(self, state: SlicerState, outcomes: Outcomes, proposers: Iterable[Proposer]) -> None:
        self._state = state
        self._cluster = state.cluster
        self._outcomes = outcomes
        self._proposers = proposers
        #: True once the first decision has looked for objects without a node; this happens once.
        self._orphans_found = False

    def observe(self, event: events.SlicerEvent) -> None:
        """Takes in an event."""
        match event:
            case events.PodObserved(pod):
                self._put_pod(pod)
            case events.InstasliceObserved(item):
                self._cluster.put_object(item)
            case events.NodeObserved(node):
                self._cluster.put_node(node)
                if self._state.devices.used:
                    self._state.ratings.note(node.name)  # also after a change that wakes no pod
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
            case events.OwnerLookedUp(owner, exists):
                for uid in self._state.ages.judge(owner, exists=exists):
                    self._put_pod(self._cluster.pods[uid])
            case events.InstasliceUnreadable(name, error):
                self._cluster.set_object_error(name, error)
            case events.PodVersionsReset():
                self._cluster.reset_pod_versions()
            case events.InstasliceVersionsReset():
                self._cluster.reset_instaslice_versions()
            case events.StorageListed():
                self._cluster.note_storage_listed()
            case events.DecisionDue() | events.WritesDue():
                raise TypeError(f"{event} is no observation")
            case _:
                self._outcomes.take_in(event)

    def find_orphans(self) -> None:
        """Notes objects of nodes that were deleted while no controller led. Runs once, at the start."""
        if not self._orphans_found:
            self._orphans_found = True
            for node in sorted(self._cluster.objects.keys() - self._cluster.nodes.keys()):
                self._cluster.note_orphan(node)

    def _put_pod(self, pod: PodInfo) -> None:
        if pod.devices and pod.gated:
            self._use_devices()
        if not self._state.last_gates.issuperset(LAST_GATES) and pod.gates:
            pod = replace(pod, last_gates=self._state.last_gates)
        known = pod.uid in self._cluster.pods
        competes = pod.terminating and self._competes(pod.uid)
        self._cluster.put_pod(self._state.ages.observe(pod, self._state.now, known=known, competes=competes))
        self._state.gangs.observe(self._cluster.pods[pod.uid])

    def _drop_pod(self, uid: PodUid) -> None:
        pod = self._cluster.pods.get(uid)
        self._state.ages.forget(uid, pod, self._state.now, competes=self._competes(uid))
        self._state.gangs.drop(uid)
        self._cluster.drop_pod(uid)

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
        if self._cluster.is_managed(name):
            self._use_devices()

    def _use_devices(self) -> None:
        """Looks at whole cards and shares from now on: a pod waits for some, or a namespace is managed."""
        if not self._state.devices.used:
            self._state.devices.used = True
            self._cluster.changed_nodes |= self._cluster.nodes.keys()
            self._cluster.changed_pods |= {uid for uid, pod in self._cluster.pods.items() if pod.devices}

    def _put_queue(self, queue: Queue) -> None:
        known = self._cluster.queues.get(queue.name)
        if known is not None and known.version > queue.version:
            return
        self._state.ledger.put(queue, self._state.now)
        rules = (queue.weight, queue.guaranteed, queue.maximum, queue.namespaces)
        if known is None or rules != (known.weight, known.guaranteed, known.maximum, known.namespaces):
            self._follow_queues()

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
        for node in self._state.avoidance.expire(now):
            self._cluster.capacity_changes.room_may_have_grown(node)
        owners = self._state.avoidance.expire_pauses(now)
        for uid in self._state.waiting if owners else ():
            if self._cluster.pods[uid].owner in owners:
                self._state.pods.forget_refusal(uid)
        self._state.now = date
        dues = (each.next_due for each in self._proposers)
        self._state.reservations_due |= any(due is not None and due <= date for due in dues)
