"""Each check is well on a good machine, and fails for the one thing that it looks at."""

import re
from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec
import pytest
from tests.support.accepted_machine import DRIVER, smi_log, write_smi
from tests.support.nvml_metering import MeteringLibrary

from tessera.accept.checks import CHECKS, CheckResult, Status, judge_all, result_lines
from tessera.accept.facts import Facts, NodeFacts
from tessera.accept.figures import SHARE_OF_MEDIAN, SHARES
from tessera.accept.machine_files import MachineFiles
from tessera.nvml.errors import UnknownNvmlError
from tessera.nvml.interface import NvLink
from tessera.nvml.measurements import Quantity
from tessera.nvml.simulated.boards import DEFAULT_ATTRIBUTES
from tessera.nvml.simulated.simulated_machine import SimulatedMachine

PAGE = Path(__file__).parents[2] / "docs" / "acceptance.md"

Read = Callable[[], Facts]


def judge(facts: Facts) -> Mapping[str, CheckResult]:
    return {each.name: each for each in judge_all(facts)}


def failed(facts: Facts) -> list[str]:
    return [each.name for each in judge_all(facts) if each.status is Status.FAILED]


def with_node(facts: Facts, **values: object) -> Facts:
    node = msgspec.convert({"name": "node-1", "capacity": {"nvidia.com/gpu": "2"}, **values}, NodeFacts)
    return msgspec.structs.replace(facts, node=node)


def test_a_good_machine_passes_every_check(read: Read) -> None:
    found = judge(with_node(read(), driver_label=DRIVER))
    assert {name: each.text for name, each in found.items() if each.status is Status.FAILED} == {}
    assert [name for name, each in found.items() if each.status is Status.ABSENT] == ["fabric"]
    assert found["cards"].text == "NVML 2, readable 2, PCI functions 2, device files 2, capacity 2"
    assert found["driver"].text == f"library {DRIVER}, module {DRIVER}, running {DRIVER}, label {DRIVER}"
    assert found["pcie"].text == "2 of 2 cards use all lanes: generation 4 x16"
    assert found["nvlink"].text == "NVIDIA H100 80GB HBM3: 18 NVLinks for each card"


def lose(machine: SimulatedMachine, _: Path) -> None:
    machine.devices()
    machine.lose(machine.uuids()[1])


def remove_device_file(_: SimulatedMachine, folder: Path) -> None:
    (folder / "dev/nvidia1").unlink()


def other_module(_: SimulatedMachine, folder: Path) -> None:
    (folder / "sys/module/nvidia/version").write_text("580.82.07\n")


def other_power(machine: SimulatedMachine, folder: Path) -> None:
    write_smi(folder, smi_log(machine).replace("105.00 W", "112.00 W", 1))


def card_without_smi(machine: SimulatedMachine, folder: Path) -> None:
    write_smi(folder, smi_log(machine).replace("00000000:11:00.0", "00000000:77:00.0"))


def fewer_lanes(_: SimulatedMachine, folder: Path) -> None:
    (folder / "sys/bus/pci/devices/0000:11:00.0/current_link_width").write_text("8\n")


def fewer_links(machine: SimulatedMachine, _: Path) -> None:
    machine.set_nvlinks(machine.uuids()[1], [NvLink("00000000:C0:00.0", switch=True)] * 6)


def no_links(machine: SimulatedMachine, _: Path) -> None:
    for gpu in machine.uuids():
        machine.set_nvlinks(gpu, [])


def test_a_driver_that_was_loaded_without_nvlinks_is_no_fault_of_the_cards(
    machine: SimulatedMachine, tmp_path: Path, read: Read
) -> None:
    """As on a virtual machine with one card of a board of eight."""
    no_links(machine, tmp_path)
    (tmp_path / "proc/driver/nvidia/params").write_text("EnableMSI: 1\nNvLinkDisable: 1\n")
    facts = read()
    assert not failed(facts)
    assert judge(facts)["nvlink"].text == "the driver's parameter NvLinkDisable turns all NVLinks off"


def worn_sram(machine: SimulatedMachine, _: Path) -> None:
    machine.set_measured(machine.uuids()[1], Quantity.SRAM_THRESHOLD_EXCEEDED, 1.0)


def another_clique(machine: SimulatedMachine, _: Path) -> None:
    cluster = "d0c2a6e0-0000-4000-8000-000000000001"
    for index, gpu in enumerate(machine.uuids()):
        attributes = msgspec.structs.replace(DEFAULT_ATTRIBUTES, fabric=(cluster, str(index)))
        machine.set_attributes(gpu, attributes)


def pending_remap(machine: SimulatedMachine, folder: Path) -> None:
    machine.set_measured(machine.uuids()[1], Quantity.ROW_REMAP_PENDING, 1.0)
    write_smi(folder, smi_log(machine))


def recovery(machine: SimulatedMachine, _: Path) -> None:
    machine.set_attributes(machine.uuids()[1], msgspec.structs.replace(DEFAULT_ATTRIBUTES, recovery_action=2))


def heat(machine: SimulatedMachine, _: Path) -> None:
    machine.set_measured(machine.uuids()[1], Quantity.TEMPERATURE_MARGIN, -3.0)


def packaged_runtime(_: SimulatedMachine, folder: Path) -> None:
    """As the toolkit's packages write it: everything is a comment, so the defaults count."""
    (folder / "runtime.toml").write_text("#accept-nvidia-visible-devices-envvar-when-unprivileged = true\n")


def runtime_by_files(_: SimulatedMachine, folder: Path) -> None:
    path = folder / "runtime.toml"
    path.write_text(path.read_text().replace('"auto"', '"cdi"'))


@pytest.mark.parametrize(
    ("change", "check", "said"),
    [
        (packaged_runtime, "runtime", "an image that names cards gets them in any container; the right settings"),
        (runtime_by_files, "runtime", "mode cdi finds no new slice"),
        (remove_device_file, "cards", "device files 1"),
        (other_module, "driver", "module 580.82.07"),
        (other_power, "nvidia-smi", "agree within 5%"),
        (card_without_smi, "nvidia-smi", "values of NVML"),
        (fewer_lanes, "pcie", "1 of 2 cards use all lanes"),
        (fewer_links, "nvlink", "18 NVLinks for each card"),
        (no_links, "nvlink", "18 NVLinks for each card"),
        (worn_sram, "memory", "1 of 2 cards report no memory error"),
        (another_clique, "fabric", "2 NVLink cliques"),
        (pending_remap, "memory", "1 of 2 cards report no memory error"),
        (recovery, "recovery", "1 of 2 cards need none"),
        (heat, "margins", "-3 degrees"),
    ],
)
def test_one_thing_that_is_not_well_fails_its_check_and_no_other(
    *,
    machine: SimulatedMachine,
    tmp_path: Path,
    read: Read,
    change: Callable[[SimulatedMachine, Path], None],
    check: str,
    said: str,
) -> None:
    change(machine, tmp_path)
    facts = read()
    assert failed(facts) == [check]
    assert said in judge(facts)[check].text


def test_a_card_that_is_lost_is_counted_and_not_readable(machine: SimulatedMachine, read: Read) -> None:
    read()
    lose(machine, Path())
    found = judge(read())
    assert found["cards"].status is Status.FAILED
    assert found["cards"].text.startswith("NVML 2, readable 1, ")
    assert found["cards"].evidence[0] == "card 1: the card is lost: it fell off the bus; drain the node and reboot it"


def test_a_call_that_fails_is_named_with_its_card_and_number(
    library: MeteringLibrary, read: Read, machine: SimulatedMachine
) -> None:
    machine.fail("compute_mode", UnknownNvmlError, times=None, gpu=machine.uuids()[1])
    found = judge(read())["calls"]
    assert found.status is Status.FAILED
    assert found.evidence[0].startswith("compute_mode of card 1: ")
    assert found.evidence[0].endswith("(nvmlReturn_t 999)")


def test_a_card_without_events_is_a_failure(library: MeteringLibrary, read: Read) -> None:
    library.without.add("nvmlDeviceRegisterEvents")
    found = judge(read())["events"]
    assert found.status is Status.FAILED
    assert found.text == "0 of 2 cards report hardware events"


def test_ancestors_that_differ_by_direction_are_a_failure(read: Read) -> None:
    facts = read()
    calls = tuple(
        msgspec.structs.replace(call, value=50) if call.call == "common_ancestor" and call.card == 1 else call
        for call in facts.calls
    )
    found = judge(msgspec.structs.replace(facts, calls=calls))["topology"]
    assert found.status is Status.FAILED
    assert found.evidence == ("cards 0 and 1: level 20 in one direction, 50 in the other",)


@pytest.mark.parametrize(
    ("capacity", "status", "said"),
    [
        ({"nvidia.com/gpu": "2"}, Status.OK, "capacity 2"),
        ({"nvidia.com/gpu": "1"}, Status.FAILED, "capacity 1"),
        ({}, Status.FAILED, "capacity 0"),
        ({"nvidia.com/gpu": "two"}, Status.OK, "readable 2"),
        ({"nvidia.com/gpu": "0", "nvidia.com/mig-1g.10gb": "14"}, Status.OK, "readable 2"),
    ],
)
def test_the_capacity_counts_where_it_counts_cards(
    read: Read, capacity: Mapping[str, str], status: Status, said: str
) -> None:
    found = judge(with_node(read(), capacity=capacity))["cards"]
    assert found.status is status
    assert said in found.text


def test_what_cannot_be_read_is_absent_with_the_reason(read: Read, files: MachineFiles, tmp_path: Path) -> None:
    (tmp_path / "nvidia-smi").unlink()
    found = judge(read())["nvidia-smi"]
    assert (found.status, found.text) == (Status.ABSENT, f"{tmp_path}/nvidia-smi: No such file or directory")


@pytest.mark.parametrize(
    ("log", "status", "said"),
    [("<nvidia_smi_log/>", 6, "ended with status 6"), ("no devices", 0, "is no XML")],
)
def test_a_tool_that_fails_is_absent(
    *, read: Read, files: MachineFiles, tmp_path: Path, log: str, status: int, said: str
) -> None:
    write_smi(tmp_path, log, status=status)
    found = judge(read())["nvidia-smi"]
    assert found.status is Status.ABSENT
    assert said in found.text


def test_a_failed_check_shows_some_of_its_evidence() -> None:
    lines = list(
        result_lines([CheckResult(name="calls", status=Status.FAILED, text="3", evidence=("a", "b", "c"))], evidence=2)
    )
    assert lines == ["failed  calls       3", "        - a", "        - b", "        - 1 more; see -o json"]


def test_the_page_says_what_each_check_expects() -> None:
    checks = PAGE.read_text(encoding="utf-8").partition("## Checks")[2].partition("##")[0]
    assert re.findall(r"^- `([^`]+)`:", checks, re.MULTILINE) == list(CHECKS)


def test_the_page_has_the_share_below_which_each_rate_is_too_slow() -> None:
    text = PAGE.read_text(encoding="utf-8").partition("## Preflight")[2]
    rows = re.findall(r"^\| (`.+`) \|.*\| (\d+) %", text, re.MULTILINE)
    shares = {name: int(share) for names, share in rows for name in re.findall("`([^`]+)`", names)}
    assert shares == {name: round(100 * share) for name, share in SHARES.items()}
    assert f"below {SHARE_OF_MEDIAN:.0%} of the median".replace("%", " %") in text
