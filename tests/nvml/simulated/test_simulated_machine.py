"""Simulated cards obey the rules of real ones."""

from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, invariant, multiple, rule
from tests.support.searching import examples

from tessera.mig.geometry import Placement, free_starts, occupancy_of
from tessera.mig.models import MODELS, model_by_short_name
from tessera.nvml.errors import (
    DriverMismatch,
    GpuLost,
    InsufficientResources,
    InUse,
    InvalidArgument,
    NotSupported,
    NvmlNotFound,
    UnknownNvmlError,
)
from tessera.nvml.interface import (
    ComputeInstance,
    DeviceMemory,
    GpuEventKind,
    GpuInstance,
    GpuProcess,
    GpuUuid,
    MigModeResult,
    MigUuid,
)
from tessera.nvml.simulated.machine_state import ANY, DRIVER_VERSION, SimEvent
from tessera.nvml.simulated.simulated_machine import SimulatedMachine

MIB, GIB = 1024**2, 1024**3


def make(machine: SimulatedMachine, gpu: GpuUuid, profile: str, start: int) -> ComputeInstance:
    row = model_by_short_name("A100-40GB").geometry.profile(profile)
    gi_id = machine.create_gpu_instance(gpu, profile, start)
    return machine.create_compute_instance(gpu, gi_id, row.ci_profile_index)


def test_a_machine_is_described_in_words() -> None:
    machine = SimulatedMachine("2xA100-40GB, H100-80GB,1x a30", seed="n")
    assert [(gpu.index, gpu.name, gpu.memory_mib, gpu.pci_device_id) for gpu in machine.devices()] == [
        (0, "NVIDIA A100-SXM4-40GB", 40960, "0x20B010DE"),
        (1, "NVIDIA A100-SXM4-40GB", 40960, "0x20B010DE"),
        (2, "NVIDIA H100 80GB HBM3", 81559, "0x233010DE"),
        (3, "NVIDIA A30", 24576, "0x20B710DE"),
    ]
    assert machine.driver_version() == DRIVER_VERSION


def test_cards_without_mig_stand_beside_others() -> None:
    machine = SimulatedMachine("4xT4,V100,L40S,A30", seed="n", mig=True)
    assert [(gpu.name, gpu.mig_capable, gpu.mig_enabled) for gpu in machine.devices()][3:] == [
        ("Tesla T4", False, False),
        ("Tesla V100-SXM2-16GB", False, False),
        ("NVIDIA L40S", False, False),
        ("NVIDIA A30", True, True),
    ]
    t4 = machine.uuids()[0]
    with pytest.raises(NotSupported, match="Tesla T4 has no MIG"):
        machine.set_mig_mode(t4, True)
    assert machine.instances(t4) == []


@pytest.mark.parametrize(
    ("spec", "reason"),
    [
        ("", "at least one card"),
        ("0xA100-40GB", "at least 1"),
        ("2xA100-40GB,3xK80", 'no GPU model "K80"'),
        ("RTX-PRO-5000", "not"),
    ],
)
def test_a_description_that_makes_no_machine_says_why(spec: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        SimulatedMachine(spec, seed="n")


def test_uuids_follow_from_the_seed_and_the_slice(machine: SimulatedMachine) -> None:
    twin = SimulatedMachine("2xA100-40GB", seed="node-1", mig=True)
    other = SimulatedMachine("2xA100-40GB", seed="node-2", mig=True)
    assert machine.uuids() == twin.uuids()
    assert len({*machine.uuids(), *other.uuids()}) == 4
    gpu = machine.uuids()[0]
    made = make(machine, gpu, "3g.20gb", 4)
    assert made.mig_uuid.startswith("MIG-")
    assert make(twin, gpu, "3g.20gb", 4).mig_uuid == made.mig_uuid
    assert make(twin, gpu, "3g.20gb", 0).mig_uuid != made.mig_uuid


def test_a_slice_made_again_has_its_uuid_again(machine: SimulatedMachine) -> None:
    gpu = machine.uuids()[0]
    first = make(machine, gpu, "2g.10gb", 2)
    (instance,) = machine.instances(gpu)
    machine.destroy_compute_instance(gpu, instance.gi_id, first.ci_id)
    machine.destroy_gpu_instance(gpu, instance.gi_id)
    assert machine.instances(gpu) == []
    assert make(machine, gpu, "2g.10gb", 2) == first


@pytest.mark.parametrize("model", [model for model in MODELS if model.table], ids=lambda model: model.short_name)
def test_a_card_lists_its_models_profiles(model: object) -> None:
    geometry = model.geometry  # type: ignore[attr-defined]
    machine = SimulatedMachine(model.short_name, seed="n", mig=True)  # type: ignore[attr-defined]
    (gpu,) = machine.uuids()
    listed = machine.gi_profiles(gpu)
    assert {(row.name, row.index, row.size, row.starts, row.max_count) for row in listed} == {
        (row.name, row.gi_profile_index, row.size, row.starts, row.max_count) for row in geometry.profiles
    }
    for row in geometry.profiles:
        for start in row.starts:
            gi_id = machine.create_gpu_instance(gpu, row.name, start)
            machine.create_compute_instance(gpu, gi_id, row.ci_profile_index)
            machine.destroy_compute_instance(gpu, gi_id, 0)
            machine.destroy_gpu_instance(gpu, gi_id)


def test_gpu_instance_ids_are_those_seen_on_real_cards(machine: SimulatedMachine) -> None:
    gpu, other = machine.uuids()
    assert [machine.create_gpu_instance(gpu, "1g.5gb", start) for start in range(7)] == [7, 8, 9, 10, 11, 12, 13]
    assert [machine.create_gpu_instance(other, "2g.10gb", start) for start in (0, 2, 4)] == [3, 4, 5]


def test_an_instance_is_listed_with_its_compute_instance(machine: SimulatedMachine) -> None:
    gpu = machine.uuids()[0]
    upper = make(machine, gpu, "3g.20gb", 4)
    gi_id = machine.create_gpu_instance(gpu, "4g.20gb", 0)
    assert machine.instances(gpu) == [
        GpuInstance(gi_id=gi_id, profile="4g.20gb", start=0, size=4),
        GpuInstance(gi_id=2, profile="3g.20gb", start=4, size=4, compute_instances=(upper,)),
    ]


def test_what_does_not_fit_is_refused_with_the_reason(machine: SimulatedMachine) -> None:
    gpu = machine.uuids()[0]
    make(machine, gpu, "3g.20gb", 0)
    make(machine, gpu, "3g.20gb", 4)
    with pytest.raises(InsufficientResources, match=r"1g\.5gb"):
        machine.create_gpu_instance(gpu, "1g.5gb", 6)
    with pytest.raises(InvalidArgument, match="may start at 0, 4"):
        machine.create_gpu_instance(gpu, "3g.20gb", 2)
    with pytest.raises(InvalidArgument, match=r"3g\.40gb"):
        machine.create_gpu_instance(gpu, "3g.40gb", 0)


def test_media_engines_exist_once(machine: SimulatedMachine) -> None:
    gpu = machine.uuids()[0]
    make(machine, gpu, "1g.5gb+me", 0)
    with pytest.raises(InsufficientResources, match="media"):
        machine.create_gpu_instance(gpu, "1g.5gb+me", 1)


def test_a_gpu_instance_can_hold_several_smaller_compute_instances(machine: SimulatedMachine) -> None:
    gpu = machine.uuids()[0]
    gi_id = machine.create_gpu_instance(gpu, "3g.20gb", 0)
    made = [machine.create_compute_instance(gpu, gi_id, 0) for _ in range(3)]
    assert [one.ci_id for one in made] == [0, 1, 2]
    assert len({one.mig_uuid for one in made}) == 3
    with pytest.raises(InsufficientResources, match="3 of 3 compute slices"):
        machine.create_compute_instance(gpu, gi_id, 0)
    machine.destroy_compute_instance(gpu, gi_id, 1)
    with pytest.raises(InvalidArgument, match="has 3 compute slices"):
        machine.create_compute_instance(gpu, gi_id, 3)
    assert machine.create_compute_instance(gpu, gi_id, 0) == made[1]


def test_nothing_in_use_is_destroyed(machine: SimulatedMachine) -> None:
    gpu = machine.uuids()[0]
    device = make(machine, gpu, "2g.10gb", 0)
    (instance,) = machine.instances(gpu)
    pid = machine.start_process(device.mig_uuid, GIB)
    with pytest.raises(InUse, match=str(pid)):
        machine.destroy_compute_instance(gpu, instance.gi_id, device.ci_id)
    with pytest.raises(InUse, match="holds compute instances"):
        machine.destroy_gpu_instance(gpu, instance.gi_id)
    machine.end_process(pid)
    machine.destroy_compute_instance(gpu, instance.gi_id, device.ci_id)
    machine.destroy_gpu_instance(gpu, instance.gi_id)
    with pytest.raises(NvmlNotFound):
        machine.destroy_gpu_instance(gpu, instance.gi_id)


def test_processes_and_memory_are_told_per_device(machine: SimulatedMachine) -> None:
    gpu = machine.uuids()[0]
    one, two = make(machine, gpu, "1g.5gb", 0).mig_uuid, make(machine, gpu, "2g.10gb", 2).mig_uuid
    pid = machine.start_process(one, GIB)
    machine.start_process(two, 3 * GIB)
    machine.set_process_memory(pid, 2 * GIB)
    assert machine.processes(one) == [GpuProcess(pid=pid, memory_bytes=2 * GIB, gi_id=7, ci_id=0)]
    assert machine.memory(one) == DeviceMemory(total=4864 * MIB, used=2 * GIB, reserved=0)
    assert machine.memory(gpu) == DeviceMemory(total=40 * GIB, used=5 * GIB, reserved=0)
    assert len(machine.processes(gpu)) == 2
    with pytest.raises(MemoryError, match="are free"):
        machine.set_process_memory(pid, 6 * GIB)
    with pytest.raises(MemoryError):
        machine.start_process(one, 4 * GIB)
    with pytest.raises(NvmlNotFound, match="MIG mode"):
        machine.start_process(gpu)
    assert machine.memory(one).used == 2 * GIB


def test_a_process_of_this_host_computes_on_several_devices(machine: SimulatedMachine) -> None:
    gpu, other = machine.uuids()
    machine.set_mig_mode(other, False)
    device = make(machine, gpu, "1g.5gb", 0).mig_uuid
    for place in (device, other):
        assert machine.start_process(place, GIB, pid=77) == 77
    machine.set_process_memory(77, 3 * GIB, other)
    assert machine.processes(device) == [GpuProcess(pid=77, memory_bytes=GIB, gi_id=7, ci_id=0)]
    assert machine.processes(other) == [GpuProcess(pid=77, memory_bytes=3 * GIB)]
    with pytest.raises(ValueError, match=r"computes on .* already"):
        machine.start_process(other, pid=77)
    with pytest.raises(NvmlNotFound, match="process 77 does not compute on"):
        machine.set_process_memory(77, 0, gpu)
    machine.end_process(77)
    assert machine.processes(device) == machine.processes(other) == []
    assert machine.memory(other).used == 0


def test_a_whole_card_is_shared_by_its_processes() -> None:
    machine = SimulatedMachine("A100-40GB", seed="n")
    (gpu,) = machine.uuids()
    machine.start_process(gpu, 30 * GIB)
    with pytest.raises(MemoryError):
        machine.start_process(gpu, 11 * GIB)
    assert [process.gi_id for process in machine.processes(gpu)] == [None]


def test_without_mig_mode_a_card_cannot_be_cut() -> None:
    machine = SimulatedMachine("A100-40GB", seed="n")
    (gpu,) = machine.uuids()
    assert machine.instances(gpu) == []
    with pytest.raises(NotSupported, match="MIG mode is off"):
        machine.gi_profiles(gpu)
    with pytest.raises(NotSupported, match="MIG mode is off"):
        machine.create_gpu_instance(gpu, "1g.5gb", 0)


def modes(machine: SimulatedMachine) -> tuple[bool, bool]:
    (gpu,) = machine.devices()
    return gpu.mig_enabled, gpu.mig_pending


def test_mig_mode_stays_pending_while_the_card_is_used() -> None:
    machine = SimulatedMachine("A100-40GB", seed="n")
    (gpu,) = machine.uuids()
    pid = machine.start_process(gpu)
    assert machine.set_mig_mode(gpu, True) is MigModeResult.IN_USE
    assert modes(machine) == (False, True)
    with pytest.raises(InUse, match=str(pid)):
        machine.reset(gpu)
    machine.end_process(pid)
    machine.reset(gpu)
    assert modes(machine) == (True, True)


def test_a_card_passed_through_needs_a_reset_on_ampere_only() -> None:
    ampere = SimulatedMachine("A100-40GB", seed="n", passthrough=True)
    hopper = SimulatedMachine("H100-80GB", seed="n", passthrough=True)
    assert ampere.set_mig_mode(ampere.uuids()[0], True) is MigModeResult.RESET_REQUIRED
    assert modes(ampere) == (False, True)
    assert ampere.set_mig_mode(ampere.uuids()[0], False) is MigModeResult.APPLIED
    assert modes(ampere) == (False, False)
    assert hopper.set_mig_mode(hopper.uuids()[0], True) is MigModeResult.APPLIED
    assert modes(hopper) == (True, True)


def test_turning_mig_mode_off_destroys_the_instances(machine: SimulatedMachine) -> None:
    gpu = machine.uuids()[0]
    make(machine, gpu, "1g.5gb", 0)
    machine.set_mig_mode(gpu, False)
    machine.set_mig_mode(gpu, True)
    assert machine.instances(gpu) == []


def test_a_reboot_clears_instances_and_keeps_the_mode_on_ampere_only() -> None:
    machine = SimulatedMachine("A100-40GB,H100-80GB", seed="n", mig=True)
    ampere, hopper = machine.uuids()
    machine.create_gpu_instance(ampere, "1g.5gb", 0)
    machine.create_gpu_instance(hopper, "1g.10gb", 0)
    machine.lose(hopper)
    machine.reboot()
    assert [(gpu.mig_enabled, gpu.lost) for gpu in machine.devices()] == [(True, False), (False, False)]
    assert machine.instances(ampere) == []
    assert machine.wait_event(0) is None


def test_a_lost_card_answers_nothing_and_reports_xid_79(machine: SimulatedMachine) -> None:
    lost, healthy = machine.uuids()
    device = make(machine, lost, "1g.5gb", 0).mig_uuid
    machine.lose(lost)
    assert [gpu.lost for gpu in machine.devices()] == [True, False]
    for call in (
        lambda: machine.instances(lost),
        lambda: machine.create_gpu_instance(lost, "1g.5gb", 1),
        lambda: machine.processes(device),
        lambda: machine.memory(lost),
        lambda: machine.set_mig_mode(lost, False),
        lambda: machine.start_process(device),
    ):
        with pytest.raises(GpuLost, match="no longer answers"):
            call()
    assert machine.instances(healthy) == []
    event = machine.wait_event(0)
    assert event is not None
    assert (event.kind, event.gpu, event.xid) == (GpuEventKind.XID, lost, 79)
    assert machine.wait_event(0) is None


def test_events_come_in_order(machine: SimulatedMachine) -> None:
    gpu = machine.uuids()[0]
    machine.report(SimEvent(GpuEventKind.XID, gpu, 94, gi_id=1, ci_id=0))
    machine.report(SimEvent(GpuEventKind.DOUBLE_BIT_ECC, gpu))
    events = [machine.wait_event(0), machine.wait_event(0), machine.wait_event(0)]
    assert [event and (event.kind, event.xid, event.gi_id) for event in events] == [
        (GpuEventKind.XID, 94, 1),
        (GpuEventKind.DOUBLE_BIT_ECC, None, None),
        None,
    ]


def test_the_nth_call_can_fail(machine: SimulatedMachine) -> None:
    gpu, other = machine.uuids()
    machine.fail("create_gpu_instance", InsufficientResources, skip=1, times=2, gpu=gpu)
    machine.create_gpu_instance(gpu, "1g.5gb", 0)
    machine.create_gpu_instance(other, "1g.5gb", 0)
    for _ in range(2):
        with pytest.raises(InsufficientResources):
            machine.create_gpu_instance(gpu, "1g.5gb", 1)
    machine.create_gpu_instance(gpu, "1g.5gb", 1)


def test_a_card_can_be_sick_alone_and_with_it_its_mig_devices(machine: SimulatedMachine) -> None:
    gpu, other = machine.uuids()
    device, healthy = make(machine, gpu, "1g.5gb", 0).mig_uuid, make(machine, other, "1g.5gb", 0).mig_uuid
    machine.fail("memory", UnknownNvmlError, times=None, gpu=gpu)
    for sick in (gpu, device):
        with pytest.raises(UnknownNvmlError):
            machine.memory(sick)
    assert machine.memory(other).used == machine.memory(healthy).used == 0


def test_a_driver_can_be_replaced_under_the_library(machine: SimulatedMachine) -> None:
    machine.fail(ANY, DriverMismatch, times=None)
    for call in (machine.devices, machine.driver_version, lambda: machine.instances(machine.uuids()[0])):
        with pytest.raises(DriverMismatch, match="restart this process"):
            call()
    machine.heal()
    assert len(machine.devices()) == 2


def test_a_failed_call_changes_nothing(machine: SimulatedMachine) -> None:
    gpu = machine.uuids()[0]
    gi_id = machine.create_gpu_instance(gpu, "2g.10gb", 0)
    before = machine.instances(gpu)
    for error in (UnknownNvmlError, GpuLost, InsufficientResources):
        machine.fail("create_compute_instance", error)
        with pytest.raises(error):
            machine.create_compute_instance(gpu, gi_id, 1)
        assert machine.instances(gpu) == before


def test_unknown_names_are_named(machine: SimulatedMachine) -> None:
    with pytest.raises(NvmlNotFound, match="GPU-x"):
        machine.instances(GpuUuid("GPU-x"))
    with pytest.raises(NvmlNotFound, match="MIG-x"):
        machine.processes(MigUuid("MIG-x"))
    with pytest.raises(NvmlNotFound, match="GPU instance 9"):
        machine.create_compute_instance(machine.uuids()[0], 9, 0)


A100 = model_by_short_name("A100-40GB").geometry


def placements(held: list[GpuInstance]) -> list[Placement]:
    return [Placement(one.profile, one.start, one.size) for one in held]


class Card(RuleBasedStateMachine):
    """Property: a card holds only what fits, and each call does all or nothing, in any order of calls."""

    made = Bundle("made")

    def __init__(self) -> None:
        super().__init__()
        self.machine = SimulatedMachine("A100-40GB", seed="n", mig=True)
        (self.gpu,) = self.machine.uuids()

    @rule(target=made, profile=st.sampled_from(A100.names), start=st.integers(0, 7))
    def create(self, profile: str, start: int) -> object:
        before = self.machine.instances(self.gpu)
        row = A100.profile(profile)
        refusal: type[Exception] | None = None if start in row.starts else InvalidArgument
        if refusal is None and start not in free_starts(A100, row, occupancy_of(A100, placements(before))):
            refusal = InsufficientResources
        if refusal:
            with pytest.raises(refusal):
                self.machine.create_gpu_instance(self.gpu, profile, start)
            assert self.machine.instances(self.gpu) == before
            return multiple()
        gi_id = self.machine.create_gpu_instance(self.gpu, profile, start)
        self.machine.create_compute_instance(self.gpu, gi_id, A100.profile(profile).ci_profile_index)
        return gi_id

    @rule(gi_id=made)
    def destroy(self, gi_id: int) -> None:
        if all(one.gi_id != gi_id for one in self.machine.instances(self.gpu)):
            with pytest.raises(NvmlNotFound):
                self.machine.destroy_gpu_instance(self.gpu, gi_id)
            return
        self.machine.destroy_compute_instance(self.gpu, gi_id, 0)
        self.machine.destroy_gpu_instance(self.gpu, gi_id)

    @invariant()
    def only_what_fits(self) -> None:
        held = self.machine.instances(self.gpu)
        occupancy_of(A100, placements(held))
        assert len({one.gi_id for one in held}) == len(held)


TestCard = Card.TestCase
TestCard.settings = settings(max_examples=examples(40), stateful_step_count=20, deadline=None)


@given(st.text(max_size=20))
def test_any_text_makes_a_machine_or_a_readable_error(spec: str) -> None:
    with suppress(ValueError):
        assert SimulatedMachine(spec, seed="n").devices()


def test_who_follows_a_part_of_a_machine_hears_of_its_changes_alone() -> None:
    machine = SimulatedMachine("1xA100-40GB", seed="n")
    heard: list[str] = []
    end = machine.subscribe(lambda: heard.append(machine.loaded_driver or ""), lambda state: state.driver_version)
    machine.slow("instances", 1.0)
    assert heard == []
    with machine.change() as state:
        state.driver_version = ""
    with machine.change() as state:
        state.driver_version = DRIVER_VERSION
    assert heard == ["", DRIVER_VERSION], "lost and back"
    machine.slow("instances", 0.0)
    assert heard == ["", DRIVER_VERSION]
    end()
    with machine.change() as state:
        state.driver_version = ""
    assert heard == ["", DRIVER_VERSION]
