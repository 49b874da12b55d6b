"""The slicer as a state machine: observations in, instructions out, no I/O and no clock.

Rules:

- All knowledge comes from observations (:mod:`tessera.controller.cluster.cluster_state`). The server's answer to a
  write is an observation like any other.
- :meth:`Slicer.decide` is called when observations have arrived; it absorbs all of them
  (:mod:`tessera.controller.slicing.promises`) and plans everything that waits in one batch
  (:mod:`tessera.controller.slicing.planner`). Nothing is written before that.
- :meth:`Slicer.take` says what to write now. For each half of a node's object, and for each pod, one write is in
  flight at most; what becomes due meanwhile is merged into the next one.
"""

from collections.abc import Iterable, Iterator, Sequence

from tessera.api.instaslice import Instaslice
from tessera.api.names import NodeName, PodUid
from tessera.controller.objects.node_info import read_node
from tessera.controller.objects.pod_info import PodInfo, read_pod
from tessera.controller.slicing.allocation import Allocation, AllocationStep, next_step
from tessera.controller.slicing.batch_placement import Placed, Unplaced, first_batch, place
from tessera.controller.slicing.instructions import (
    DeleteObject,
    Evict,
    Instruction,
    PatchRequests,
    RecordEvent,
    ReportNodeCondition,
    ReportPodCondition,
    Ungate,
    Write,
)
from tessera.controller.slicing.messages import (
    fixed_layout_text,
    lost_slices_text,
    object_fault_text,
    waiting_text,
    withdrawn_text,
)
from tessera.controller.slicing.pending_writes import PendingNodeWrites, add_step
from tessera.controller.slicing.planner import depends_on_pods_or_volumes
from tessera.controller.slicing.promises import Promises
from tessera.kube.resources import Node, Pod
from tessera.limits import DECISION_STEPS
from tessera.placement.reasons import Reason
from tessera.placement.step_budget import StepBudget


class Slicer(Promises):
    """State of the whole cluster's slices.

    Attributes:
        decisions: promises made so far.
        work: steps of planning taken so far.
    """

    def __init__(self) -> None:
        super().__init__()
        self.decisions = 0
        self.work = 0
        self._reported: dict[NodeName, str] = {}
        self._serving: dict[tuple[str, ...], tuple[int, int]] = {}
        self._begun = False
        self._opened: set[PodUid] = set()
        self._evict: dict[PodUid, Evict] = {}

    # Answers to instructions

    def done(self, write: Write) -> None:
        """The server did it. What it made of it has been observed before."""
        if isinstance(write, ReportNodeCondition):
            self._reported[write.node] = write.text
        elif isinstance(write, PatchRequests):
            for uid in write.drop:
                allocation = self.ledger.get(write.node, uid)
                if allocation is not None:
                    allocation.sent = False
        self._busy.discard(write.key)
        self._touch(write)

    def unknown_outcome(self, write: Write) -> None:
        """Nobody knows whether the server did it, or it could not now. The key stays busy until :meth:`retry`."""

    def refused(self, write: Write) -> None:
        """The server did not do it, for a reason that passes. The key stays busy until :meth:`retry`."""
        if isinstance(write, PatchRequests):
            for uid in write.put:
                allocation = self.ledger.get(write.node, uid)
                if allocation is not None:
                    allocation.sent = False

    def retry(self, write: Write) -> None:
        """The pause after a failure is over; what is still due will be asked again."""
        self._busy.discard(write.key)
        self._touch(write)

    def deny(self, write: Ungate, why: str) -> None:
        """The server will never ungate the pod like that; it is left alone until it changes."""
        self._busy.discard(write.key)
        pod = self.pods.get(write.uid)
        if pod is None:
            return
        self._denied[write.uid] = pod
        self._record_event(pod, "SliceRefused", f"The pod cannot be pinned to its node: {why}", warning=True)
        allocation = self.ledger.current_of(write.uid)
        if allocation is not None:
            self._give_up(allocation)

    def reconsider(self, uid: PodUid) -> None:
        """A pod that was left alone after :meth:`deny` may be tried again."""
        if self._denied.pop(uid, None) is not None:
            self._changed_pods.add(uid)

    def take_back(self, uid: PodUid, avoid_until: float) -> None:
        """Gives the slices of a refused pod to somebody else, if it is refused still.

        A pod that somebody makes anew is evicted; the promise ends with it. Any other one stays, without slices, and
        has a condition that says so. Should the scheduler bind it after all, it is planned like any pod that is bound:
        it gets slices if there is room. One that is bound already keeps its slices: it starts once the agent serves.

        No owner avoids a node because its agent is gone: nothing is promised there until the agent serves again.

        Args:
            uid: the pod.
            avoid_until: up to when its owner's pods avoid the node.
        """
        pod, allocation = self.pods.get(uid), self.ledger.current_of(uid)
        if pod is None or allocation is None or uid not in self.refused_pods or ("pod", uid) in self._busy:
            return
        if pod.node and uid in self._withdrawn:
            return
        served = not self._agent_down(allocation.node)
        text = withdrawn_text(pod, allocation.node, avoided=served)
        stays = bool(pod.node) and not pod.owner
        self._record_event(pod, "AgentNotReady" if stays else "SliceTakenBack", text, warning=True)
        if pod.owner:
            if served:
                self.avoidance.add(pod.owner, allocation.node, avoid_until)
            self._evict[uid] = Evict(uid=uid, namespace=pod.namespace, name=pod.name, version=pod.version)
        else:
            self._withdrawn[uid] = text
            self._reports.add(uid)
            if not stays:
                self._give_up(allocation)

    def end_avoidance(self, now: float) -> None:
        """Nodes that were avoided long enough are open again."""
        for node in self.avoidance.expire(now):
            self.growth.room_may_have_grown(node)

    def _touch(self, write: Write) -> None:
        if isinstance(write, Evict):
            return
        if isinstance(write, ReportPodCondition):
            self._reports.add(write.uid)
        elif isinstance(write, Ungate):
            self._changed_pods.add(write.uid)  # nobody reviewed the promise while the write was under way
            allocation = self.ledger.current_of(write.uid)
            if allocation is not None:
                self._due.add(allocation.node)
        else:
            self._due.add(write.node)

    # Deciding

    @property
    def has_work(self) -> bool:
        """Tells if there is something new to decide."""
        if self._changed_nodes or self._changed_pods or (self.neighbours_changed and self._dependent):
            return True
        return self.growth.concerns_any_of(self.waiting)

    def decide(self) -> None:
        """Absorbs what was observed, then plans what waits, as much of it as one step may cost.

        While :attr:`has_work`, there is more to do; the process does other things in between.
        """
        self._sweep()
        nodes, self._changed_nodes = self._changed_nodes, set()
        if nodes:
            self._serving.clear()
        for node in sorted(nodes):
            self._absorb(node)
        pods, self._changed_pods = self._changed_pods, set()
        for uid in sorted(pods):
            self._absorb_pod(uid)
        self._follow_neighbours()
        candidates = [self.pods[uid] for uid in self.growth.candidates(self.waiting)]
        if candidates:
            self._plan(first_batch(candidates))

    def _sweep(self) -> None:
        """Once, at the start: objects of nodes that went away while nobody looked."""
        if not self._begun:
            self._begun = True
            for node in sorted(self.objects.keys() - self.nodes.keys()):
                self._orphan(node)

    def _plan(self, pods: Sequence[PodInfo]) -> None:
        since = {pod.uid: self.growth.nodes_changed_since_refusal(pod.uid) for pod in pods}
        work = StepBudget(DECISION_STEPS)
        with self._judging(work) as judges:
            found = place(pods, self._surroundings(since, judges), work)
            dependent = {
                one.pod.uid
                for one in found
                if isinstance(one, Unplaced) and depends_on_pods_or_volumes(one.pod, judges)
            }
        self.work += DECISION_STEPS - work.left
        for one in found:
            if isinstance(one, Placed):
                self._promise(one)
            else:
                self._refuse(one.pod, one.reason, dependent=one.pod.uid in dependent)

    def _follow_neighbours(self) -> None:
        """Pods that others or volumes kept from a node are asked anew about all nodes once such a thing has changed."""
        if self.neighbours_changed:
            self.neighbours_changed = False
            for uid in self._dependent:
                self.growth.forget_refusal(uid)

    def _promise(self, placed: Placed) -> None:
        pod = placed.pod
        allocation = Allocation(placed.node, pod.uid, pod.namespace, pod.name, placed.slices, pod.amounts)
        taken = self.inventory.occupy(allocation)
        assert taken, f"planned slots of {pod.key} on {placed.node} are taken"
        self._enter(allocation)
        self.decisions += 1

    def _refuse(self, pod: PodInfo, reason: Reason | None, *, dependent: bool) -> None:
        self.growth.note_refusal(pod.uid)
        if pod.gated and self._for_fixed(pod):
            self._leave(pod.uid)
            self._opened.add(pod.uid)
            return
        if dependent:
            self._dependent.add(pod.uid)
            self.neighbours.watch(pod.uid, pod.relations)
        if reason is None:
            return
        self.waiting[pod.uid] = reason
        if self._last_event.get(pod.uid) == type(reason).__name__:
            return
        self._last_event[pod.uid] = type(reason).__name__
        if self.home_of(pod) is None:
            self._record_event(pod, "SliceWaiting", waiting_text(pod, reason))
        else:
            self._record_event(pod, "SliceLost", lost_slices_text(pod, reason), warning=True)

    def _for_fixed(self, pod: PodInfo) -> bool:
        """Whether only nodes with a fixed layout can serve a pod; they may have come after it was gated."""
        if not self._fixed:
            return False
        if pod.profiles not in self._serving:
            made = (name for name, profiles in self._makes.items() if profiles.issuperset(pod.profiles))
            fixed = (name for name in self._fixed if self.nodes[name].fixed_profiles.issuperset(pod.profiles))
            self._serving[pod.profiles] = (self._mask(made), self._mask(fixed))
        made_on, fixed_on = self._serving[pod.profiles]
        selected = self.index.selected(pod.constraints)
        return not selected & made_on and bool(selected & fixed_on)

    def _mask(self, nodes: Iterable[NodeName]) -> int:
        mask = 0
        for node in nodes:
            mask |= self.index.mask_of(node)
        return mask

    # Instructions

    def pop_writes(self) -> Sequence[Instruction]:
        """What to do now. Each write is in flight from here on."""
        evictions = [each for each in self._evict.values() if each.key not in self._busy]
        orphans = [DeleteObject(node=node, uid=uid) for node, uid in self._orphans]
        found: list[Instruction] = [*self._openings(), *self._events, *orphans, *evictions, *self._pod_reports()]
        self._events, self._orphans, self._evict = [], [], {}
        due, self._due = self._due, set()
        for node in sorted(due):
            found += self._writes(node)
        for write in found:
            if not isinstance(write, RecordEvent):
                self._busy.add(write.key)
        return found

    def _writes(self, node: NodeName) -> Iterable[Write]:
        report = self._report(node)
        if node not in self.objects or node in self.faults:
            return report
        due = PendingNodeWrites(node=node)
        for allocation in self.ledger.on(node):
            pod = self.pods.get(allocation.uid)
            step = next_step(allocation, pod)
            if step is AllocationStep.FORGET:
                self._free(allocation)
                self._forget(allocation)
            elif step is not AllocationStep.UNGATE:
                add_step(due, allocation, step)
            elif pod is not None and ("pod", pod.uid) not in self._busy:
                due.ungate.append(self._ungate(allocation, pod))
        writes = [write for write in due.writes() if write.key not in self._busy]
        for write in writes:
            if isinstance(write, PatchRequests):
                for uid in write.put:
                    self._sent(node, uid)
        return [*report, *writes]

    def _report(self, node: NodeName) -> Sequence[ReportNodeCondition]:
        """Writes the node's condition about its Instaslice object where it differs from the state."""
        facts = self.nodes.get(node)
        if facts is None:
            self._reported.pop(node, None)
            return ()
        fault = self.faults.get(node)
        text = object_fault_text(node, fault) if fault else ""
        if text == self._reported.get(node, facts.object_fault) or ("condition", node) in self._busy:
            return ()
        return (ReportNodeCondition(node=node, text=text),)

    def _pod_reports(self) -> Iterator[ReportPodCondition]:
        """Writes the condition of pods whose slices were taken back, or given again."""
        due, self._reports = self._reports, set()
        for uid in sorted(due):
            pod = self.pods.get(uid)
            if pod is None or pod.finished or pod.terminating or ("pod-condition", uid) in self._busy:
                continue
            text = self._withdrawn.get(uid, "")
            again = bool(pod.node) and self.ledger.current_of(uid) is not None and uid not in self.refused_pods
            if (text and not pod.slices_withdrawn) or (again and pod.slices_withdrawn):
                reason = "SlicePromised" if not text else "AgentNotReady" if pod.node else "SliceTakenBack"
                yield ReportPodCondition(uid=uid, namespace=pod.namespace, name=pod.name, reason=reason, text=text)

    def _openings(self) -> Sequence[Ungate]:
        """The pods that are left to the scheduler. One whose write is under way comes again when that is answered."""
        opened, self._opened = self._opened, set()
        found = []
        for uid in sorted(opened):
            pod = self.pods.get(uid)
            if pod is not None and pod.gated and ("pod", uid) not in self._busy:
                self._record_event(pod, "SliceFixed", fixed_layout_text(pod))
                found.append(Ungate(uid=uid, namespace=pod.namespace, name=pod.name))
        return found

    def _sent(self, node: NodeName, uid: PodUid) -> None:
        allocation = self.ledger.get(node, uid)
        if allocation is not None:
            allocation.sent = True

    def _ungate(self, allocation: Allocation, pod: PodInfo) -> Ungate:
        hostname = self.nodes[allocation.node].hostname
        return Ungate(uid=pod.uid, namespace=pod.namespace, name=pod.name, hostname=hostname)


def slicer_from_objects(pods: Iterable[Pod], nodes: Iterable[Node], instaslices: Iterable[Instaslice]) -> Slicer:
    """The state as it follows from what is stored, with everything that waits planned once."""
    slicer = Slicer()
    for node in nodes:
        slicer.see_node(read_node(node))
    for pod in pods:
        slicer.see_pod(read_pod(pod))
    for item in instaslices:
        slicer.see_object(item)
    slicer.decide()
    while slicer.has_work:
        slicer.decide()
    return slicer
