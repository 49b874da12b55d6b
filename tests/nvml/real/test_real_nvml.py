"""The real back end, with NVIDIA's binding, over a library that a simulated machine stands behind.

What the simulated machine answers is the expectation: whoever holds an ``Nvml`` cannot tell the two apart.
"""

from collections.abc import Callable
from pathlib import Path

import pynvml
import pytest
from tests.support.nvml_library import NvmlLibrary

from tessera.nvml.errors import (
    DriverMismatch,
    DriverNotLoaded,
    GpuLost,
    InsufficientResources,
    InUse,
    InvalidArgument,
    NoPermission,
    NotSupported,
    NvmlError,
    NvmlNotFound,
    ResetRequired,
    UnknownNvmlError,
)
from tessera.nvml.interface import DeviceFile, GpuEventKind, GpuUuid, MigModeResult, Nvml
from tessera.nvml.real.mig import profile_name
from tessera.nvml.real.real_nvml import RealNvml
from tessera.nvml.simulated.machine_state import ANY, SimEvent
from tessera.nvml.simulated.simulated_machine import SimulatedMachine


def as_protocol(nvml: RealNvml) -> Nvml:
    return nvml


def test_cards_are_listed_alike(real: RealNvml, machine: SimulatedMachine) -> None:
    assert as_protocol(real).devices() == machine.devices()
    assert real.driver_version() == machine.driver_version()


def test_profiles_are_listed_alike(real: RealNvml, machine: SimulatedMachine) -> None:
    for gpu in machine.uuids():
        assert real.gi_profiles(gpu) == machine.gi_profiles(gpu)


def test_slices_are_made_listed_and_destroyed_alike(real: RealNvml, machine: SimulatedMachine) -> None:
    gpu, other = machine.uuids()
    assert real.instances(gpu) == []
    gi_id = real.create_gpu_instance(gpu, "3g.20gb", 4)
    made = real.create_compute_instance(gpu, gi_id, 2)
    assert real.create_gpu_instance(gpu, "1g.5gb.me", 0) == 7
    small = real.create_gpu_instance(gpu, "2g.10gb", 2)
    real.create_compute_instance(gpu, small, 0)
    real.create_compute_instance(gpu, small, 0)
    assert real.instances(gpu) == machine.instances(gpu)
    assert [(one.profile, one.start, len(one.compute_instances)) for one in real.instances(gpu)] == [
        ("1g.5gb+me", 0, 0),
        ("2g.10gb", 2, 2),
        ("3g.20gb", 4, 1),
    ]
    real.destroy_compute_instance(gpu, gi_id, made.ci_id)
    real.destroy_gpu_instance(gpu, gi_id)
    assert real.instances(gpu) == machine.instances(gpu)
    assert real.instances(other) == []


def test_mig_mode(real: RealNvml, machine: SimulatedMachine) -> None:
    gpu = machine.uuids()[0]
    assert real.set_mig_mode(gpu, False) is MigModeResult.APPLIED
    assert real.instances(gpu) == []
    with pytest.raises(NotSupported, match="MIG mode is off"):
        real.gi_profiles(gpu)
    machine.start_process(gpu)
    assert real.set_mig_mode(gpu, True) is MigModeResult.IN_USE
    assert [(info.mig_enabled, info.mig_pending) for info in real.devices()] == [(False, True), (True, True)]


def test_processes_and_memory_are_told_alike(real: RealNvml, machine: SimulatedMachine) -> None:
    gpu = machine.uuids()[0]
    made = real.create_compute_instance(gpu, real.create_gpu_instance(gpu, "2g.10gb", 0), 1)
    assert real.processes(gpu) == []
    pid = machine.start_process(made.mig_uuid, 1 << 30)
    machine.start_process(made.mig_uuid, 1 << 20)
    for device in (gpu, made.mig_uuid):
        assert real.processes(device) == machine.processes(device)
        assert real.memory(device) == machine.memory(device)
    with pytest.raises(InUse, match=r"compute instance 0 of GPU instance 3 of GPU-.*as the driver words it"):
        real.destroy_compute_instance(gpu, 3, 0)
    machine.end_process(pid)


def test_events_are_told_alike(real: RealNvml, machine: SimulatedMachine) -> None:
    gpu = machine.uuids()[0]
    assert real.wait_event(0.001) is None
    machine.report(SimEvent(GpuEventKind.XID, gpu, 94, gi_id=1, ci_id=0))
    machine.report(SimEvent(GpuEventKind.DOUBLE_BIT_ECC, gpu))
    event, second = real.wait_event(1), real.wait_event(1)
    assert event is not None
    assert second is not None
    assert (event.kind, event.gpu, event.xid, event.gi_id, event.ci_id) == (GpuEventKind.XID, gpu, 94, 1, 0)
    assert (second.kind, second.gpu, second.xid, second.gi_id) == (GpuEventKind.DOUBLE_BIT_ECC, gpu, None, None)


def test_a_card_that_was_seen_and_is_lost_stays_listed_as_lost(real: RealNvml, machine: SimulatedMachine) -> None:
    before = real.devices()
    lost = machine.uuids()[0]
    machine.lose(lost)
    assert [(info.uuid, info.lost) for info in real.devices()] == [(info.uuid, info.uuid == lost) for info in before]
    with pytest.raises(GpuLost, match="drain the node"):
        real.instances(lost)


def test_a_card_that_vanished_counts_as_lost(real: RealNvml, machine: SimulatedMachine) -> None:
    real.devices()
    gpu = machine.uuids()[0]
    for search in ("memory", "instances"):
        machine.fail(search, NvmlNotFound, gpu=gpu, times=None)
    with pytest.raises(GpuLost, match="was there"):
        real.instances(gpu)
    with pytest.raises(NvmlNotFound):
        real.instances(GpuUuid("GPU-other"))


def test_a_profile_that_the_card_does_not_have_is_named(real: RealNvml, machine: SimulatedMachine) -> None:
    gpu = machine.uuids()[0]
    with pytest.raises(InvalidArgument, match=r"3g\.40gb.*it has 1g\.5gb"):
        real.create_gpu_instance(gpu, "3g.40gb", 0)
    with pytest.raises(InvalidArgument):
        real.create_gpu_instance(gpu, "3g.20gb", 1)
    real.create_gpu_instance(gpu, "7g.40gb", 0)
    with pytest.raises(InsufficientResources, match=r"GPU instance 1g\.5gb at 0"):
        real.create_gpu_instance(gpu, "1g.5gb", 0)


@pytest.mark.parametrize(
    "kind",
    [
        DriverMismatch,
        NoPermission,
        ResetRequired,
        InsufficientResources,
        InUse,
        NvmlNotFound,
        GpuLost,
        UnknownNvmlError,
    ],
)
def test_every_error_keeps_its_kind(real: RealNvml, machine: SimulatedMachine, kind: type[NvmlError]) -> None:
    gpu = machine.uuids()[0]
    machine.fail("create_gpu_instance", kind)
    with pytest.raises(kind, match="GPU instance") as caught:
        real.create_gpu_instance(gpu, "1g.5gb", 0)
    assert caught.value.code == kind.code


def test_a_driver_that_was_replaced_is_told_at_the_start(library: NvmlLibrary, machine: SimulatedMachine) -> None:
    machine.fail(ANY, DriverMismatch, times=None)
    with pytest.raises(DriverMismatch, match="restart this process after the driver upgrade"):
        RealNvml()
    assert library.opened == 0


def test_a_machine_without_a_driver_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> object:
        raise OSError(name)

    monkeypatch.setattr(pynvml, "nvmlLib", None)
    monkeypatch.setattr(pynvml, "CDLL", missing)
    with pytest.raises(DriverNotLoaded, match="driver is not installed"):
        RealNvml()


def test_the_kernel_knows_the_numa_node(real: RealNvml, tmp_path: Path) -> None:
    for bus, node in (("0000:10:00.0", "1"), ("0000:11:00.0", "-1")):
        folder = tmp_path / "sys/bus/pci/devices" / bus
        folder.mkdir(parents=True)
        (folder / "numa_node").write_text(f"{node}\n")
    assert [info.numa_node for info in real.devices()] == [1, None]


def test_the_kernel_knows_the_root_complex(real: RealNvml, tmp_path: Path) -> None:
    device = tmp_path / "sys/devices/pci0000:0e/0000:0e:01.0/0000:10:00.0"
    device.mkdir(parents=True)
    bus = tmp_path / "sys/bus/pci/devices"
    bus.mkdir(parents=True)
    (bus / "0000:10:00.0").symlink_to(device)
    assert [info.pcie_root for info in real.devices()] == ["pci0000:0e", ""]


def test_a_container_gets_the_capabilities_of_its_instance_only(
    real: RealNvml, machine: SimulatedMachine, proc: Callable[[str], None]
) -> None:
    proc("config 1\nmonitor 2\ngpu1/gi7/access 66\ngpu1/gi7/ci0/access 67\ngpu1/gi7/ci1/access 68\ngpu0/gi7/access 3\n")
    gpu = machine.uuids()[1]
    assert real.device_files(gpu, 7, 0) == [
        DeviceFile(path="/dev/nvidiactl", major=195, minor=255),
        DeviceFile(path="/dev/nvidia1", major=195, minor=1),
        DeviceFile(path="/dev/nvidia-uvm", major=507, minor=0),
        DeviceFile(path="/dev/nvidia-uvm-tools", major=507, minor=1),
        DeviceFile(path="/dev/nvidia-caps/nvidia-cap66", major=234, minor=66),
        DeviceFile(path="/dev/nvidia-caps/nvidia-cap67", major=234, minor=67),
    ]
    with pytest.raises(NvmlNotFound, match="gpu1/gi8/access"):
        real.device_files(gpu, 8, 0)


def test_without_the_drivers_proc_files_the_remedy_is_told(real: RealNvml, machine: SimulatedMachine) -> None:
    with pytest.raises(NotSupported, match="mount the host's /proc"):
        real.device_files(machine.uuids()[0], 7, 0)


@pytest.mark.parametrize(
    ("named", "index", "slices", "memory", "card", "name"),
    [
        ("MIG 1g.5gb+me", 7, 1, 4864, 40960, "1g.5gb+me"),
        ("1g.24gb+me.all", 15, 1, 24192, 97887, "1g.24gb+me.all"),
        ("", 0, 1, 4864, 40960, "1g.5gb"),
        ("", 7, 1, 4864, 40960, "1g.5gb+me"),
        ("", 9, 1, 9856, 40960, "1g.10gb"),
        ("", 4, 7, 80384, 81920, "7g.80gb"),
        ("", 2, 3, 91136, 183359, "3g.90gb"),
    ],
)
def test_profile_names(*, named: str, index: int, slices: int, memory: int, card: int, name: str) -> None:
    assert profile_name(named, index, slices, memory, card) == name
