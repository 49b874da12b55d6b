"""Properties, links and compute modes of a card: both back ends agree."""

from collections import Counter
from collections.abc import Callable
from itertools import combinations
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.support.nvml_library import NvmlLibrary

from tessera.mig.models import model_by_short_name
from tessera.nvml.errors import GpuLost, NotSupported, NvmlNotFound, UnknownNvmlError
from tessera.nvml.interface import (
    CardAttributes,
    ComputeMode,
    GpuUuid,
    MigAttributes,
    MigUuid,
    NvLink,
    Nvml,
    pcie_bandwidth,
)
from tessera.nvml.real.real_nvml import RealNvml
from tessera.nvml.simulated.simulated_machine import SimulatedMachine

CLUSTER = "9b6a5e2c-1a4f-4a58-8c0d-3f1d7c7e2a11"


def altered(machine: SimulatedMachine, gpu: GpuUuid, **changes: Any) -> None:
    machine.set_attributes(gpu, msgspec.structs.replace(machine.attributes(gpu), **changes))


def made(nvml: Nvml, gpu: GpuUuid, profile: str, start: int, ci_profile: int) -> MigUuid:
    return nvml.create_compute_instance(gpu, nvml.create_gpu_instance(gpu, profile, start), ci_profile).mig_uuid


@pytest.fixture
def whole() -> SimulatedMachine:
    """Eight A100, MIG mode off."""
    return SimulatedMachine("8xA100-40GB", seed="n")


def test_the_cuda_version_follows_from_the_driver(real: RealNvml, machine: SimulatedMachine) -> None:
    assert real.cuda_version() == machine.cuda_version() == 13020
    assert SimulatedMachine("A30", seed="n", driver="570.133.20").cuda_version() == 12080
    assert SimulatedMachine("A30", seed="n", driver="568.1").cuda_version() == 12070


def test_a_data_centre_card_has_ecc_and_no_display(machine: SimulatedMachine) -> None:
    assert machine.attributes(machine.uuids()[0]) == CardAttributes(
        pci_class=0x030200, ecc=True, recovery_action=0, pcie_bandwidth=pcie_bandwidth(4, 16), brand="Nvidia"
    )


def test_attributes_are_told_alike(real: RealNvml, machine: SimulatedMachine, tmp_path: Path) -> None:
    gpu, other = machine.uuids()
    for bus in ("0000:10:00.0", "0000:11:00.0"):
        folder = tmp_path / "sys/bus/pci/devices" / bus
        folder.mkdir(parents=True)
        (folder / "class").write_text("0x030200\n")
    altered(
        machine,
        gpu,
        ecc=False,
        fabric=(CLUSTER, "7"),
        recovery_action=4,
        pci_subsystem_id=0x146310DE,
        addressing_mode="HMM",
    )
    assert real.attributes(gpu) == machine.attributes(gpu)
    assert real.attributes(other) == machine.attributes(other)


def test_a_card_that_tells_nothing_is_not_an_error(real: RealNvml, machine: SimulatedMachine) -> None:
    machine.fail("attributes", NotSupported, times=None)
    assert real.attributes(machine.uuids()[0]) == CardAttributes()


def test_what_an_old_driver_cannot_be_asked_is_not_known(
    real: RealNvml, machine: SimulatedMachine, library: NvmlLibrary
) -> None:
    gpu = machine.uuids()[0]
    library.without |= {
        "nvmlDeviceGetMaxPcieLinkGeneration",
        "nvmlDeviceGetGpuFabricInfoV",
        "nvmlDeviceGetFieldValues",
        "nvmlDeviceGetAttributes_v2",
    }
    assert real.attributes(gpu) == CardAttributes(ecc=True, brand="Nvidia")
    assert real.mig_attributes(made(real, gpu, "1g.5gb", 0, 0)) == MigAttributes()


def test_a_card_without_memory_of_its_own_is_listed_with_none(
    real: RealNvml, machine: SimulatedMachine, library: NvmlLibrary
) -> None:
    """GB10 shares the machine's memory: NVML answers NOT_SUPPORTED."""

    def refuse(_library: Any, _device: Any, _info: Any) -> None:
        raise NotSupported("memory")

    library.instead |= {"nvmlDeviceGetMemoryInfo": refuse, "nvmlDeviceGetMemoryInfo_v2": refuse}
    listed = real.devices()
    assert [(card.uuid, card.memory_mib) for card in listed] == [(uuid, 0) for uuid in machine.uuids()]
    with pytest.raises(NotSupported):
        real.memory(listed[0].uuid)


@pytest.mark.parametrize(("cards", "profile"), [("A100-40GB", "7g.40gb"), ("A30", "4g.24gb"), ("H100-80GB", "7g.80gb")])
def test_a_slice_of_the_whole_card_gets_the_compute_profile_that_nvml_lists(cards: str, profile: str) -> None:
    """The profile's index follows from its compute slices and is no number of the GPU-instance profile."""
    nvml = SimulatedMachine(cards, seed="n", mig=True)
    (gpu,) = nvml.uuids()
    row = model_by_short_name(cards).geometry.profile(profile)
    made(nvml, gpu, profile, 0, row.ci_profile_index)
    (instance,) = nvml.instances(gpu)
    assert [one.profile_index for one in instance.compute_instances] == [row.ci_profile_index]
    assert row.ci_profile_index == {7: 4, 4: 3}[row.compute_slices]


def test_a_recovery_action_that_the_driver_does_not_know_is_none(real: RealNvml, machine: SimulatedMachine) -> None:
    gpu = machine.uuids()[0]
    altered(machine, gpu, recovery_action=None)
    assert real.attributes(gpu).recovery_action is None


def test_the_switches_of_one_machine_are_no_fabric(real: RealNvml, machine: SimulatedMachine) -> None:
    gpu = machine.uuids()[0]
    altered(machine, gpu, fabric=("00000000-0000-0000-0000-000000000000", "0"))
    assert real.attributes(gpu).fabric is None


def test_a_lost_card_and_a_broken_driver_are_errors(real: RealNvml, machine: SimulatedMachine) -> None:
    gpu, other = machine.uuids()
    machine.fail("attributes", UnknownNvmlError, skip=1)
    with pytest.raises(UnknownNvmlError, match=f"ECC mode of {gpu}"):
        real.attributes(gpu)
    machine.lose(gpu)
    for nvml in (real, machine):
        for call in (nvml.attributes, nvml.nvlinks, nvml.compute_mode, nvml.card_files):
            with pytest.raises(GpuLost):
                call(gpu)
        with pytest.raises(GpuLost):
            nvml.common_ancestor(other, gpu)


A100_ATTRIBUTES = {
    ("1g.5gb", 0): MigAttributes(memory_mib=4864, multiprocessors=14, gi_slices=1, ci_slices=1, copy_engines=1),
    ("1g.5gb+me", 0): MigAttributes(
        memory_mib=4864,
        multiprocessors=14,
        gi_slices=1,
        ci_slices=1,
        copy_engines=1,
        decoders=1,
        jpeg_engines=1,
        ofa_engines=1,
    ),
    ("1g.10gb", 0): MigAttributes(
        memory_mib=9856, multiprocessors=14, gi_slices=1, ci_slices=1, copy_engines=1, decoders=1
    ),
    ("3g.20gb", 2): MigAttributes(
        memory_mib=19968, multiprocessors=42, gi_slices=3, ci_slices=3, copy_engines=3, decoders=2
    ),
    ("3g.20gb", 0): MigAttributes(
        memory_mib=19968, multiprocessors=14, gi_slices=3, ci_slices=1, copy_engines=3, decoders=2
    ),
    ("7g.40gb", 4): MigAttributes(
        memory_mib=40192,
        multiprocessors=98,
        gi_slices=7,
        ci_slices=7,
        copy_engines=7,
        decoders=5,
        jpeg_engines=1,
        ofa_engines=1,
    ),
}


@pytest.mark.parametrize(("profile", "ci_profile"), A100_ATTRIBUTES)
def test_a_mig_device_of_an_a100_is_what_nvidia_smi_lists(
    real: RealNvml, machine: SimulatedMachine, profile: str, ci_profile: int
) -> None:
    device = made(machine, machine.uuids()[0], profile, 0, ci_profile)
    assert machine.mig_attributes(device) == A100_ATTRIBUTES[profile, ci_profile]
    assert real.mig_attributes(device) == A100_ATTRIBUTES[profile, ci_profile]
    assert machine.memory(device).total == A100_ATTRIBUTES[profile, ci_profile].memory_mib << 20


@pytest.mark.parametrize(
    ("model", "profile", "ci_profile", "memory", "multiprocessors", "engines"),
    [
        ("A100-80GB", "2g.20gb", 1, 19968, 28, (2, 1, 0, 0)),
        ("H100-80GB", "1g.20gb", 0, 20096, 26, (1, 1, 1, 0)),
        ("H100-80GB", "3g.40gb", 2, 40448, 60, (3, 3, 3, 0)),
        ("H100-80GB", "3g.40gb", 0, 40448, 0, (3, 3, 3, 0)),  # nobody has published the SMs of a part of a 3g
        ("H100-80GB", "7g.80gb", 4, 81152, 132, (8, 7, 7, 1)),
        ("A30", "2g.12gb+me", 1, 11968, 28, (2, 2, 1, 1)),
        ("A30", "4g.24gb", 3, 24000, 56, (4, 4, 1, 1)),
        ("B200", "3g.90gb", 2, 91679, 0, (0, 0, 0, 0)),  # nor anything of a B200 but its memory
    ],
)
def test_mig_devices_of_other_models(
    *, model: str, profile: str, ci_profile: int, memory: int, multiprocessors: int, engines: tuple[int, ...]
) -> None:
    machine = SimulatedMachine(model, seed="n", mig=True)
    found = machine.mig_attributes(made(machine, machine.uuids()[0], profile, 0, ci_profile))
    assert (found.memory_mib, found.multiprocessors) == (memory, multiprocessors)
    assert (found.copy_engines, found.decoders, found.jpeg_engines, found.ofa_engines) == engines


def test_a_card_is_no_mig_device(machine: SimulatedMachine) -> None:
    for name in (machine.uuids()[0], "MIG-x"):
        with pytest.raises(NvmlNotFound):
            machine.mig_attributes(MigUuid(name))


@pytest.mark.parametrize(
    ("model", "links", "switches"), [("A100-40GB", 12, 6), ("H100-80GB", 18, 4), ("B200", 18, 2), ("GB200", 18, 18)]
)
def test_the_cards_of_a_board_reach_each_other_through_switches(model: str, links: int, switches: int) -> None:
    machine = SimulatedMachine(f"8x{model}", seed="n")
    for gpu in machine.uuids():
        found = machine.nvlinks(gpu)
        assert all(link.switch for link in found)
        assert (len(found), len(set(found))) == (links, switches)
    addresses = {gpu.pci_bus_id for gpu in machine.devices()}
    assert addresses.isdisjoint(link.remote_pci for link in found)


@pytest.mark.parametrize("model", ["A30", "T4", "L40S", "H100-NVL", "RTX-PRO-6000"])
def test_cards_in_slots_have_no_nvlink(model: str) -> None:
    machine = SimulatedMachine(f"2x{model}", seed="n")
    assert machine.nvlinks(machine.uuids()[0]) == []


def test_eight_v100_are_the_hybrid_cube_mesh_of_a_dgx1() -> None:
    machine = SimulatedMachine("8xV100", seed="n")
    by_address = {gpu.pci_bus_id: gpu.index for gpu in machine.devices()}
    links = [Counter(by_address[link.remote_pci] for link in machine.nvlinks(gpu)) for gpu in machine.uuids()]
    assert [sum(one.values()) for one in links] == [6] * 8
    assert all(links[one][other] == links[other][one] for one, other in combinations(range(8), 2))
    assert links[0] == {1: 1, 2: 1, 3: 2, 4: 2}
    machine.lose(machine.uuids()[4])
    assert len(machine.nvlinks(machine.uuids()[0])) == 4


def test_mig_mode_has_no_nvlink(whole: SimulatedMachine) -> None:
    gpu = whole.uuids()[0]
    whole.set_mig_mode(gpu, True)
    assert whole.nvlinks(gpu) == []
    assert len(whole.nvlinks(whole.uuids()[1])) == 12


@pytest.fixture
def bridged(machine: SimulatedMachine) -> SimulatedMachine:
    """Two cards out of MIG mode with a bridge between them."""
    one, two = machine.devices()
    for gpu, other in ((one, two), (two, one)):
        machine.set_mig_mode(gpu.uuid, False)
        machine.set_nvlinks(gpu.uuid, [NvLink(other.pci_bus_id)] * 4)
    return machine


def test_nvlinks_are_told_alike(real: RealNvml, bridged: SimulatedMachine) -> None:
    one, two = bridged.uuids()
    assert real.nvlinks(one) == bridged.nvlinks(one) == [NvLink("00000000:11:00.0")] * 4
    through = [NvLink(f"00000000:C{n % 6}:00.0", switch=True) for n in range(12)]
    bridged.set_nvlinks(two, through)
    assert real.nvlinks(two) == bridged.nvlinks(two) == through


def test_a_switch_outside_of_the_machine_has_no_address(real: RealNvml, bridged: SimulatedMachine) -> None:
    one, _ = bridged.uuids()
    bridged.set_nvlinks(one, [NvLink("", switch=True)] * 2)
    assert real.nvlinks(one) == [NvLink("", switch=True)] * 2


def test_a_card_without_nvlink_has_none(real: RealNvml, machine: SimulatedMachine) -> None:
    machine.fail("nvlinks", NotSupported, times=None)
    assert real.nvlinks(machine.uuids()[0]) == []


def test_where_cards_meet(whole: SimulatedMachine) -> None:
    first, *others = whole.uuids()
    assert [whole.common_ancestor(first, other) for other in (first, *others)] == [0, 20, 40, 40, 50, 50, 50, 50]
    assert all(
        whole.common_ancestor(one, other) == whole.common_ancestor(other, one)
        for one, other in combinations(whole.uuids(), 2)
    )


@pytest.mark.parametrize("count", range(1, 11))
def test_cards_that_meet_below_a_processor_are_on_its_node(count: int) -> None:
    machine = SimulatedMachine(f"{count}xA100-40GB", seed="n")
    for one, other in combinations(machine.uuids(), 2):
        is_beside = machine.place(one).numa_node == machine.place(other).numa_node
        assert is_beside == (machine.common_ancestor(one, other) < 50)


def test_where_cards_meet_is_told_alike(real: RealNvml, machine: SimulatedMachine) -> None:
    one, two = machine.uuids()
    assert real.common_ancestor(one, two) == machine.common_ancestor(one, two) == 20
    assert real.common_ancestor(one, one) == 0


@pytest.mark.parametrize("mode", ComputeMode)
def test_the_compute_mode_is_set_and_told_alike(real: RealNvml, machine: SimulatedMachine, mode: ComputeMode) -> None:
    gpu, other = machine.uuids()
    machine.set_mig_mode(gpu, False)
    assert real.compute_mode(gpu) is ComputeMode.DEFAULT
    real.set_compute_mode(gpu, mode)
    assert real.compute_mode(gpu) is machine.compute_mode(gpu) is mode
    assert real.compute_mode(other) is ComputeMode.DEFAULT


def test_in_mig_mode_the_compute_mode_is_the_default(real: RealNvml, machine: SimulatedMachine) -> None:
    gpu = machine.uuids()[0]
    nvmls: list[Nvml] = [real, machine]
    for nvml in nvmls:
        assert nvml.compute_mode(gpu) is ComputeMode.DEFAULT
        with pytest.raises(NotSupported, match=f"of {gpu}: the card is in MIG mode"):
            nvml.set_compute_mode(gpu, ComputeMode.EXCLUSIVE_PROCESS)


def test_the_compute_mode_is_lost_with_a_reboot_and_with_mig_mode(whole: SimulatedMachine) -> None:
    one, two, *_ = whole.uuids()
    for gpu in (one, two):
        whole.set_compute_mode(gpu, ComputeMode.EXCLUSIVE_PROCESS)
    whole.set_mig_mode(one, True)
    whole.set_mig_mode(one, False)
    assert [whole.compute_mode(gpu) for gpu in (one, two)] == [ComputeMode.DEFAULT, ComputeMode.EXCLUSIVE_PROCESS]
    whole.reboot()
    assert whole.compute_mode(two) is ComputeMode.DEFAULT


def test_on_a_prohibited_card_nothing_computes(whole: SimulatedMachine) -> None:
    gpu = whole.uuids()[0]
    whole.set_compute_mode(gpu, ComputeMode.PROHIBITED)
    with pytest.raises(NotSupported, match="PROHIBITED"):
        whole.start_process(gpu)


def test_a_container_of_a_whole_card_gets_its_file_and_the_drivers(
    real: RealNvml, machine: SimulatedMachine, proc: Callable[[str], None], tmp_path: Path
) -> None:
    gpu = machine.uuids()[1]
    proc("")
    common = ["/dev/nvidiactl 195 255", "/dev/nvidia1 195 1", "/dev/nvidia-uvm 507 0", "/dev/nvidia-uvm-tools 507 1"]
    assert [f"{one.path} {one.major} {one.minor}" for one in real.card_files(gpu)] == common
    devices = tmp_path / "proc/devices"
    devices.write_text(devices.read_text().replace("195 nvidiactl", "195 nvidia-modeset\n195 nvidiactl"))
    assert [f"{one.path} {one.major} {one.minor}" for one in real.card_files(gpu)] == [
        *common,
        "/dev/nvidia-modeset 195 254",
    ]
    assert machine.card_files(gpu) == []


def test_without_the_hosts_proc_the_remedy_is_told(real: RealNvml, machine: SimulatedMachine) -> None:
    with pytest.raises(NotSupported, match="mount the host's /proc"):
        real.card_files(machine.uuids()[0])
