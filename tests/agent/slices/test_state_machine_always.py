"""Any events in any order: no slices overlap, none leaks, no foreign instance is touched.

The state machine works on a card that keeps NVML's rules. A controller promises only slots that look free to it. Pods
come and go, claims are prepared and given back, calls fail, other programs use the card too, and the agent is killed
before and after calls.
"""

from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, precondition, rule
from tests.support.searching import examples
from tests.support.slice_instructions import next_instruction

from tessera.agent.base.wake_ups import CallFailure
from tessera.agent.inventory.sliceable_gpus import SlicePosition
from tessera.agent.slices.events import (
    CreateComputeInstance,
    CreateGpuInstance,
    DestroyComputeInstance,
    DestroyGpuInstance,
    GpuCall,
    GpuCallFailed,
    GpuRead,
    InitialSyncDone,
    InstasliceChanged,
    ObservedInstance,
    PodChanged,
    PodDeleted,
    PromisedSlice,
    PromiseServes,
    SliceJournal,
    SlicePromise,
    SliceResult,
    WaitUntil,
)
from tessera.agent.slices.state_machine import SliceStateMachine
from tessera.api.names import PodUid

GPU = "GPU-a"
STARTS = {"1g.5gb": (0, 1, 2, 3, 4, 5, 6), "2g.10gb": (0, 2, 4), "3g.20gb": (0, 4), "7g.40gb": (0,)}
SIZES = {"1g.5gb": 1, "2g.10gb": 2, "3g.20gb": 4, "7g.40gb": 8}
POSITIONS = [SlicePosition(GPU, profile, start) for profile, starts in STARTS.items() for start in starts]


class Refused(Exception):  # noqa: N818 - NVML refuses, nothing broke
    """NVML refuses a call."""


class Silicon:
    """One card. ``busy`` are positions that a process uses."""

    def __init__(self) -> None:
        self.instances: dict[int, tuple[SlicePosition, bool]] = {}
        self.foreign: set[int] = set()
        self.busy: set[SlicePosition] = set()
        self._next = 1

    def create(self, position: SlicePosition) -> int:
        if any(overlap(position, other) for other, _ in self.instances.values()):
            raise Refused("insufficient resources")
        gi_id, self._next = self._next, self._next + 1
        self.instances[gi_id] = (position, False)
        return gi_id

    def do(self, call: GpuCall, *, refuse: bool = False) -> None:
        if refuse:
            raise Refused("injected")
        match call:
            case CreateGpuInstance():
                self.create(call.position)
            case CreateComputeInstance():
                assert self.instances[call.gi_id] == (call.position, False)
                self.instances[call.gi_id] = (call.position, True)
            case DestroyComputeInstance():
                if call.position in self.busy:
                    raise Refused("in use")
                self.instances[call.gi_id] = (call.position, False)
            case DestroyGpuInstance():
                assert self.instances[call.gi_id][1] is False
                del self.instances[call.gi_id]
        assert all(gi_id in self.instances for gi_id in self.foreign), "a foreign instance was destroyed"

    def read(self) -> GpuRead:
        return GpuRead(
            GPU,
            STARTS,
            tuple(
                ObservedInstance(
                    gi_id=gi_id,
                    position=position,
                    size=SIZES[position.profile],
                    computes=((0, f"MIG-{gi_id}"),) if whole else (),
                )
                for gi_id, (position, whole) in self.instances.items()
            ),
        )


def overlap(one: SlicePosition, two: SlicePosition) -> bool:
    return one.start < two.start + SIZES[two.profile] and two.start < one.start + SIZES[one.profile]


class Node(RuleBasedStateMachine):
    """An agent's state machine, its card, its journal, the pods and the controller."""

    promised = Bundle("promised")
    bound = Bundle("bound")

    @initialize(foreign=st.lists(st.sampled_from(POSITIONS), max_size=2))
    def begin(self, foreign: list[SlicePosition]) -> None:
        self.card = Silicon()
        self.now = 0.0
        self.count = 0
        self.disk = SliceJournal()
        self.promises: dict[PodUid, SlicePromise] = {}
        self.records: dict[PodUid, SliceResult] = {}
        self.pods: dict[PodUid, bool] = {}
        #: Pods whose promise serves a claim, and whether it is prepared; as on the disk.
        self.claims: dict[PodUid, bool] = {}
        #: The slices of prepared claims.
        self.handed_out: dict[PodUid, list[SlicePosition]] = {}
        for position in foreign:
            self._somebody_else_makes(position)
        self._start()

    def _start(self) -> None:
        self.machine = SliceStateMachine(self.disk)
        self._object_seen()
        for pod, over in self.pods.items():
            self.machine.handle(PodChanged(pod, over))
        for pod, prepared in self.claims.items():
            self.machine.handle(PromiseServes(pod, prepared))
        self.machine.handle(self.card.read())
        self.machine.handle(InitialSyncDone())

    def _object_seen(self) -> None:
        self.machine.handle(InstasliceChanged(dict(self.promises), dict(self.records)))

    def _step(self, fault: str = "") -> bool:
        """One step of the agent; whether there was one. ``fault``: refuse, kill before, kill after."""
        call = next_instruction(self.machine, GPU, self.now)
        self.disk = self.machine.table.journal()
        if isinstance(call, WaitUntil):
            return False
        if fault == "kill before":
            self._start()
            return True
        try:
            self.card.do(call, refuse=fault == "refuse")
        except Refused as error:
            kind = CallFailure.BUSY if str(error) == "in use" else CallFailure.REFUSED
            self.machine.handle(GpuCallFailed(call, kind, str(error), self.now))
        if fault == "kill after":
            self._start()
        else:
            self.machine.handle(self.card.read())
        return True

    def _report(self) -> None:
        """The agent writes the status, and the controller removes entries of deleted slices."""
        for pod, record in list(self.records.items()):
            if self.machine.table.is_released(pod):
                if not self.machine.table.positions_of(pod):
                    self.promises.pop(pod, None)
                    del self.records[pod]
            elif record.daemonset == "" and pod in self.promises and self.machine.table.is_ready(pod):
                self.records[pod] = SliceResult(controller=record.controller, daemonset="created")
        self._object_seen()

    def _taken(self) -> list[SlicePosition]:
        """The positions that the controller counts as occupied."""
        promised = [wanted.position for promise in self.promises.values() for wanted in promise.slices]
        return promised + [
            made.position for made, owner in self.machine.table.observed_instances() if owner not in self.promises
        ]

    @rule(target=promised, positions=st.lists(st.sampled_from(POSITIONS), min_size=1, max_size=3))
    def promise_slices(self, positions: list[SlicePosition]) -> PodUid:
        return self._promise(positions)

    def _promise(self, positions: list[SlicePosition]) -> PodUid:
        free: list[SlicePosition] = []
        for position in positions:
            if not any(overlap(position, taken) for taken in self._taken() + free):
                free.append(position)
        self.count += 1
        pod = PodUid(f"pod-{self.count}")
        if free:
            slices = tuple(PromisedSlice(position, SIZES[position.profile]) for position in free)
            self.promises[pod] = SlicePromise(pod=pod, namespace="ns", name=pod, slices=slices)
            self.records[pod] = SliceResult(controller="ungated", daemonset="")
            self._object_seen()
        return pod

    @rule(target=bound, pod=consumes(promised))
    def bind(self, pod: PodUid) -> PodUid:
        return self._bind(pod)

    def _bind(self, pod: PodUid) -> PodUid:
        self.pods[pod] = False
        self.machine.handle(PodChanged(pod, ended=False))
        return pod

    @rule(pod=consumes(bound), vanishes=st.booleans())
    def finish(self, pod: PodUid, vanishes: bool) -> None:
        if vanishes:
            self.pods.pop(pod, None)
            self.machine.handle(PodDeleted(pod))
        else:
            self.pods[pod] = True
            self.machine.handle(PodChanged(pod, ended=True))

    @rule(pod=bound)
    def prepare_a_claim(self, pod: PodUid) -> None:
        """Of the pod, or of one that shares the claim with it."""
        self._prepare(pod)

    def _prepare(self, pod: PodUid) -> None:
        for _ in range(12):  # prepare waits for the slices
            self._step()
        slices = [each.position for each in self.promises[pod].slices] if pod in self.promises else []
        table = self.machine.table
        if slices and all(table.is_promised(pod, each) and table.ready_slice(pod, each) for each in slices):
            self.claims[pod], self.handed_out[pod] = True, slices
            self.machine.handle(PromiseServes(pod, prepared=True))

    @rule(target=bound, positions=st.lists(st.sampled_from(POSITIONS), min_size=1, max_size=3))
    def run_a_pod_with_a_claim(self, positions: list[SlicePosition]) -> PodUid:
        pod = self._bind(self._promise(positions))
        self._prepare(pod)
        return pod

    @precondition(lambda self: self.claims)
    @rule(data=st.data())
    def unprepare_a_claim(self, data: Any) -> None:
        pod = data.draw(st.sampled_from(sorted(self.claims)))
        self.handed_out.pop(pod, None)
        self.claims[pod] = False
        self.machine.handle(PromiseServes(pod, prepared=False))
        self._forget_claims()

    @precondition(lambda self: self.claims)
    @rule(data=st.data())
    def release_a_claim(self, data: Any) -> None:
        """The controller sees that no pod uses the claim any more; kubelet may still have to unprepare it."""
        pod = data.draw(st.sampled_from(sorted(self.claims)))
        if self.pods.get(pod) is not False:
            self.promises.pop(pod, None)
            self._object_seen()
            self._forget_claims()

    def _forget_claims(self) -> None:
        for pod in [pod for pod, prepared in self.claims.items() if not prepared and pod not in self.promises]:
            del self.claims[pod]
            self.machine.handle(PromiseServes(pod, prepared=None))

    @rule(pod=consumes(promised))
    def give_up_before_it_is_bound(self, pod: PodUid) -> None:
        if pod in self.records:
            self.records[pod] = SliceResult(controller="deleting", daemonset=self.records[pod].daemonset)
            self._object_seen()

    @rule(pod=consumes(promised))
    def take_the_promise_back(self, pod: PodUid) -> None:
        self.promises.pop(pod, None)
        self.records.pop(pod, None)
        self._object_seen()

    @rule(times=st.integers(1, 6))
    def work(self, times: int) -> None:
        for _ in range(times):
            self._step()

    @rule(fault=st.sampled_from(["refuse", "kill before", "kill after"]))
    def work_badly(self, fault: str) -> None:
        self._step(fault)

    @rule()
    def report(self) -> None:
        self._report()

    @rule()
    def kill(self) -> None:
        self._start()

    @rule(seconds=st.sampled_from([0.1, 1.0, 60.0]))
    def wait(self, seconds: float) -> None:
        self.now += seconds

    @rule(position=st.sampled_from(POSITIONS))
    def somebody_else_makes(self, position: SlicePosition) -> None:
        self._somebody_else_makes(position)
        self.machine.handle(self.card.read())

    def _somebody_else_makes(self, position: SlicePosition) -> None:
        if position.device_id in self.disk.owners:
            return  # between our note and our call: nobody could tell the two instances apart
        try:
            self.card.foreign.add(self.card.create(position))
        except Refused:
            return

    @precondition(lambda self: self.card.foreign)
    @rule(data=st.data())
    def somebody_else_destroys(self, data: Any) -> None:
        gi_id = data.draw(st.sampled_from(sorted(self.card.foreign)))
        self.card.foreign.discard(gi_id)
        del self.card.instances[gi_id]
        self.machine.handle(self.card.read())

    @precondition(lambda self: self.card.instances)
    @rule(data=st.data(), busy=st.booleans())
    def a_process_begins_or_ends(self, data: Any, busy: bool) -> None:
        position = data.draw(st.sampled_from(sorted(p for p, _ in self.card.instances.values())))
        (self.card.busy.add if busy else self.card.busy.discard)(position)

    @invariant()
    def no_slice_is_for_two_pods(self) -> None:
        if hasattr(self, "machine"):
            users: dict[SlicePosition, PodUid] = {}
            for pod in self.machine.table.promises:
                for position in self.machine.table.slices_of(pod):
                    if self.machine.table.ready_slice(pod, position):
                        assert users.setdefault(position, pod) == pod

    @invariant()
    def prepared_claims_keep_their_slices(self) -> None:
        if hasattr(self, "machine"):
            made = dict(self.card.instances.values())
            assert all(made.get(each) for slices in self.handed_out.values() for each in slices)

    def teardown(self) -> None:
        """Left alone, everything settles."""
        if not hasattr(self, "machine"):
            return
        self.card.busy.clear()
        for _ in range(200):
            self.now += 60.0
            while self._step():
                pass
            before = (dict(self.promises), dict(self.records))
            self._report()
            if before == (self.promises, self.records):
                break
        foreign = [self.card.instances[gi_id][0] for gi_id in self.card.foreign]
        ours = {
            gi_id: position_whole
            for gi_id, position_whole in self.card.instances.items()
            if gi_id not in self.card.foreign
        }
        due = {
            wanted.position
            for pod, promise in self.promises.items()
            for wanted in promise.slices
            if not any(overlap(wanted.position, other) for other in foreign)
        }
        for pod, over in self.pods.items():
            if pod not in self.promises and not over:
                due |= set(self.machine.table.positions_of(pod))
        due |= {each for slices in self.handed_out.values() for each in slices}
        assert {position for position, _ in ours.values()} == due, "leaked or missing slices"
        assert all(whole for _, whole in ours.values())
        assert set(self.disk.owners) >= {position.device_id for position, _ in ours.values()}


TestNode = Node.TestCase
TestNode.settings = settings(max_examples=examples(200), stateful_step_count=40, deadline=None)


@pytest.mark.soak
class TestNodeForLong(Node.TestCase):  # type: ignore[misc, valid-type] # hypothesis makes the class at run time
    settings = settings(max_examples=5_000, stateful_step_count=60, deadline=None)
