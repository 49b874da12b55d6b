"""The slicer as a state machine: observations in, instructions out, no I/O and no clock.

Rules:

- What is known comes from observations alone (:mod:`tessera.controller.observed`) and from what the server answered to
  writes, which is an observation like any other.
- :meth:`Slicer.decide` is called when observations have arrived; it absorbs all of them and plans everything that waits
  in one batch. Nothing is written before that.
- :meth:`Slicer.take` says what to write now. For each half of a node's object, and for each pod, one write is in
  flight at most; what becomes due meanwhile is merged into the next one.
- What happens next with a promise is :func:`tessera.controller.allocation.next_step`, from the record and the pod.
  A new process that observes the same objects goes on where the old one died.
- A slot is free again only when the agent says so, or when nothing was ever written about it.
"""

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from heapq import nsmallest

from tessera.api.instaslice import Instaslice, NodeResources, misfit
from tessera.api.names import NodeName, PodUid
from tessera.controller.allocation import Allocation, Step, adopted, next_step, observe, recorded_uids, wanted
from tessera.controller.amounts import Amounts, add
from tessera.controller.charges import Charges
from tessera.controller.due import Due, collect
from tessera.controller.facts import PodFacts
from tessera.controller.instructions import (
    Evict,
    Instruction,
    Key,
    PatchRequests,
    ReportObject,
    ReportPod,
    Tell,
    Ungate,
    Write,
)
from tessera.controller.inventory import Inventory
from tessera.controller.judges import AvoidedNodes, FreeAmounts, FreeDevices, Judge, OfferedDevices
from tessera.controller.ledger import Ledger
from tessera.controller.neighbours import HostPorts, Neighbours
from tessera.controller.objections import objections
from tessera.controller.observed import Observed
from tessera.controller.placing import Placed, Surroundings, Unplaced, place, rank
from tessera.controller.refused import Avoidance
from tessera.controller.relations import NONE
from tessera.controller.volumes import Volumes
from tessera.controller.wording import fixed_text, lost_text, object_text, taken_back_text, waiting_text
from tessera.limits import BATCH_PODS, DECISION_STEPS, OPPOSING_TERMS
from tessera.placement.reasons import Reason
from tessera.placement.work import Work


class Slicer(Observed):
    """State of the whole cluster's slices.

    Attributes:
        ledger: promises, by node and by pod.
        inventory: the cards and what stands on them.
        waiting: pods that wait for a place, with the reason once planning refused them.
        decisions: promises made so far.
        work: steps of planning taken so far.
        refused_pods: pods that the scheduler refuses where they are pinned to promised slices.
        avoidance: nodes that owners of refused pods avoid.
        faults: nodes whose Instaslice object breaks a rule, with what is wrong. Such a node gets no promises, nothing
            is written about those that it has, and what its object said last goes on to count until it is mended.
    """

    def __init__(self) -> None:
        super().__init__()
        self.ledger = Ledger()
        self.inventory = Inventory()
        self.waiting: dict[PodUid, Reason | None] = {}
        self.decisions = 0
        self.work = 0
        self.faults: dict[NodeName, str] = {}
        self._reported: dict[NodeName, str] = {}
        self._cards: dict[NodeName, NodeResources] = {}
        self._makes: dict[NodeName, frozenset[str]] = {}
        self._serving: dict[tuple[str, ...], tuple[int, int]] = {}
        self._due: set[NodeName] = set()
        self._begun = False
        self._busy: set[Key] = set()
        self._told: dict[PodUid, str] = {}
        self._denied: dict[PodUid, PodFacts] = {}
        self._tell: list[Tell] = []
        self._opened: set[PodUid] = set()
        self._charges = Charges()
        self.refused_pods: set[PodUid] = set()
        self.avoidance = Avoidance()
        self._dependent: set[PodUid] = set()
        self._withdrawn: dict[PodUid, str] = {}
        self._reports: set[PodUid] = set()
        self._evict: dict[PodUid, Evict] = {}

    @property
    def used(self) -> Mapping[NodeName, Amounts]:
        """What pods and promises hold of each node besides slices."""
        return self._charges.used

    def _used_without_slices(self, node: NodeName) -> Amounts:
        """What pods hold of a node that have no slices there."""
        left = dict(self.used.get(node, {}))
        for allocation in self.ledger.on(node):
            pod = self.pods.get(allocation.uid)
            if pod is not None and not pod.finished and not allocation.given_up:
                add(left, pod.amounts, sign=-1)
        return left

    # Answers to instructions

    def done(self, write: Write) -> None:
        """The server did it. What it made of it has been observed before."""
        if isinstance(write, ReportObject):
            self._reported[write.node] = write.text
        self._busy.discard(write.key)
        self._touch(write)

    def unsure(self, write: Write) -> None:
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
        self._say(pod, "SliceRefused", f"The pod cannot be pinned to its node: {why}", warning=True)
        allocation = self.ledger.live(write.uid)
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
        it gets slices if there is room.

        Args:
            uid: the pod.
            avoid_until: up to when its owner's pods avoid the node.
        """
        pod, allocation = self.pods.get(uid), self.ledger.live(uid)
        if pod is None or allocation is None or uid not in self.refused_pods or ("pod", uid) in self._busy:
            return
        text = taken_back_text(pod, allocation.node)
        self._say(pod, "SliceTakenBack", text, warning=True)
        if pod.owner:
            self.avoidance.add(pod.owner, allocation.node, avoid_until)
            self._evict[uid] = Evict(uid=uid, namespace=pod.namespace, name=pod.name, version=pod.version)
        else:
            self._withdrawn[uid] = text
            self._reports.add(uid)
            self._give_up(allocation)

    def end_avoidance(self, now: float) -> None:
        """Nodes that were avoided long enough are open again."""
        for node in self.avoidance.end(now):
            self.growth.at(node)

    def _touch(self, write: Write) -> None:
        if isinstance(write, Evict):
            return
        if isinstance(write, ReportPod):
            self._reports.add(write.uid)
        elif isinstance(write, Ungate):
            self._changed_pods.add(write.uid)  # nobody reviewed the promise while the write was under way
            allocation = self.ledger.live(write.uid)
            if allocation is not None:
                self._due.add(allocation.node)
        else:
            self._due.add(write.node)

    # Deciding

    @property
    def stirred(self) -> bool:
        """Whether there is anything new to decide about."""
        if self._changed_nodes or self._changed_pods or (self.neighbours_changed and self._dependent):
            return True
        return self.growth.concerns(self.waiting)

    def decide(self) -> None:
        """Absorbs what was observed, then plans what waits, as much of it as one step may cost.

        While :attr:`stirred`, there is more to do; the process does other things in between.
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
            self._plan(nsmallest(BATCH_PODS, candidates, key=rank))

    def _sweep(self) -> None:
        """Once, at the start: objects of nodes that went away while nobody looked."""
        if not self._begun:
            self._begun = True
            for node in sorted(self.objects.keys() - self.nodes.keys()):
                self._orphan(node)

    def _plan(self, pods: Sequence[PodFacts]) -> None:
        since = {pod.uid: self.growth.since_refusal(pod.uid) for pod in pods}
        work = Work(DECISION_STEPS)
        with self._judging(pods) as judges:
            found = place(pods, self._surroundings(since, judges), work)
        self.work += DECISION_STEPS - work.left
        for one in found:
            if isinstance(one, Placed):
                self._promise(one)
            else:
                self._refuse(one.pod, one.reason)

    def placed(self, pods: Sequence[PodFacts]) -> Sequence[Placed | Unplaced]:
        """Where these pods would go now, together, if they waited alone; nothing is promised."""
        with self._judging(pods) as judges:
            return place(pods, self._surroundings({}, judges), Work(sys.maxsize))

    def _surroundings(
        self, since: Mapping[PodUid, frozenset[NodeName] | None], judges: Sequence[Judge]
    ) -> Surroundings:
        return Surroundings(
            fleet=self.inventory.fleet,
            nodes=self.nodes,
            index=self.index,
            judges=judges,
            ledger=self.ledger,
            home_of=self.home_of,
            grown_since=since,
        )

    def objections(self, pod: PodFacts) -> Mapping[NodeName, tuple[str, ...]]:
        """By node with sliced cards, everything besides room on its cards that keeps the pod from it."""
        nodes = [self.nodes[name] for name in map(NodeName, self.inventory.fleet.nodes) if name in self.nodes]
        with self._judging((pod,)) as judges:
            return {
                node.name: objections(pod, node, judges=judges, used=self.used.get(node.name, {}), ledger=self.ledger)
                for node in nodes
            }

    @contextmanager
    def _judging(self, pods: Sequence[PodFacts]) -> Iterator[Sequence[Judge]]:
        """The rules about what stands on nodes, for one batch; in the order of the scheduler's filters."""
        neighbours = Neighbours(self.neighbours, self.index, pods)
        volumes = (Volumes(self.storage, self.neighbours, self.index),) if self.storage_listed else ()
        try:
            yield (
                AvoidedNodes(self.avoidance),
                HostPorts(self.neighbours),
                FreeAmounts(self.nodes, self.used),
                OfferedDevices(self.nodes, self.used, self._used_without_slices),
                FreeDevices(self.nodes, self.used),
                *volumes,
                neighbours,
            )
        finally:
            neighbours.end()

    def _follow_neighbours(self) -> None:
        """Pods that others or volumes kept from a node are asked anew about all nodes once such a thing has changed."""
        if self.neighbours_changed:
            self.neighbours_changed = False
            for uid in self._dependent:
                self.growth.forget(uid)

    def _depends(self, pod: PodFacts) -> bool:
        """Whether other pods or volumes decide where a pod may run."""
        if pod.relations != NONE or pod.ports or pod.claims:
            return True
        return any(True for _ in self.neighbours.opposed(pod.namespace, pod.labels, OPPOSING_TERMS))

    def _promise(self, placed: Placed) -> None:
        pod = placed.pod
        allocation = Allocation(placed.node, pod.uid, pod.namespace, pod.name, placed.slices, pod.amounts)
        taken = self.inventory.occupy(allocation)
        assert taken, f"planned slots of {pod.key} on {placed.node} are taken"
        self.ledger.add(allocation)
        self._leave(pod.uid)
        self._told.pop(pod.uid, None)
        self._withdrawn.pop(pod.uid, None)
        self._reports.add(pod.uid)
        self._charge(pod.uid)
        self._due.add(placed.node)
        self.decisions += 1

    def _refuse(self, pod: PodFacts, reason: Reason | None) -> None:
        self.growth.refuse(pod.uid)
        if pod.gated and self._for_fixed(pod):
            self._leave(pod.uid)
            self._opened.add(pod.uid)
            return
        if self._depends(pod):
            self._dependent.add(pod.uid)
        if reason is None:
            return
        self.waiting[pod.uid] = reason
        if self._told.get(pod.uid) == type(reason).__name__:
            return
        self._told[pod.uid] = type(reason).__name__
        if self.home_of(pod) is None:
            self._say(pod, "SliceWaiting", waiting_text(pod, reason))
        else:
            self._say(pod, "SliceLost", lost_text(pod, reason), warning=True)

    def _for_fixed(self, pod: PodFacts) -> bool:
        """Whether only nodes with a fixed layout can serve a pod; they may have come after it was gated."""
        if not self._fixed:
            return False
        if pod.profiles not in self._serving:
            made = (name for name, profiles in self._makes.items() if profiles.issuperset(pod.profiles))
            fixed = (name for name in self._fixed if self.nodes[name].fixed.issuperset(pod.profiles))
            self._serving[pod.profiles] = (self._mask(made), self._mask(fixed))
        made_on, fixed_on = self._serving[pod.profiles]
        selected = self.index.selected(pod.constraints)
        return not selected & made_on and bool(selected & fixed_on)

    def _mask(self, nodes: Iterable[NodeName]) -> int:
        mask = 0
        for node in nodes:
            mask |= self.index.bit(node)
        return mask

    # Absorbing

    def _absorb(self, node: NodeName) -> None:
        """Brings promises and cards of one node in line with its object and its state."""
        item = self.objects.get(node)
        facts = self.nodes.get(node)
        fault = self._fault(node, item)
        if fault:
            self.faults[node] = fault
        else:
            self.faults.pop(node, None)
        strangers = not fault and self._absorb_records(node, item)
        given = item is not None and facts is not None and facts.dynamic and not fault
        resources = item.status.node_resources if item is not None and given else None
        if resources is None:
            if self._cards.pop(node, None) is not None:
                del self._makes[node]
                self.inventory.remove(node)
        elif strangers or self._cards.get(node) != resources:
            self._cards[node] = resources
            self._makes[node] = resources.profiles
            self._rebuild(node, resources)
        self._due.add(node)
        for allocation in self.ledger.on(node):
            self._review(allocation)

    def _fault(self, node: NodeName, item: Instaslice | None) -> str:
        """The rule that a node's object breaks; empty if it breaks none, or there is none."""
        error = self.unreadable.get(node)
        if error is not None or item is None:
            return error or ""
        return misfit(item) or self.inventory.geometries.fault(item.status.node_resources)

    def _absorb_records(self, node: NodeName, item: Instaslice | None) -> bool:
        """Takes over an object's entries; whether there was one that this process did not make."""
        strangers = False
        if item is not None:
            for uid in recorded_uids(item):
                if self.ledger.get(node, uid) is None:
                    self.ledger.add(adopted(node, uid, item))
                    self._changed_pods.add(uid)
                    strangers = True
        for allocation in self.ledger.on(node):
            if item is not None:
                observe(allocation, item)
            else:
                allocation.sent = allocation.requested = False
                allocation.result = None
            self._settle(allocation, gone=item is None)
        return strangers

    def _settle(self, allocation: Allocation, *, gone: bool) -> None:
        """Frees what is destroyed, and forgets what is neither wanted nor recorded."""
        pod = self.pods.get(allocation.uid)
        if wanted(allocation, pod) and not (gone and pod is not None and pod.gated):
            return
        if allocation.destroyed or not allocation.recorded:
            self._free(allocation)
        if not allocation.recorded:
            self._forget(allocation)

    def _rebuild(self, node: NodeName, resources: NodeResources) -> None:
        self.growth.at(node)
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
            self._report_fault(pod)
        for allocation in self.ledger.of(uid):
            self._settle(allocation, gone=False)
            self._due.add(allocation.node)
            self._review(allocation)
        self._note_refusal(uid, pod)
        self._reports.add(uid)
        self.growth.forget(uid)
        self._queue(uid)
        self._charge(uid)
        if pod is not None and pod.finished and not self.ledger.of(uid):
            self.lose_pod(uid)
            self._changed_pods.discard(uid)

    def _note_refusal(self, uid: PodUid, pod: PodFacts | None) -> None:
        promised = pod is not None and not pod.leaving and self.ledger.live(uid) is not None
        if pod is not None and pod.refused and promised:
            self.refused_pods.add(uid)
        else:
            self.refused_pods.discard(uid)

    def _report_fault(self, pod: PodFacts) -> None:
        if pod.fault and pod.gated and self._told.get(pod.uid) != pod.fault:
            self._told[pod.uid] = pod.fault
            self._say(pod, "SliceRefused", pod.fault, warning=True)

    def _choose(self, pod: PodFacts) -> None:
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
        able = self.index.open_to(pod.constraints) & self.index.bit(allocation.node)
        if pod.leaving or not allocation.slices or not able or allocation.node in self.faults:
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
            self.growth.at(allocation.node)

    def _forget(self, allocation: Allocation) -> None:
        self.ledger.remove(allocation)
        self._changed_pods.add(allocation.uid)
        if allocation.uid in self.waiting:
            self.growth.at(allocation.node)  # the node that took its slices back is open to it again

    # Who waits

    def _queue(self, uid: PodUid) -> None:
        pod = self.pods.get(uid)
        if pod is None or not self._waits(pod):
            self._leave(uid)
            if pod is None:
                self._told.pop(uid, None)
                self._withdrawn.pop(uid, None)
        elif uid not in self.waiting:
            self.waiting[uid] = None

    def _leave(self, uid: PodUid) -> None:
        """A pod waits no more."""
        self.waiting.pop(uid, None)
        self._dependent.discard(uid)
        self.growth.forget(uid)

    def _waits(self, pod: PodFacts) -> bool:
        if self.ledger.live(pod.uid) is not None or pod.uid in self._denied:
            return False
        if self._is_withdrawn(pod):
            return False
        if pod.ready_to_place:
            return True
        ours = bool(pod.profiles) and not pod.finished and not pod.leaving
        home = self.home_of(pod)
        return ours and home is not None and home in self._cards

    def _is_withdrawn(self, pod: PodFacts) -> bool:
        """Whether slices of a pod were taken back, and the scheduler has not bound it after all."""
        return not pod.gated and not pod.node and (pod.taken_back or pod.uid in self._withdrawn)

    def _charge(self, uid: PodUid) -> None:
        """Counts what a pod holds on its node: where it is bound, else where it was promised a place."""
        pod = self.pods.get(uid)
        home: NodeName | None = None
        if pod is not None and not pod.finished:
            live = self.ledger.live(uid)
            home = pod.node or (live.node if live is not None else None)
        self._seat(uid, pod, home)
        left = self._charges.charge(uid, home, pod.amounts if pod is not None else {})
        if left is not None and left in self._cards:
            self.growth.at(left)

    def _seat(self, uid: PodUid, pod: PodFacts | None, home: NodeName | None) -> None:
        """Counts a pod among the neighbours on its node."""
        before = self.neighbours.changes
        if pod is None:
            self.neighbours.drop(uid)
        else:
            self.neighbours.put(pod, home)
        self.neighbours_changed |= self.neighbours.changes != before

    def _say(self, pod: PodFacts, reason: str, message: str, *, warning: bool = False) -> None:
        self._tell.append(
            Tell(uid=pod.uid, namespace=pod.namespace, name=pod.name, reason=reason, message=message, warning=warning)
        )

    # Instructions

    def take(self) -> Sequence[Instruction]:
        """What to do now. Each write is in flight from here on."""
        evictions = [each for each in self._evict.values() if each.key not in self._busy]
        found: list[Instruction] = [*self._openings(), *self._tell, *self._orphans, *evictions, *self._pod_reports()]
        self._tell, self._orphans, self._evict = [], [], {}
        due, self._due = self._due, set()
        for node in sorted(due):
            found += self._writes(node)
        for write in found:
            if not isinstance(write, Tell):
                self._busy.add(write.key)
        return found

    def _writes(self, node: NodeName) -> Iterable[Write]:
        report = self._report(node)
        if node not in self.objects or node in self.faults:
            return report
        due = Due(node=node)
        for allocation in self.ledger.on(node):
            pod = self.pods.get(allocation.uid)
            step = next_step(allocation, pod)
            if step is Step.FORGET:
                self._free(allocation)
                self._forget(allocation)
            elif step is not Step.UNGATE:
                collect(due, allocation, step)
            elif pod is not None and ("pod", pod.uid) not in self._busy:
                due.ungate.append(self._ungate(allocation, pod))
        writes = [write for write in due.writes() if write.key not in self._busy]
        for write in writes:
            if isinstance(write, PatchRequests):
                for uid in write.put:
                    self._sent(node, uid)
        return [*report, *writes]

    def _report(self, node: NodeName) -> Sequence[ReportObject]:
        """What the node does not say yet of its object."""
        facts = self.nodes.get(node)
        if facts is None:
            self._reported.pop(node, None)
            return ()
        fault = self.faults.get(node)
        text = object_text(node, fault) if fault else ""
        if text == self._reported.get(node, facts.refused_object) or ("condition", node) in self._busy:
            return ()
        return (ReportObject(node=node, text=text),)

    def _pod_reports(self) -> Iterator[ReportPod]:
        """What pods do not say yet of slices that were taken back. A pod says nothing before the first time."""
        due, self._reports = self._reports, set()
        for uid in sorted(due):
            pod = self.pods.get(uid)
            if pod is None or pod.finished or pod.leaving or ("pod-condition", uid) in self._busy:
                continue
            text = self._withdrawn.get(uid, "")
            again = bool(pod.node) and self.ledger.live(uid) is not None
            if (text and not pod.taken_back) or (again and pod.taken_back):
                yield ReportPod(uid=uid, namespace=pod.namespace, name=pod.name, text=text)

    def _openings(self) -> Sequence[Ungate]:
        """The pods that are left to the scheduler. One whose write is under way comes again when that is answered."""
        opened, self._opened = self._opened, set()
        found = []
        for uid in sorted(opened):
            pod = self.pods.get(uid)
            if pod is not None and pod.gated and ("pod", uid) not in self._busy:
                self._say(pod, "SliceFixed", fixed_text(pod))
                found.append(Ungate(uid=uid, namespace=pod.namespace, name=pod.name))
        return found

    def _sent(self, node: NodeName, uid: PodUid) -> None:
        allocation = self.ledger.get(node, uid)
        if allocation is not None:
            allocation.sent = True

    def _ungate(self, allocation: Allocation, pod: PodFacts) -> Ungate:
        hostname = self.nodes[allocation.node].hostname
        return Ungate(uid=pod.uid, namespace=pod.namespace, name=pod.name, hostname=hostname)
