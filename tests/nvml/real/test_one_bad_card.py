"""One card whose calls fail never changes what is read of the others, whatever the call and the error.

The table is every function of NVML that takes a card, with every error of ``nvmlReturn_t``. The search by UUID fails
for all cards if one is lost (nvml.h), and so it does here.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pynvml
import pytest
from tests.support.nvml_library import NvmlLibrary
from tests.support.nvml_metering import MeteringLibrary
from tests.support.searching import SEARCHING

from tessera.nvml.errors import DriverMismatch, DriverNotLoaded, NotSupported, NvmlError, UnknownNvmlError
from tessera.nvml.interface import GpuEvent, GpuEventKind, GpuInfo, GpuUuid
from tessera.nvml.known_cards import blank_card
from tessera.nvml.real.real_nvml import RealNvml
from tessera.nvml.simulated.machine_state import SimEvent
from tessera.nvml.simulated.simulated_machine import SimulatedMachine

BY_INDEX = "nvmlDeviceGetHandleByIndex_v2"
#: nvml.h, ``nvmlReturn_t``, but 0 (success).
CODES = (*range(1, 29), 999)
FUNCTIONS = sorted(
    name.removeprefix("c_")
    for name in dir(MeteringLibrary)
    if name.startswith(("c_nvmlDevice", "c_nvmlGpuInstance", "c_nvmlComputeInstance", "c_nvmlGpm"))
)


def codes_of(function: str) -> Sequence[int]:
    """The errors with which a function is played: all in ``make soak``, in ``make test`` a sixth, by turns."""
    return CODES if SEARCHING else CODES[FUNCTIONS.index(function) % 6 :: 6]


#: The functions by which a card is found; an error of any other one concerns the value that it reads.
SEARCHES = (BY_INDEX, "nvmlDeviceGetHandleByUUID", "nvmlDeviceGetUUID")


@pytest.fixture
def machine() -> SimulatedMachine:
    """Three H100; the second one in MIG mode with a slice."""
    machine = SimulatedMachine("3xH100-80GB", seed="node-1", now=lambda: 0.0)
    _, cut, _ = machine.uuids()
    machine.set_mig_mode(cut, True)
    gi_id = machine.create_gpu_instance(cut, "1g.10gb", 0)
    machine.create_compute_instance(cut, gi_id, 0)
    return machine


@pytest.fixture
def library(machine: SimulatedMachine, monkeypatch: pytest.MonkeyPatch) -> MeteringLibrary:
    library = MeteringLibrary(machine)
    monkeypatch.setattr(pynvml, "nvmlLib", library)
    monkeypatch.setattr(pynvml, "_nvmlGetFunctionPointer_cache", {})
    monkeypatch.setattr(pynvml, "_nvmlLib_refcount", 0)
    return library


@pytest.fixture
def sys(tmp_path: Path) -> Path:
    return tmp_path / "sys"


@pytest.fixture
def real(library: NvmlLibrary, tmp_path: Path, sys: Path) -> Iterator[RealNvml]:
    nvml = RealNvml(proc=tmp_path / "proc", sys=sys)
    yield nvml
    nvml.close()


def put_on_bus(sys: Path, address: str, *, kind: int = 0x0302, vendor: int = 0x10DE, driver: str = "nvidia") -> Path:
    folder = sys / "bus/pci/devices" / address
    folder.mkdir(parents=True)
    (folder / "class").write_text(f"0x{kind:04x}00\n")
    (folder / "vendor").write_text(f"0x{vendor:04x}\n")
    if driver:
        (sys / "bus/pci/drivers" / driver).mkdir(parents=True, exist_ok=True)
        (folder / "driver").symlink_to(sys / "bus/pci/drivers" / driver)
    return folder


def reading(real: RealNvml, cards: list[GpuInfo]) -> dict[str, object]:
    """All that the interface reads of the second and third card."""
    one, other = (info.uuid for info in cards[1:])
    (instance,) = real.instances(one)
    (made,) = instance.compute_instances
    found: dict[str, object] = {
        "profiles": real.gi_profiles(one),
        "instances": instance,
        "slice": (real.memory(made.mig_uuid), real.processes(made.mig_uuid), real.mig_attributes(made.mig_uuid)),
        "topology": real.common_ancestor(one, other),
    }
    real.measure_instance(one, instance.gi_id)
    found["measured instance"] = real.measure_instance(one, instance.gi_id)
    for gpu in (one, other):
        real.measure(gpu)
        found[gpu] = (
            real.measure(gpu),
            real.memory(gpu),
            real.processes(gpu),
            real.attributes(gpu),
            real.nvlinks(gpu),
            real.compute_mode(gpu),
        )
    return found


@pytest.mark.parametrize("function", FUNCTIONS)
def test_no_error_of_one_card_changes_the_list_of_the_others(
    real: RealNvml, machine: SimulatedMachine, library: NvmlLibrary, function: str
) -> None:
    first, *others = real.devices()
    for code in codes_of(function):
        library.broken = {(function, first.uuid): code}
        bad, *good = real.devices()
        assert good == others, code
        assert (bad.uuid, bad.index, bad.name, bad.memory_mib) == (first.uuid, 0, first.name, first.memory_mib) or (
            bad.readable and bad.uuid == first.uuid  # a value that the card does not have
        ), code
        library.broken = {}
        assert real.devices() == [first, *others]


@pytest.mark.parametrize("function", SEARCHES)
def test_no_error_of_one_card_changes_what_is_read_of_the_others(
    real: RealNvml, machine: SimulatedMachine, library: NvmlLibrary, function: str
) -> None:
    cards = real.devices()
    before = reading(real, cards)
    for code in CODES:
        library.broken = {(function, cards[0].uuid): code}
        assert reading(real, cards) == before, code


@pytest.mark.parametrize("code", CODES)
def test_a_card_that_was_never_read_has_a_name_of_its_own(
    real: RealNvml, machine: SimulatedMachine, library: NvmlLibrary, code: int
) -> None:
    gpu, *others = machine.uuids()
    library.broken = {(BY_INDEX, gpu): code}
    bad, *good = real.devices()
    assert (bad.uuid, bad.index, bad.readable, bad.identified) == ("GPU-unread-0", 0, False, False)
    assert bad.lost == (code in {6, 15, 28})
    assert [info.uuid for info in good] == others
    assert all(info.readable for info in good)
    with pytest.raises(NvmlError):
        real.memory(bad.uuid)
    library.broken = {}
    assert [info.uuid for info in real.devices()] == [gpu, *others]


@pytest.mark.parametrize(
    "function",
    [
        "nvmlDeviceGetMinorNumber",
        "nvmlDeviceGetPciInfo_v3",
        "nvmlDeviceGetName",
        "nvmlDeviceGetMigMode",
        "nvmlDeviceGetMemoryInfo",
        "nvmlDeviceGetCudaComputeCapability",
    ],
)
@pytest.mark.parametrize("earlier", [True, False])
def test_a_card_with_a_value_that_cannot_be_read_keeps_its_uuid_and_names_the_call(
    real: RealNvml, machine: SimulatedMachine, library: NvmlLibrary, function: str, earlier: bool
) -> None:
    gpu = machine.uuids()[0]
    before = real.devices()[0] if earlier else None
    library.broken = {(function, gpu): 999}
    bad = real.devices()[0]
    assert (bad.uuid, bad.lost, bad.readable) == (gpu, False, False)
    assert bad.error.endswith("of card 0: Unknown Error")
    if before is not None:
        assert (bad.name, bad.memory_mib, bad.pci_bus_id) == (before.name, before.memory_mib, before.pci_bus_id)


@pytest.mark.parametrize("function", ["nvmlDeviceGetMemoryInfo", "nvmlDeviceGetCudaComputeCapability"])
def test_a_value_that_a_card_does_not_have_is_no_error(
    real: RealNvml, machine: SimulatedMachine, library: NvmlLibrary, function: str
) -> None:
    library.broken = {(function, machine.uuids()[0]): NotSupported.code}
    assert real.devices()[0].readable


@pytest.mark.parametrize(
    ("code", "kind"), [(1, UnknownNvmlError), (9, DriverNotLoaded), (12, DriverNotLoaded), (18, DriverMismatch)]
)
def test_an_error_of_the_driver_is_none_of_a_card(
    real: RealNvml, machine: SimulatedMachine, library: NvmlLibrary, code: int, kind: type[NvmlError]
) -> None:
    """The driver is gone if a call that concerns no card says so too."""
    gone = False

    def answer(each: NvmlLibrary, *args: Any) -> None:
        if gone:
            raise NvmlError("gone", code=code)
        each.c_nvmlSystemGetDriverVersion(*args)

    library.instead["nvmlSystemGetDriverVersion"] = answer
    library.broken = {(BY_INDEX, gpu): code for gpu in machine.uuids()}
    assert not any(info.readable for info in real.devices())
    gone = True
    with pytest.raises(kind):
        real.devices()


def test_a_card_of_an_earlier_process_keeps_its_name(
    real: RealNvml, machine: SimulatedMachine, library: NvmlLibrary
) -> None:
    before = RealNvml(sys=Path("/nonexistent")).devices()
    library.broken = {(BY_INDEX, before[1].uuid): 15}
    real.set_known_cards(before)
    assert [(info.uuid, info.index, info.lost) for info in real.devices()] == [
        (info.uuid, info.index, info.index == 1) for info in before
    ]


def test_a_card_of_which_only_a_fault_is_known_gets_the_index_that_fails(
    real: RealNvml, machine: SimulatedMachine, library: NvmlLibrary
) -> None:
    gpu = machine.uuids()[2]
    library.broken = {(BY_INDEX, gpu): 999}
    real.set_known_cards([blank_card(gpu)])
    bad = real.devices()[2]
    assert (bad.uuid, bad.index, bad.readable) == (gpu, 2, False)


def test_a_known_card_that_is_no_longer_counted_is_lost_and_the_others_move_up(
    real: RealNvml, machine: SimulatedMachine, library: NvmlLibrary
) -> None:
    first, second, third = (info.uuid for info in real.devices())
    with machine.change() as state:
        del state.cards[0]
    library.broken = {(BY_INDEX, third): 999}
    found = {info.uuid: (info.index, info.lost, info.error) for info in real.devices()}
    assert found == {first: (0, True, ""), second: (0, False, ""), third: (1, False, "card 1: Unknown Error")}


# The PCI bus ---------------------------------------------------------------------------------------------------------


def test_a_gpu_on_the_pci_bus_that_nvml_does_not_list_is_a_card_that_cannot_be_read(real: RealNvml, sys: Path) -> None:
    for number in (0x10, 0x11, 0x12, 0x13):
        put_on_bus(sys, f"0000:{number:x}:00.0")
    *listed, beyond = real.devices()
    assert all(info.readable for info in listed)
    assert (beyond.uuid, beyond.index, beyond.pci_bus_id) == ("GPU-unread-3", 3, "00000000:13:00.0")
    assert "at 00000000:13:00.0 that NVML does not list" in beyond.error


@pytest.mark.parametrize(
    "other",
    [
        {"vendor": 0x1A03},
        {"kind": 0x0403},
        {"driver": "vfio-pci"},
        {"kind": 0x0300, "driver": ""},
        {"kind": 0x0680, "driver": ""},
    ],
    ids=["another vendor", "its sound", "given to a virtual machine", "an old display", "a switch"],
)
def test_other_functions_on_the_pci_bus_are_no_cards_of_the_driver(
    real: RealNvml, sys: Path, other: dict[str, Any]
) -> None:
    put_on_bus(sys, "0000:13:00.0", **other)
    assert len(real.devices()) == 3


def test_a_gpu_that_the_administrator_excluded_is_not_missed(real: RealNvml, library: NvmlLibrary, sys: Path) -> None:
    def count(_library: Any, found: Any) -> None:
        found._obj.value = 1

    def describe(_library: Any, _index: Any, info: Any) -> None:
        info._obj.pci.busId = b"00000000:13:00.0"

    library.instead |= {"nvmlGetExcludedDeviceCount": count, "nvmlGetExcludedDeviceInfoByIndex": describe}
    put_on_bus(sys, "0000:13:00.0")
    assert len(real.devices()) == 3


def test_a_virtual_function_is_no_card_of_its_own(real: RealNvml, sys: Path) -> None:
    (put_on_bus(sys, "0000:13:00.4") / "physfn").mkdir()
    assert len(real.devices()) == 3


def test_the_card_that_was_never_read_gets_the_address_that_is_left(
    real: RealNvml, machine: SimulatedMachine, library: NvmlLibrary, sys: Path
) -> None:
    for number in (0x10, 0x11, 0x12):
        put_on_bus(sys, f"0000:{number:x}:00.0")
    library.broken = {(BY_INDEX, machine.uuids()[1]): 999}
    assert [info.pci_bus_id for info in real.devices()] == [f"00000000:{number:X}:00.0" for number in (16, 17, 18)]


def test_a_card_that_was_given_to_a_virtual_machine_is_not_lost(
    real: RealNvml, machine: SimulatedMachine, sys: Path
) -> None:
    cards = real.devices()
    with machine.change() as state:
        del state.cards[2]
    assert real.devices()[2].lost
    put_on_bus(sys, "0000:12:00.0", driver="vfio-pci")
    assert real.devices() == cards[:2]


# Events --------------------------------------------------------------------------------------------------------------


def test_an_event_of_a_card_that_fell_off_the_bus_names_that_card(
    real: RealNvml, machine: SimulatedMachine, library: NvmlLibrary
) -> None:
    real.devices()
    gpu = machine.uuids()[0]
    assert real.wait_event(0.001) is None
    library.broken = {(function, gpu): 15 for function in FUNCTIONS}
    machine.lose(gpu)
    event = real.wait_event(1)
    assert event is not None
    assert (event.gpu, event.xid) == (gpu, 79)


def test_a_card_whose_uuid_cannot_be_read_at_registration_has_its_last_known_name(
    real: RealNvml, machine: SimulatedMachine, library: NvmlLibrary
) -> None:
    real.devices()
    gpu = machine.uuids()[0]
    library.broken = {("nvmlDeviceGetUUID", gpu): 999}
    assert next_event(real, machine, SimEvent(GpuEventKind.XID, gpu, 48)).gpu == gpu


def test_a_card_that_can_be_read_again_reports_events_again(
    real: RealNvml, machine: SimulatedMachine, library: NvmlLibrary
) -> None:
    gpu = machine.uuids()[0]
    registered: list[GpuUuid] = []

    def register(each: NvmlLibrary, device: Any, _mask: Any, _events: Any) -> None:
        registered.append(each.gpu(device))

    library.instead["nvmlDeviceRegisterEvents"] = register
    library.broken = {(BY_INDEX, gpu): 999}
    real.devices()
    real.wait_event(0.001)
    assert registered == machine.uuids()[1:]
    library.broken = {}
    real.devices()
    real.wait_event(0.001)
    assert registered == [*machine.uuids()[1:], gpu]


def test_a_card_that_can_be_read_again_while_another_one_fails_reports_events_again(
    real: RealNvml, machine: SimulatedMachine, library: NvmlLibrary
) -> None:
    first, second, third = machine.uuids()
    registered: list[GpuUuid] = []

    def register(each: NvmlLibrary, device: Any, _mask: Any, _events: Any) -> None:
        registered.append(each.gpu(device))

    library.instead["nvmlDeviceRegisterEvents"] = register
    for broken in (first, second):
        library.broken = {(BY_INDEX, broken): 999}
        real.devices()
        real.wait_event(0.001)
    assert registered == [second, third, first]


def test_a_readable_card_whose_registration_is_refused_is_tried_again_with_growing_pauses(
    real: RealNvml, machine: SimulatedMachine, library: NvmlLibrary
) -> None:
    gpu = machine.uuids()[0]
    tried: list[int] = []
    waits, refused = 0, True

    def register(each: NvmlLibrary, device: Any, _mask: Any, _events: Any) -> None:
        if each.gpu(device) == gpu:
            tried.append(waits)
            if refused:
                raise pynvml.NVMLError(999)

    library.instead["nvmlDeviceRegisterEvents"] = register
    real.devices()
    for waits in range(2000):
        refused = waits < 1000
        real.wait_event(0.001)
    assert tried == [0, 4, 12, 28, 60, 124, 252, 508, 764, 1020]


def test_a_card_whose_registration_is_refused_is_told_until_it_succeeds(
    real: RealNvml, machine: SimulatedMachine, library: NvmlLibrary
) -> None:
    gpu, refused = machine.uuids()[1], True

    def register(each: NvmlLibrary, device: Any, _mask: Any, _events: Any) -> None:
        if refused and each.gpu(device) == gpu:
            raise pynvml.NVMLError(999)

    real.devices()
    assert real.unheard_cards() == {}, "nothing was registered yet"
    library.instead["nvmlDeviceRegisterEvents"] = register
    real.wait_event(0.001)
    assert real.unheard_cards() == {gpu: "events of card 1: Unknown Error"}
    refused = False
    for _ in range(300):
        real.wait_event(0.001)
    assert real.unheard_cards() == {}


def test_an_event_of_a_card_that_had_no_name_at_registration_has_the_name_of_now(
    real: RealNvml, machine: SimulatedMachine, library: NvmlLibrary
) -> None:
    gpu = machine.uuids()[0]
    library.broken = {("nvmlDeviceGetUUID", gpu): 999}
    assert real.devices()[0].uuid == "GPU-unread-0"
    assert next_event(real, machine, SimEvent(GpuEventKind.XID, gpu, 48)).gpu == "GPU-unread-0"
    library.broken = {}
    assert real.devices()[0].uuid == gpu
    assert next_event(real, machine, SimEvent(GpuEventKind.XID, gpu, 48)).gpu == gpu


def test_a_node_whose_only_cards_cannot_be_registered_watches_again_later(
    real: RealNvml, machine: SimulatedMachine, library: NvmlLibrary
) -> None:
    library.broken = {(BY_INDEX, gpu): 999 for gpu in machine.uuids()}
    with pytest.raises(UnknownNvmlError, match="none of 3 cards can be registered"):
        real.wait_event(0.001)


def next_event(real: RealNvml, machine: SimulatedMachine, event: SimEvent) -> GpuEvent:
    machine.report(event)
    found = real.wait_event(1)
    assert found is not None
    return found


@pytest.mark.parametrize("xid", [94, 74])
def test_instance_ids_of_an_event_on_a_card_without_mig_are_no_instance(
    real: RealNvml, machine: SimulatedMachine, xid: int
) -> None:
    whole, cut, _ = machine.uuids()
    real.devices()
    event = next_event(real, machine, SimEvent(GpuEventKind.XID, whole, xid, gi_id=0, ci_id=0))
    assert (event.gi_id, event.ci_id) == (None, None)
    event = next_event(real, machine, SimEvent(GpuEventKind.XID, cut, xid, gi_id=0, ci_id=0))
    assert (event.gi_id, event.ci_id) == (0, 0)
