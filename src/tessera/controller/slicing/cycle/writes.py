"""Step 6: the due writes, in as few requests as possible: for a node one patch of the spec and one of the status.

At most one write is in flight for each half of a node's object, and for each pod. A change that becomes due meanwhile
is part of the next write.

The status of Queue objects has what their pods hold, their decayed usage, and fields that are wrong. Decayed usage must
survive the controller, so it is in the status. It changes all the time; so each status is written at most once in
:data:`REPORT_SECONDS`, and only if what people see has changed, or the usage by more than a slot.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tessera.api.instaslice import AllocationRequest, AllocationResult
from tessera.api.names import QUEUE_LABEL, NodeName, PodUid
from tessera.api.queues import QUEUE_MODELS, Queue
from tessera.controller.objects.pod_info import PodInfo
from tessera.controller.slicing.cycle.settle import Allocations
from tessera.controller.slicing.gangs import GangPlanner, GangState
from tessera.controller.slicing.kinds import Kinds
from tessera.controller.slicing.state.allocation import (
    Allocation,
    AllocationStep,
    make_deleting_result,
    make_request,
    next_step,
)
from tessera.controller.slicing.state.instructions import (
    DeleteObject,
    Instruction,
    PatchRecord,
    PatchRequests,
    PatchResults,
    RecordEvent,
    ReportNodeCondition,
    ReportPodCondition,
    ReportQueue,
    Ungate,
    Write,
)
from tessera.controller.slicing.state.messages import fixed_layout_text, object_fault_text
from tessera.controller.slicing.state.node_records import (
    MOVES_ANNOTATION,
    RESERVATIONS_ANNOTATION,
    format_moves,
    format_reservations,
)
from tessera.controller.slicing.state.reservation_rules import count_spares, spare_fault
from tessera.controller.slicing.state.slicer_state import SlicerState
from tessera.controller.slicing.state.waiting_pod import PodState

#: Least seconds between two writes of one status.
REPORT_SECONDS = 60.0


class QueueReports:
    """Decides when the status of a queue is written.

    Args:
        state: the slicer's state, which this class only reads.
    """

    def __init__(self, state: SlicerState) -> None:
        self._state = state
        #: By queue, when its status was last written.
        self._written: dict[str, float] = {}
        #: Time of the next look at the queues.
        self._next = 0.0

    @property
    def next_due(self) -> float | None:
        """Time of the next look, seconds since 1970; None while the time is unknown."""
        return self._next if self._state.now else None

    def pop(self) -> Iterator[ReportQueue]:
        """Yields the writes that are due."""
        state = self._state
        if not state.now or state.now < self._next:
            return
        self._next = state.now + REPORT_SECONDS
        waiting = Counter(state.cluster.queue_of(pod) for pod in map(self._pod, state.waiting) if pod is not None)
        spares = count_spares(state)
        for name, queue in state.cluster.queues.items():
            if ("queue", name) in state.busy or self._written.get(name, 0.0) + REPORT_SECONDS > state.now:
                continue
            status = self._status(queue, waiting[name], spares.get(name, {}))
            if _differ(status, queue.recorded):
                self._written[name] = state.now
                yield ReportQueue(name=name, status={**status, "usageTime": f"{state.now:.0f}"})
        for name in self._written.keys() - state.cluster.queues.keys():
            del self._written[name]

    def _pod(self, uid: PodUid) -> Any:
        return self._state.cluster.pods.get(uid)

    def _status(self, queue: Queue, waiting: int, spares: Mapping[str, tuple[int, int]]) -> dict[str, Any]:
        account, now = self._state.ledger.account(queue.name), self._state.now
        used = account.used(queue.half_life, now)
        largest = sorted(used, key=lambda model: (-used[model], model))[:QUEUE_MODELS]
        share = self._state.ledger.share(queue.name, self._state.inventory.totals, now) * queue.weight
        return {
            "held": f"{account.gib}Gi",
            "slots": account.held.total(),
            "share": f"{100 * min(share, 99):.1f}%",
            "waiting": waiting,
            **({"spare": _spare_text(spares)} if spares else {}),
            "usage": {model: f"{used[model]:.3f}" for model in largest if used[model] >= 0.0005},
            "faults": [each[:512] for each in (*queue.faults, *self._spare_faults(queue), *self._namesake(queue.name))],
        }

    def _spare_faults(self, queue: Queue) -> Iterator[str]:
        if found := [fault for profile in queue.spare if (fault := spare_fault(self._state, profile))]:
            yield f"spec.spare: {'; '.join(found)}"

    def _namesake(self, name: str) -> Iterator[str]:
        if self._state.cluster.is_namesake(name):
            yield (
                f"namespace {name} has the name of this Queue and does not count for it: if it should, add it to"
                f" spec.namespaces, or kubectl label namespace {name} {QUEUE_LABEL}={name}"
            )


def _spare_text(spares: Mapping[str, tuple[int, int]]) -> str:
    """The spare slices that are free, of those that are wanted."""
    return ", ".join(f"{free} of {wanted} {profile}" for profile, (free, wanted) in spares.items())


def _differ(status: dict[str, Any], recorded: dict[str, Any]) -> bool:
    """True if people would see another status, or the usage differs by more than a slot."""
    usage, before = status["usage"], recorded.get("usage", {})
    before = before if isinstance(before, dict) else {}
    if any(abs(_slots(usage.get(model)) - _slots(before.get(model))) > 1 for model in {*usage, *before}):
        return True
    before = {"faults": [], **recorded}
    return any(status.get(name) != before.get(name) for name in (status.keys() | before.keys()) - {"usage", "share"})


def _slots(value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError):
        return 0.0


#: Most nodes: changed nodes that one step of the controller compares with their records, to write what differs. Some 10
#: ms; all nodes change at a start and at the first use of whole cards.
WRITTEN_NODES = 250

#: Annotations of a node's object that say what was reserved and moved there.
_ANNOTATIONS = frozenset({RESERVATIONS_ANNOTATION, MOVES_ANNOTATION})


@dataclass(slots=True)
class PendingNodeWrites:
    """Entries to write, remove or change on one node, and its pods to ungate."""

    node: NodeName
    requests: dict[PodUid, AllocationRequest] = field(default_factory=dict)
    drop_requests: list[PodUid] = field(default_factory=list)
    annotations: dict[str, str | None] = field(default_factory=dict)
    results: dict[PodUid, AllocationResult] = field(default_factory=dict)
    states: dict[PodUid, str] = field(default_factory=dict)
    drop_results: list[PodUid] = field(default_factory=list)
    ungate: list[Ungate] = field(default_factory=list)

    def writes(self) -> list[Write]:
        """Returns the writes, allocations first."""
        found: list[Write] = []
        if self.requests or self.drop_requests or self.annotations:
            drop, annotations = tuple(self.drop_requests), self.annotations
            found.append(PatchRequests(node=self.node, put=self.requests, drop=drop, annotations=annotations))
        if self.results or self.states or self.drop_results:
            found.append(
                PatchResults(node=self.node, put=self.results, state=self.states, drop=tuple(self.drop_results))
            )
        return [*found, *self.ungate]


def add_step(due: PendingNodeWrites, allocation: Allocation, step: AllocationStep) -> None:
    """Adds the entry that a step writes to the node's object; adds nothing for a step without an entry."""
    uid = allocation.uid
    match step:
        case AllocationStep.REQUEST:
            due.requests[uid] = make_request(allocation)
        case AllocationStep.DELETING if allocation.result is None:
            due.results[uid] = make_deleting_result(allocation)
        case AllocationStep.DELETING:
            due.states[uid] = "deleting"
        case AllocationStep.DROP_REQUEST:
            due.drop_requests.append(uid)
        case AllocationStep.DROP_RESULT:
            due.drop_results.append(uid)
        case _:
            pass


class PendingWrites:
    """Turns the state into the writes that are due.

    Attributes:
        is_behind: True if the last :meth:`pop` left some of many nodes to the next one.

    Args:
        state: the state that the writes follow from.
        allocations: ends allocations of which nothing is recorded any more.
        gangs: says which gangs may start.
        kinds: write the records that are theirs.
    """

    def __init__(self, state: SlicerState, allocations: Allocations, gangs: GangPlanner, kinds: Kinds) -> None:
        self._state = state
        self._cluster = state.cluster
        self._allocations = allocations
        self._gangs = gangs
        self._kinds = kinds
        #: By key, the gangs that pods with slices behind the gate belong to; looked at once for each :meth:`pop`.
        self._looks: dict[str, GangState] = {}
        self.is_behind = False
        self._queue_reports = QueueReports(state)

    @property
    def next_due(self) -> float | None:
        """Time at which the status of a queue may be due, seconds since 1970; None without queues."""
        return self._queue_reports.next_due if self._cluster.queues else None

    def pop(self) -> Sequence[Instruction]:
        """Returns the instructions to carry out now. Each write is in flight from here on."""
        evictions = [each for each in self._state.evictions.values() if each.key not in self._state.busy]
        orphans = [DeleteObject(node=node, uid=uid) for node, uid in self._cluster.orphaned_objects]
        found: list[Instruction] = [
            *self._fixed_layout_ungatings(),
            *self._ungatings_of_others(),
            *self._state.events,
            *(
                each
                for kind in self._kinds.having["repeat"]
                for event in self._state.events
                for each in kind.repeat(event)
            ),
            *orphans,
            *evictions,
            *self._pod_reports(),
            *(self._queue_reports.pop() if self._cluster.queues else ()),
        ]
        self._state.events, self._cluster.orphaned_objects, self._state.evictions = [], [], {}
        self._looks.clear()
        changed = sorted(self._state.dirty_nodes)
        due, self._state.dirty_nodes = set(changed[:WRITTEN_NODES]), set(changed[WRITTEN_NODES:])
        self.is_behind = bool(self._state.dirty_nodes)
        due |= {node for each in tuple(due) for node in self._nodes_of_gangs(each)}
        for node in sorted(due):
            found += self._writes(node)
        for write in found:
            if not isinstance(write, RecordEvent):
                self._state.busy.add(write.key)
        return found

    def _writes(self, node: NodeName) -> Iterable[Write]:
        report = self._node_report(node)
        followed = node in self._cluster.objects and node not in self._state.faults
        due = PendingNodeWrites(node=node, annotations=self._annotations(node) if followed else {})
        records: list[PatchRecord] = []
        for allocation in self._state.allocations.on(node):
            if not followed and allocation.in_object:
                continue
            pod = self._cluster.pods.get(allocation.uid)
            step = next_step(allocation, pod)
            if allocation.in_object and self._kinds.having["accompany"]:
                beside, may_go_on = self._accompany(allocation, step)
                records += beside
                if not may_go_on:
                    continue
            if step is AllocationStep.FORGET:
                self._allocations.end(allocation)
            elif step is not AllocationStep.UNGATE:
                if allocation.in_object:
                    add_step(due, allocation, step)
                else:
                    records += self._records(allocation, step)
            elif pod is not None and ("pod", pod.uid) not in self._state.busy and self._may_start(pod):
                due.ungate.append(self._ungate(allocation, pod))
        for kind in self._kinds.having["lost"]:
            records += [each for each in kind.lost(node) if each.key not in self._state.busy]
        writes = [write for write in due.writes() if write.key not in self._state.busy]
        for write in writes:
            if isinstance(write, PatchRequests):
                self._allocations.note_sent(node, write.put, sent=True)
        return [*report, *records, *writes]

    def _accompany(self, allocation: Allocation, step: AllocationStep) -> tuple[list[PatchRecord], bool]:
        """Returns the due writes beside the node's record, and True if the step need not wait for them."""
        found: list[PatchRecord] = []
        may_go_on = True
        pod = self._cluster.pods.get(allocation.uid)
        if step is AllocationStep.SETTLED and pod is not None and pod.is_held and not self._may_start(pod):
            return [], False  # its gang lacks places
        for kind in self._kinds.having["accompany"]:
            writes, is_done = kind.accompany(allocation, step)
            found += [each for each in writes if each.key not in self._state.busy]
            may_go_on &= is_done
        return found, may_go_on

    def _records(self, allocation: Allocation, step: AllocationStep) -> Iterator[PatchRecord]:
        """Yields the due write of a record that an object of its kind has."""
        write = self._kinds.by_name[allocation.kind.name].record(allocation, step)
        if write is not None and write.key not in self._state.busy:
            allocation.sent = True
            yield write

    def _look(self, pod: PodInfo | None) -> GangState | None:
        gang = self._gangs.gang_of(pod) if pod is not None and pod.gang is not None else None
        if gang is None:
            return None
        if gang.key not in self._looks:
            self._looks[gang.key] = self._gangs.look(gang)
        return self._looks[gang.key]

    def _may_start(self, pod: PodInfo) -> bool:
        found = self._look(pod)
        return found is None or found.may_start

    def _nodes_of_gangs(self, node: NodeName) -> Iterator[NodeName]:
        """Yields the nodes whose pods behind the gate may start once those of this node have their slices on record."""
        for allocation in self._state.allocations.on(node):
            found = self._look(self._cluster.pods.get(allocation.uid))
            if found is not None and found.may_start:
                yield from (each.node for each in found.holding)

    def _annotations(self, node: NodeName) -> dict[str, str | None]:
        """Returns the annotations about a node's reservations and moves that differ from the object's."""
        recorded = self._cluster.objects[node].metadata.annotations
        if not self._state.reservations and not self._state.moves and recorded.keys().isdisjoint(_ANNOTATIONS):
            return {}
        reserved = format_reservations(each for each in self._state.reservations.values() if each.node == node)
        moves = format_moves(self._state.moves.get(node, ()))
        wanted = {RESERVATIONS_ANNOTATION: reserved, MOVES_ANNOTATION: moves}
        return {name: text for name, text in wanted.items() if text != recorded.get(name)}

    def _node_report(self, node: NodeName) -> Sequence[ReportNodeCondition]:
        """Returns the write of a node's condition about its Instaslice object, if it differs from the state."""
        facts = self._cluster.nodes.get(node)
        if facts is None:
            self._state.reported_objects.pop(node, None)
            return ()
        fault = self._state.faults.get(node)
        text = object_fault_text(node, fault) if fault else ""
        if (
            text == self._state.reported_objects.get(node, facts.object_fault)
            or ("condition", node) in self._state.busy
        ):
            return ()
        return (ReportNodeCondition(node=node, text=text),)

    def _pod_reports(self) -> Iterator[ReportPodCondition]:
        """Yields the writes of pod conditions about slices that were taken back, or given again."""
        due, self._state.pods_to_report = self._state.pods_to_report, set()
        for uid in sorted(due):
            pod = self._cluster.pods.get(uid)
            if pod is None or pod.finished or pod.terminating or ("pod-condition", uid) in self._state.busy:
                continue
            one = self._state.pods.get(uid)
            text = one.told if one is not None else ""
            again = (
                bool(pod.node)
                and self._state.allocations.current_of(uid) is not None
                and self._state.pods.state_of(uid) is not PodState.STUCK
            )
            if (text and not pod.slices_withdrawn) or (again and pod.slices_withdrawn):
                reason = "SlicePromised" if not text else "AgentNotReady" if pod.node else "SliceReclaimed"
                yield ReportPodCondition(uid=uid, namespace=pod.namespace, name=pod.name, reason=reason, text=text)

    def _fixed_layout_ungatings(self) -> Sequence[Ungate]:
        """Returns the ungatings of pods that the scheduler places. A pod with a write in flight is left for later."""
        found = []
        for uid in sorted(self._state.pods.in_state(PodState.FIXED)):
            pod = self._cluster.pods.get(uid)
            if pod is not None and pod.gated and ("pod", uid) not in self._state.busy:
                self._state.add_event(pod, "SliceFixed", fixed_layout_text(pod))
                found.append(Ungate(uid=uid, namespace=pod.namespace, name=pod.name, gates=pod.later_gates))
        return found

    def _ungatings_of_others(self) -> Iterator[Ungate]:
        """Yields the ungatings of pods that ask for nothing. A pod with a write in flight is left for later."""
        for kind in self._kinds.having["let_go"]:
            for pod in kind.let_go():
                if ("pod", pod.uid) not in self._state.busy:
                    yield Ungate(uid=pod.uid, namespace=pod.namespace, name=pod.name, gates=pod.later_gates)

    def _ungate(self, allocation: Allocation, pod: PodInfo) -> Ungate:
        # A claim names its node, and may get another one as long as no scheduler has bound the pod.
        hostname = self._cluster.nodes[allocation.node].hostname if pod.kind.needs_gate else ""
        return Ungate(
            uid=pod.uid,
            namespace=pod.namespace,
            name=pod.name,
            hostname=hostname,
            gates=pod.later_gates,
            marked=allocation.by_pod,
        )
