"""The life of promises: brings them in line with what was observed, and says which pods wait. No I/O.

Three rules:

- :func:`tessera.controller.slicing.allocation.next_step` says what happens next with a promise.
  A new process that observes the same objects goes on where the old one died.
- A slot is free again only when the agent says so, or when nothing was ever written about it.
- A pod that runs without a promise is promised what its node's agent says that it holds (after a new installation, for
  instance), if that is what the pod asks for.
"""

from tessera.api.instaslice import Instaslice, NodeResources, find_misfit
from tessera.api.names import NodeName, PodUid
from tessera.controller.objects.node_info import AgentState
from tessera.controller.objects.pod_info import PodInfo
from tessera.controller.slicing.allocation import (
    Allocation,
    adopt_record,
    is_wanted,
    observe_record,
    recorded_uids,
    slices_held_by,
)
from tessera.controller.slicing.instructions import RecordEvent, WriteKey
from tessera.controller.slicing.planner import Planner
from tessera.mig.names import resource_spelling
from tessera.placement.reasons import Reason


class Promises(Planner):
    """Promises and pods that wait, as far as observations and answers to writes go.

    Attributes:
        waiting: pods that wait for a place, with the reason once planning refused them.
        refused_pods: pods that cannot start where they have promised slices: the scheduler refuses them there, or they
            are bound, and the node's agent is gone.
        faults: nodes whose Instaslice object breaks a rule, with what is wrong. Such a node gets no promises and
            nothing is written about those that it has; the last state without a fault counts until the object is right.
    """

    def __init__(self) -> None:
        super().__init__()
        self.waiting: dict[PodUid, Reason | None] = {}
        self.faults: dict[NodeName, str] = {}
        self.refused_pods: set[PodUid] = set()
        self._cards: dict[NodeName, NodeResources] = {}
        self._makes: dict[NodeName, frozenset[str]] = {}
        self._due: set[NodeName] = set()
        self._busy: set[WriteKey] = set()
        self._last_event: dict[PodUid, str] = {}
        self._denied: dict[PodUid, PodInfo] = {}
        self._events: list[RecordEvent] = []
        self._dependent: set[PodUid] = set()
        self._withdrawn: dict[PodUid, str] = {}
        self._reports: set[PodUid] = set()

    def _absorb(self, node: NodeName) -> None:
        """Brings promises and cards of one node in line with its object and its state."""
        item = self.objects.get(node)
        facts = self.nodes.get(node)
        fault = self._fault(node, item)
        if fault:
            self.faults[node] = fault
        else:
            self.faults.pop(node, None)
        new_records = not fault and self._absorb_records(node, item)
        sliced = item is not None and facts is not None and facts.offers_on_demand and not fault
        resources = item.status.node_resources if item is not None and sliced else None
        if resources is None:
            if self._cards.pop(node, None) is not None:
                del self._makes[node]
                self.inventory.remove(node)
        elif new_records or self._cards.get(node) != resources:
            self._cards[node] = resources
            self._makes[node] = resources.profiles
            self._rebuild(node, resources)
            self._changed_pods |= {PodUid(each.pod_uid) for each in resources.foreign} & self.pods.keys()
        self._due.add(node)
        for allocation in self.ledger.on(node):
            self._review(allocation)
            self._note_refusal(allocation.uid, self.pods.get(allocation.uid))

    def _fault(self, node: NodeName, item: Instaslice | None) -> str:
        """The rule that a node's object breaks; empty if it breaks none, or there is none."""
        error = self.unreadable.get(node)
        if error is not None or item is None:
            return error or ""
        return find_misfit(item) or self.inventory.geometries.fault(item.status.node_resources)

    def _absorb_records(self, node: NodeName, item: Instaslice | None) -> bool:
        """Takes over an object's entries; returns whether one of them is new to this process."""
        new_records = False
        if item is not None:
            for uid in recorded_uids(item):
                if self.ledger.get(node, uid) is None:
                    self.ledger.add(adopt_record(node, uid, item, self.pods.get(uid)))
                    self._changed_pods.add(uid)
                    new_records = True
        for allocation in self.ledger.on(node):
            if item is not None:
                observe_record(allocation, item)
                if allocation.asked_back and not allocation.given_up:
                    self._give_up(allocation)  # what a process before this one began
            else:
                allocation.sent = allocation.requested = False
                allocation.result = None
            self._settle(allocation, gone=item is None)
        return new_records

    def _settle(self, allocation: Allocation, *, gone: bool) -> None:
        """Frees what is destroyed, and forgets what is neither wanted nor recorded."""
        pod = self.pods.get(allocation.uid)
        if is_wanted(allocation, pod) and not (gone and pod is not None and pod.gated):
            return
        if allocation.destroyed or not allocation.recorded:
            self._free(allocation)
        if not allocation.recorded:
            self._forget(allocation)

    def _rebuild(self, node: NodeName, resources: NodeResources) -> None:
        self.growth.room_may_have_grown(node)
        held = [one for one in self.ledger.on(node) if not one.freed]
        held.sort(key=self._standing)
        for allocation in self.inventory.rebuild(node, resources, held):
            pod = self.pods.get(allocation.uid)
            if pod is None or pod.gated:
                self._give_up(allocation)

    def _standing(self, allocation: Allocation) -> tuple[bool, bool, bool]:
        """Who keeps a slot that two records claim: first a pod that runs, then what exists, then what is recorded."""
        pod = self.pods.get(allocation.uid)
        exists = allocation.result is not None and allocation.result[1] == "created"
        return (pod is None or pod.gated, not exists, not allocation.recorded)

    def _absorb_pod(self, uid: PodUid) -> None:
        pod = self.pods.get(uid)
        if self._denied.get(uid) != pod:
            self._denied.pop(uid, None)
        if pod is not None:
            self._choose(pod)
            self._record_again(pod)
            self._report_fault(pod)
        for allocation in self.ledger.of(uid):
            self._settle(allocation, gone=False)
            self._due.add(allocation.node)
            self._review(allocation)
        self._note_refusal(uid, pod)
        self._reports.add(uid)
        self.growth.forget_refusal(uid)
        self._queue(uid)
        self._charge(uid)
        if pod is not None and pod.finished and not self.ledger.of(uid):
            self.lose_pod(uid)
            self._changed_pods.discard(uid)

    def _record_again(self, pod: PodInfo) -> None:
        """Promises a pod on a node what it holds there by the agent's word, if no promise to it is left."""
        resources = self._cards.get(pod.node) if pod.profiles and not pod.finished else None
        if resources is None or self.ledger.of(pod.uid):
            return
        slices = slices_held_by(resources, pod.uid)
        if sorted(resource_spelling(each.profile) for each in slices) != sorted(pod.profiles):
            return
        allocation = Allocation(pod.node, pod.uid, pod.namespace, pod.name, slices, pod.amounts)
        if self.inventory.take_over(allocation):
            self._enter(allocation)

    def _enter(self, allocation: Allocation) -> None:
        """Counts a promise whose slots are taken."""
        self.ledger.add(allocation)
        self._leave(allocation.uid)
        self._last_event.pop(allocation.uid, None)
        self._withdrawn.pop(allocation.uid, None)
        self._reports.add(allocation.uid)
        self._charge(allocation.uid)
        self._due.add(allocation.node)

    def _note_refusal(self, uid: PodUid, pod: PodInfo | None) -> None:
        promised = pod is not None and not pod.terminating and self.ledger.current_of(uid) is not None
        if (
            pod is not None
            and promised
            and (pod.unschedulable_message or (pod.unstarted and self._agent_down(pod.node)))
        ):
            self.refused_pods.add(uid)
        elif uid in self.refused_pods:
            self.refused_pods.remove(uid)
            if pod is not None and pod.node:
                self._withdrawn.pop(uid, None)
                self._reports.add(uid)

    def _agent_down(self, node: NodeName) -> bool:
        facts = self.nodes.get(node)
        return facts is not None and facts.agent is AgentState.DOWN

    def _report_fault(self, pod: PodInfo) -> None:
        if pod.fault and pod.gated and self._last_event.get(pod.uid) != pod.fault:
            self._last_event[pod.uid] = pod.fault
            self._record_event(pod, "SliceRefused", pod.fault, warning=True)

    def _choose(self, pod: PodInfo) -> None:
        """Keeps one of several promises to a pod: where it must run, else the one furthest on."""
        live = [one for one in self.ledger.of(pod.uid) if not one.given_up]
        home = self.home_of(pod)
        live.sort(key=lambda one: (one.node != home, one.result is None, not one.requested))
        for index, allocation in enumerate(live):
            if index or (home is not None and allocation.node != home):
                self._give_up(allocation)

    def _review(self, allocation: Allocation) -> None:
        """Gives a promise up while its pod is still ours, if the pod could not run there any more."""
        pod = self.pods.get(allocation.uid)
        if pod is None or allocation.given_up:
            return
        if self._is_withdrawn(pod):
            self._give_up(allocation)  # what a process before this one began
            return
        if not pod.gated or ("pod", pod.uid) in self._busy:
            return
        able = self.index.open_to(pod.constraints) & self.index.mask_of(allocation.node)
        if pod.terminating or not allocation.slices or not able or allocation.node in self.faults:
            self._give_up(allocation)

    def _give_up(self, allocation: Allocation) -> None:
        allocation.given_up = True
        self._due.add(allocation.node)
        self._settle(allocation, gone=False)
        self._queue(allocation.uid)
        self._charge(allocation.uid)

    def _free(self, allocation: Allocation) -> None:
        if not allocation.freed:
            allocation.freed = True
            self.inventory.release(allocation)
            self.growth.room_may_have_grown(allocation.node)

    def _forget(self, allocation: Allocation) -> None:
        self.ledger.remove(allocation)
        self._changed_pods.add(allocation.uid)
        if allocation.uid in self.waiting:
            self.growth.room_may_have_grown(allocation.node)  # the node that took its slices back is open to it again

    # Who waits

    def _queue(self, uid: PodUid) -> None:
        pod = self.pods.get(uid)
        if pod is None or not self._waits(pod):
            self._leave(uid)
            if pod is None:
                self._last_event.pop(uid, None)
                self._withdrawn.pop(uid, None)
        elif uid not in self.waiting:
            self.waiting[uid] = None

    def _leave(self, uid: PodUid) -> None:
        """A pod waits no more."""
        self.waiting.pop(uid, None)
        self._dependent.discard(uid)
        self.neighbours.unwatch(uid)
        self.growth.forget_refusal(uid)

    def _waits(self, pod: PodInfo) -> bool:
        if self.ledger.current_of(pod.uid) is not None or pod.uid in self._denied:
            return False
        if self._is_withdrawn(pod):
            return False
        if pod.ready_to_place:
            return True
        ours = bool(pod.profiles) and not pod.finished and not pod.terminating
        home = self.home_of(pod)
        return ours and home is not None and home in self._cards

    def _is_withdrawn(self, pod: PodInfo) -> bool:
        """Whether slices of a pod were taken back, and the scheduler has not bound it after all."""
        return not pod.gated and not pod.node and (pod.slices_withdrawn or pod.uid in self._withdrawn)

    def _charge(self, uid: PodUid) -> None:
        """Counts what a pod holds on its node: where it is bound, else where it was promised a place."""
        pod = self.pods.get(uid)
        home: NodeName | None = None
        if pod is not None and not pod.finished:
            live = self.ledger.current_of(uid)
            home = pod.node or (live.node if live is not None else None)
        self._index_pod(uid, pod, home)
        left = self._charges.assign(uid, home, pod.amounts if pod is not None else {})
        if left is not None and left in self._cards:
            self.growth.room_may_have_grown(left)

    def _index_pod(self, uid: PodUid, pod: PodInfo | None, home: NodeName | None) -> None:
        """Updates the index of pods on nodes with where a pod runs or is promised a place."""
        before = self.neighbours.changes
        if pod is None:
            self.neighbours.drop(uid)
        else:
            self.neighbours.put(pod, home)
        self.neighbours_changed |= self.neighbours.changes != before

    def _record_event(self, pod: PodInfo, reason: str, message: str, *, warning: bool = False) -> None:
        self._events.append(
            RecordEvent(
                uid=pod.uid, namespace=pod.namespace, name=pod.name, reason=reason, message=message, warning=warning
            )
        )
