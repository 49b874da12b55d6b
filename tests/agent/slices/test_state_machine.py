"""The life of a slice: the next instruction in every situation of a card."""

import pytest
from tests.support.slice_instructions import next_instruction

from tessera.agent.base.wake_ups import CallFailure
from tessera.agent.inventory.sliceable_gpus import SlicePosition
from tessera.agent.slices.events import (
    CreateComputeInstance,
    CreateGpuInstance,
    DestroyComputeInstance,
    DestroyGpuInstance,
    DevicesBound,
    FollowUpsDue,
    GpuCallFailed,
    GpuRead,
    GpuUnreachable,
    InitialSyncDone,
    InstasliceChanged,
    ObservedInstance,
    PodChanged,
    PodDeleted,
    PromisedSlice,
    RemoveCdiFiles,
    ReportProblem,
    SliceInstruction,
    SliceJournal,
    SlicePromise,
    SliceResult,
    SliceState,
    WaitUntil,
)
from tessera.agent.slices.slice_table import REFUSED_DELAYS
from tessera.agent.slices.state_machine import FOREIGN_RECHECK, SliceStateMachine
from tessera.api.names import PodUid

GPU = "GPU-a"
STARTS = {"1g.5gb": (0, 1, 2, 3, 4, 5, 6), "3g.20gb": (0, 4), "7g.40gb": (0,)}
SIZES = {"1g.5gb": 1, "3g.20gb": 4, "7g.40gb": 8}
POD = PodUid("pod-1")
OTHER = PodUid("pod-2")
LEFT = SlicePosition(GPU, "3g.20gb", 0)
RIGHT = SlicePosition(GPU, "3g.20gb", 4)


def reported(machine: SliceStateMachine) -> list[ReportProblem]:
    return [each for each in machine.handle(FollowUpsDue()) if isinstance(each, ReportProblem)]


def removed_files(machine: SliceStateMachine) -> list[str]:
    return [
        device for each in machine.handle(FollowUpsDue()) if isinstance(each, RemoveCdiFiles) for device in each.devices
    ]


def promise(pod: PodUid, *positions: SlicePosition) -> SlicePromise:
    return SlicePromise(
        pod=pod, namespace="ns", name=pod, slices=tuple(PromisedSlice(p, SIZES[p.profile]) for p in positions)
    )


def promised(*promises: SlicePromise, controller: str = "creating", daemonset: str = "") -> InstasliceChanged:
    records = {each.pod: SliceResult(controller=controller, daemonset=daemonset) for each in promises}
    return InstasliceChanged({each.pod: each for each in promises}, records)


def instance(position: SlicePosition, gi_id: int = 1, *, whole: bool = True) -> ObservedInstance:
    computes = ((0, f"MIG-{position.profile}-{position.start}"),) if whole else ()
    return ObservedInstance(gi_id=gi_id, position=position, size=SIZES[position.profile], computes=computes)


def card(*instances: ObservedInstance) -> GpuRead:
    return GpuRead(GPU, STARTS, instances)


def new_machine(*events: object, journal: SliceJournal | None = None) -> SliceStateMachine:
    machine = SliceStateMachine(journal or SliceJournal())
    for event in (*events, InitialSyncDone()):
        machine.handle(event)  # type: ignore[arg-type] # tests pass events as a plain list
    return machine


def ours(*positions: SlicePosition, pod: PodUid = POD) -> SliceJournal:
    return SliceJournal(owners={position.device_id: pod for position in positions})


def test_nothing_is_decided_before_everything_was_read_once() -> None:
    machine = SliceStateMachine(ours(LEFT))
    machine.handle(card(instance(LEFT)))
    assert next_instruction(machine, GPU, 0.0) == WaitUntil()


def test_kept_owners_count_while_their_pods_run_and_others_own_nothing() -> None:
    """After a removal that kept slices: the pod at the left place runs, the one at the right has ended."""
    machine = SliceStateMachine(SliceJournal())
    ended = PodUid("ended")
    kept = SliceJournal(
        owners={LEFT.device_id: POD, RIGHT.device_id: ended}, bindings={POD: {"id": LEFT.device_id}, ended: {}}
    )
    for event in (card(instance(LEFT), instance(RIGHT, 2)), PodChanged(POD, ended=False), InitialSyncDone(kept)):
        machine.handle(event)
    assert machine.table.journal() == SliceJournal(owners={LEFT.device_id: POD}, bindings={POD: {"id": LEFT.device_id}})
    assert next_instruction(machine, GPU, 0.0) == WaitUntil(), "the instance at the right is foreign"


def test_a_promise_is_made_in_two_calls_and_then_rests() -> None:
    machine = new_machine(card(), promised(promise(POD, LEFT)))
    assert next_instruction(machine, GPU, 0.0) == CreateGpuInstance(LEFT, POD)
    machine.handle(card(instance(LEFT, 7, whole=False)))
    assert next_instruction(machine, GPU, 0.0) == CreateComputeInstance(LEFT, 7)
    machine.handle(card(instance(LEFT, 7)))
    assert next_instruction(machine, GPU, 0.0) == WaitUntil()
    assert machine.table.is_ready(POD)


def test_ownership_is_in_the_journal_before_the_first_call() -> None:
    machine = new_machine(card(), promised(promise(POD, LEFT)))
    next_instruction(machine, GPU, 0.0)
    assert machine.table.journal().owners == {LEFT.device_id: POD}


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        ((), CreateGpuInstance(LEFT, POD)),
        ((instance(LEFT, whole=False),), CreateComputeInstance(LEFT, 1)),
        ((instance(LEFT),), WaitUntil()),
    ],
    ids=["killed before the GPU instance", "killed between the two", "killed after the compute instance"],
)
def test_a_new_process_continues_from_the_state_of_the_hardware(
    found: tuple[ObservedInstance, ...], expected: CreateGpuInstance | CreateComputeInstance | WaitUntil
) -> None:
    assert (
        next_instruction(new_machine(card(*found), promised(promise(POD, LEFT)), journal=ours(LEFT)), GPU, 0.0)
        == expected
    )


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        ((instance(LEFT),), DestroyComputeInstance(LEFT, 1, 0, "MIG-3g.20gb-0")),
        ((instance(LEFT, whole=False),), DestroyGpuInstance(LEFT, 1)),
        ((), WaitUntil()),
    ],
    ids=["killed before destroying", "killed between the two", "killed after both"],
)
def test_a_slice_without_a_promise_is_destroyed_from_any_state(
    found: tuple[ObservedInstance, ...], expected: DestroyComputeInstance | DestroyGpuInstance | WaitUntil
) -> None:
    assert next_instruction(new_machine(card(*found), journal=ours(LEFT)), GPU, 0.0) == expected


def test_a_foreign_instance_in_the_way_is_reported_and_looked_at_again() -> None:
    machine = new_machine(card(instance(LEFT)), promised(promise(POD, SlicePosition(GPU, "1g.5gb", 2))))
    assert next_instruction(machine, GPU, 100.0) == WaitUntil(100.0 + FOREIGN_RECHECK)
    (notice,) = reported(machine)
    assert (notice.pod, notice.reason) == (POD, "SliceBlocked")
    next_instruction(machine, GPU, 101.0)
    assert reported(machine) == []
    machine.handle(card())
    assert isinstance(next_instruction(machine, GPU, 110.0), CreateGpuInstance)


def test_a_foreign_instance_at_a_promised_position_is_not_adopted() -> None:
    machine = new_machine(card(instance(LEFT)), promised(promise(POD, LEFT)))
    assert isinstance(next_instruction(machine, GPU, 0.0), WaitUntil)
    assert not machine.table.is_ready(POD)
    assert machine.table.ready_slice(POD, LEFT) is None


def test_with_the_journal_lost_instances_reported_created_are_ours() -> None:
    promised_both = promised(promise(POD, LEFT), controller="ungated", daemonset="created")
    machine = new_machine(card(instance(LEFT), instance(RIGHT, 2)), promised_both)
    assert machine.table.is_ready(POD)
    assert dict(machine.table.observed_instances())[instance(RIGHT, 2)] is None


def test_with_the_journal_lost_a_released_slice_is_still_destroyed() -> None:
    machine = new_machine(
        card(instance(LEFT)), promised(promise(POD, LEFT), controller="deleting", daemonset="created")
    )
    assert isinstance(next_instruction(machine, GPU, 0.0), DestroyComputeInstance)


def test_an_instance_where_a_released_slice_was_is_foreign() -> None:
    seen = promised(promise(POD, LEFT), controller="deleting", daemonset="created")
    machine = new_machine(card(instance(LEFT, 9)), seen, journal=SliceJournal(released=(POD,)))
    assert next_instruction(machine, GPU, 0.0) == WaitUntil()
    assert dict(machine.table.observed_instances())[instance(LEFT, 9)] is None
    assert machine.table.positions_of(POD) == []


@pytest.mark.parametrize(
    "end",
    [
        PodChanged(POD, ended=True),
        PodDeleted(POD),
        promised(promise(POD, LEFT), controller="deleting", daemonset="created"),
    ],
    ids=["all containers ended", "the pod object is gone", "the controller says so"],
)
def test_a_slice_is_released_once_its_pod_has_ended(end: object) -> None:
    machine = new_machine(
        card(instance(LEFT)), promised(promise(POD, LEFT)), PodChanged(POD, ended=False), journal=ours(LEFT)
    )
    assert next_instruction(machine, GPU, 0.0) == WaitUntil()
    machine.handle(end)  # type: ignore[arg-type] # a table of facts
    assert isinstance(next_instruction(machine, GPU, 0.0), DestroyComputeInstance)
    machine.handle(card(instance(LEFT, whole=False)))
    assert next_instruction(machine, GPU, 0.0) == DestroyGpuInstance(LEFT, 1)
    machine.handle(card())
    assert next_instruction(machine, GPU, 0.0) == WaitUntil()
    assert machine.table.is_released(POD)
    assert machine.table.positions_of(POD) == []


def test_released_is_final_over_a_restart() -> None:
    machine = new_machine(
        card(instance(LEFT)), promised(promise(POD, LEFT)), PodChanged(POD, ended=False), journal=ours(LEFT)
    )
    machine.handle(PodDeleted(POD))
    again = new_machine(
        card(instance(LEFT, whole=False)), promised(promise(POD, LEFT)), journal=machine.table.journal()
    )
    assert next_instruction(again, GPU, 0.0) == DestroyGpuInstance(LEFT, 1)
    again.handle(card())
    assert next_instruction(again, GPU, 0.0) == WaitUntil()


def again(machine: SliceStateMachine) -> SliceInstruction:
    """The next instruction after the pod got a promise of the same place again."""
    machine.handle(InstasliceChanged({POD: promise(POD, LEFT)}, {}))
    return next_instruction(machine, GPU, 0.0)


NOTHING = InstasliceChanged({}, {})


def test_a_pod_that_lost_its_promise_before_it_was_bound_is_served_when_it_is_promised_again() -> None:
    """Somebody removed the promise, or the whole object, and the controller writes it again at once."""
    machine = new_machine(card(instance(LEFT)), InstasliceChanged({POD: promise(POD, LEFT)}, {}), journal=ours(LEFT))
    machine.handle(NOTHING)
    assert again(machine) == DestroyComputeInstance(LEFT, 1, 0, "MIG-3g.20gb-0")
    machine.handle(card())
    assert next_instruction(machine, GPU, 0.0) == CreateGpuInstance(LEFT, POD)


def test_a_pod_that_gave_its_slice_back_is_served_when_it_is_promised_another_while_the_agent_is_away() -> None:
    """The agent answered ``deleted`` and ended; the controller removed promise and result and made a new promise."""
    left = SliceJournal(released=(POD,))
    assert again(new_machine(card(), journal=left)) == CreateGpuInstance(LEFT, POD)
    assert next_instruction(
        new_machine(card(), InstasliceChanged({POD: promise(POD, LEFT)}, {}), journal=left), GPU, 0.0
    ) == CreateGpuInstance(LEFT, POD)


def test_a_pod_that_was_promised_again_while_the_agent_was_away_is_served_once_it_is_bound() -> None:
    """Its result stands, so that it could be a pod that is gone."""
    machine = new_machine(
        card(), promised(promise(POD, LEFT), daemonset="created"), journal=SliceJournal(released=(POD,))
    )
    assert next_instruction(machine, GPU, 0.0) == WaitUntil()
    machine.handle(PodChanged(POD, ended=False))
    assert next_instruction(machine, GPU, 0.0) == CreateGpuInstance(LEFT, POD)


@pytest.mark.parametrize("end", [PodDeleted(POD), PodChanged(POD, ended=True)], ids=["gone", "finished"])
def test_a_pod_that_ended_gets_no_slice_again_while_its_promise_remains(end: PodDeleted | PodChanged) -> None:
    machine = new_machine(
        card(instance(LEFT)), promised(promise(POD, LEFT)), PodChanged(POD, ended=False), journal=ours(LEFT)
    )
    machine.handle(end)
    machine.handle(card())
    assert again(machine) == WaitUntil()


def test_with_the_journal_lost_a_result_without_a_promise_is_destroyed() -> None:
    """The controller removes the promise of a pod that is gone before its slices are destroyed."""
    record = SliceResult(controller="ungated", daemonset="created", places=((GPU, 0, 4),))
    machine = new_machine(card(instance(LEFT), instance(RIGHT, 2)), InstasliceChanged({}, {POD: record}))
    assert next_instruction(machine, GPU, 0.0) == DestroyComputeInstance(LEFT, 1, 0, "MIG-3g.20gb-0")
    machine.handle(card(instance(RIGHT, 2)))
    assert next_instruction(machine, GPU, 0.0) == WaitUntil()


def test_with_the_journal_lost_a_living_pod_keeps_the_slices_of_its_result() -> None:
    record = SliceResult(controller="ungated", daemonset="created", places=((GPU, 0, 4),))
    machine = new_machine(card(instance(LEFT)), InstasliceChanged({}, {POD: record}), PodChanged(POD, ended=False))
    assert next_instruction(machine, GPU, 0.0) == WaitUntil()
    assert machine.table.positions_of(POD) == [LEFT]


def test_a_pod_that_is_not_bound_to_the_node_yet_keeps_its_promise() -> None:
    machine = new_machine(card(instance(LEFT)), promised(promise(POD, LEFT), daemonset="created"), journal=ours(LEFT))
    assert next_instruction(machine, GPU, 0.0) == WaitUntil()
    assert not machine.table.is_released(POD)


def test_a_slice_whose_promise_vanished_stays_while_its_pod_lives() -> None:
    machine = new_machine(card(instance(LEFT)), PodChanged(POD, ended=False), journal=ours(LEFT))
    assert next_instruction(machine, GPU, 0.0) == WaitUntil()
    assert machine.table.slices_of(POD) == [LEFT]
    machine.handle(PodDeleted(POD))
    assert isinstance(next_instruction(machine, GPU, 0.0), DestroyComputeInstance)


def test_a_promise_moved_to_another_place_leaves_nothing_behind() -> None:
    machine = new_machine(card(instance(LEFT)), promised(promise(POD, RIGHT)), journal=ours(LEFT))
    assert isinstance(next_instruction(machine, GPU, 0.0), DestroyComputeInstance)
    machine.handle(card())
    assert next_instruction(machine, GPU, 0.0) == CreateGpuInstance(RIGHT, POD)


def test_slots_are_freed_before_they_are_used_again() -> None:
    whole = SlicePosition(GPU, "7g.40gb", 0)
    machine = new_machine(
        card(instance(LEFT)), promised(promise(POD, LEFT)), PodChanged(POD, ended=True), journal=ours(LEFT)
    )
    machine.handle(promised(promise(POD, LEFT), promise(OTHER, whole)))
    assert isinstance(next_instruction(machine, GPU, 0.0), DestroyComputeInstance)
    machine.handle(card())
    assert next_instruction(machine, GPU, 0.0) == CreateGpuInstance(whole, OTHER)


def test_the_next_pod_on_the_very_same_place_gets_an_instance_of_its_own() -> None:
    machine = new_machine(
        card(instance(LEFT)), promised(promise(POD, LEFT)), PodChanged(POD, ended=True), journal=ours(LEFT)
    )
    machine.handle(promised(promise(POD, LEFT), promise(OTHER, LEFT)))
    assert not machine.table.is_ready(OTHER)
    assert isinstance(next_instruction(machine, GPU, 0.0), DestroyComputeInstance)
    machine.handle(card())
    assert next_instruction(machine, GPU, 0.0) == CreateGpuInstance(LEFT, OTHER)


def test_two_promises_of_one_place_are_never_both_served() -> None:
    machine = new_machine(card(instance(LEFT)), promised(promise(POD, LEFT), promise(OTHER, LEFT)), journal=ours(LEFT))
    assert next_instruction(machine, GPU, 0.0) == WaitUntil()
    assert (machine.table.is_ready(POD), machine.table.is_ready(OTHER)) == (True, False)


def test_a_position_that_the_card_does_not_have_is_refused_with_its_profiles() -> None:
    machine = new_machine(card(), promised(promise(POD, SlicePosition(GPU, "3g.20gb", 2))))
    assert next_instruction(machine, GPU, 0.0) == WaitUntil()
    (notice,) = reported(machine)
    assert notice.reason == "SliceImpossible"
    assert "1g.5gb, 3g.20gb, 7g.40gb" in notice.text


def test_a_failed_creation_is_tried_again_after_a_growing_delay() -> None:
    machine = new_machine(card(), promised(promise(POD, LEFT)))
    delays = []
    now = 0.0
    for _ in range(4):
        call = next_instruction(machine, GPU, now)
        assert isinstance(call, CreateGpuInstance)
        machine.handle(GpuCallFailed(call, CallFailure.REFUSED, "no", now))
        rest = next_instruction(machine, GPU, now)
        assert isinstance(rest, WaitUntil)
        assert rest.until is not None
        delays.append(rest.until - now)
        now = rest.until
    assert delays == pytest.approx(
        [REFUSED_DELAYS.first, REFUSED_DELAYS.first * 2, REFUSED_DELAYS.first * 4, REFUSED_DELAYS.first * 8]
    )


def test_a_compute_instance_that_cannot_be_made_takes_its_gpu_instance_down_first() -> None:
    machine = new_machine(card(instance(LEFT, whole=False)), promised(promise(POD, LEFT)), journal=ours(LEFT))
    call = next_instruction(machine, GPU, 0.0)
    assert call == CreateComputeInstance(LEFT, 1)
    machine.handle(GpuCallFailed(call, CallFailure.REFUSED, "no", 0.0))
    assert next_instruction(machine, GPU, 0.0) == DestroyGpuInstance(LEFT, 1)
    machine.handle(card())
    assert next_instruction(machine, GPU, 0.0) == WaitUntil(REFUSED_DELAYS.first)
    assert next_instruction(machine, GPU, REFUSED_DELAYS.first) == CreateGpuInstance(LEFT, POD)
    machine.handle(card(instance(LEFT, whole=False)))
    assert next_instruction(machine, GPU, REFUSED_DELAYS.first) == CreateComputeInstance(LEFT, 1)


def test_a_slice_that_stays_in_use_is_reported_once() -> None:
    machine = new_machine(
        card(instance(LEFT)), promised(promise(POD, LEFT)), PodChanged(POD, ended=True), journal=ours(LEFT)
    )
    call = next_instruction(machine, GPU, 0.0)
    assert isinstance(call, DestroyComputeInstance)
    told = []
    for number in range(10):
        machine.handle(GpuCallFailed(call, CallFailure.BUSY, "in use by process 1", float(number)))
        told.append(len(reported(machine)))
    assert told == [0, 0, 0, 0, 0, 1, 0, 0, 0, 0]


def test_a_busy_slice_does_not_delay_others_of_its_card() -> None:
    machine = new_machine(
        card(instance(LEFT)),
        promised(promise(POD, LEFT), promise(OTHER, RIGHT)),
        PodChanged(POD, ended=True),
        journal=ours(LEFT),
    )
    call = next_instruction(machine, GPU, 0.0)
    assert isinstance(call, DestroyComputeInstance)
    machine.handle(GpuCallFailed(call, CallFailure.BUSY, "in use by process 1", 0.0))
    assert next_instruction(machine, GPU, 0.0) == CreateGpuInstance(RIGHT, OTHER)


def test_a_lost_card_gets_no_call_until_it_is_read_again() -> None:
    machine = new_machine(card(), promised(promise(POD, LEFT)), GpuUnreachable(GPU, 30.0))
    assert next_instruction(machine, GPU, 0.0) == WaitUntil(30.0)
    assert machine.table.is_unreachable(GPU)
    machine.handle(card())
    assert not machine.table.is_unreachable(GPU)
    assert isinstance(next_instruction(machine, GPU, 30.0), CreateGpuInstance)


def test_a_device_that_the_next_pod_holds_already_is_not_taken_from_it() -> None:
    machine = new_machine(card(), promised(promise(POD, LEFT), promise(OTHER, RIGHT)))
    machine.handle(DevicesBound(POD, {LEFT.device_id: LEFT, RIGHT.device_id: LEFT}))
    machine.handle(PodChanged(POD, ended=True))
    machine.handle(DevicesBound(OTHER, {RIGHT.device_id: RIGHT}))
    assert removed_files(machine) == [LEFT.device_id]


def test_slices_on_a_card_that_left_the_node_have_no_owner_so_their_pod_can_be_released() -> None:
    gone = SlicePosition("GPU-gone", "3g.20gb", 0)
    seen = promised(promise(POD, gone), controller="deleting", daemonset="created")
    machine = new_machine(card(), seen, journal=ours(gone))
    assert machine.table.is_released(POD)
    assert machine.table.positions_of(POD) == []


def test_states_name_where_a_slice_is_in_its_life() -> None:
    machine = new_machine(card(), promised(promise(POD, LEFT)))
    assert machine.table.slice_state(LEFT, POD) is SliceState.PROMISED
    next_instruction(machine, GPU, 0.0)
    machine.handle(card(instance(LEFT, whole=False)))
    assert machine.table.slice_state(LEFT, POD) is SliceState.GPU_INSTANCE
    machine.handle(card(instance(LEFT)))
    assert machine.table.slice_state(LEFT, POD) is SliceState.READY
    machine.handle(DevicesBound(POD, {LEFT.device_id: LEFT}))
    assert machine.table.slice_state(LEFT, POD) is SliceState.CLAIMED
    machine.handle(PodChanged(POD, ended=True))
    assert machine.table.slice_state(LEFT, POD) is SliceState.RELEASING
    assert removed_files(machine) == [LEFT.device_id]


def test_the_journal_forgets_pods_without_slices_or_records() -> None:
    machine = new_machine(
        card(instance(LEFT)), promised(promise(POD, LEFT)), PodChanged(POD, ended=True), journal=ours(LEFT)
    )
    machine.handle(card())
    next_instruction(machine, GPU, 0.0)
    machine.handle(InstasliceChanged({}, {}))
    assert machine.table.journal() == SliceJournal()
