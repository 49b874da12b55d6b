"""Each kind of fault shows as its hardware would show it, and mending removes it."""

import pytest
from click.testing import CliRunner

from tessera.agent.monitoring.card_states import find_errors
from tessera.api.nodes.health import FABRIC, NVLINK_ERRORS, SRAM_ECC
from tessera.nvml.errors import GpuLost, NvmlError
from tessera.nvml.interface import GpuEventKind, GpuUuid
from tessera.nvml.measurements import Quantity
from tessera.nvml.simulated.simulated_machine import SimulatedMachine
from tessera_lab.activity.card_faults import FAULTS, mend_card, report_xid
from tessera_lab.cli.lab_cards import break_gpu


def broken(fault: str) -> SimulatedMachine:
    machine = SimulatedMachine("2xH100-80GB", seed="n", mig=True)
    with machine.change() as state:
        FAULTS[fault].apply(state, state.cards[0])
    return machine


def events(machine: SimulatedMachine) -> list[tuple[GpuEventKind, int | None]]:
    found = []
    while (event := machine.wait_event(0)) is not None:
        found.append((event.kind, event.xid))
    return found


def is_healthy(machine: SimulatedMachine) -> bool:
    gpu, _ = machine.uuids()
    values = machine.measure(gpu).values
    machine.destroy_gpu_instance(gpu, machine.create_gpu_instance(gpu, "1g.10gb", 0))
    return machine.attributes(gpu).recovery_action == 0 and values[Quantity.TEMPERATURE] < 80


def test_a_lost_card_answers_no_call_until_the_machine_reboots() -> None:
    machine = broken("lost")
    gpu, other = machine.uuids()
    assert events(machine) == [(GpuEventKind.XID, 79)]
    with machine.change() as state:
        mend_card(state, state.cards[0])
    with pytest.raises(GpuLost):
        machine.memory(gpu)
    machine.memory(other)
    machine.reboot()
    machine.memory(gpu)


def test_after_an_ecc_error_the_driver_asks_for_a_reset_and_is_content_after_it() -> None:
    machine = broken("ecc")
    gpu, _ = machine.uuids()
    assert events(machine) == [(GpuEventKind.DOUBLE_BIT_ECC, None), (GpuEventKind.XID, 48)]
    assert machine.measure(gpu).values[Quantity.ECC_UNCORRECTED] == 1
    assert machine.attributes(gpu).recovery_action == 1
    machine.reset(gpu)
    assert machine.attributes(gpu).recovery_action == 0


@pytest.mark.parametrize(("fault", "bit"), [("heat", 0x40), ("power", 0x80)])
def test_a_card_without_air_or_power_is_slowed_down(fault: str, bit: int) -> None:
    machine = broken(fault)
    gpu, other = machine.uuids()
    values = machine.measure(gpu).values
    assert int(values[Quantity.THROTTLE_REASONS]) & bit
    assert values[Quantity.SM_CLOCK] == 990e6
    assert (values[Quantity.TEMPERATURE] > 90) is (fault == "heat")
    assert not int(machine.measure(other).values[Quantity.THROTTLE_REASONS]) & bit


def test_a_card_that_draws_its_limit_is_capped() -> None:
    machine = broken("power-cap")
    gpu, other = machine.uuids()
    values = machine.measure(gpu).values
    assert values[Quantity.POWER] == values[Quantity.POWER_LIMIT]
    assert int(values[Quantity.THROTTLE_REASONS]) == 0x4
    assert 990e6 < values[Quantity.SM_CLOCK] < 1980e6
    assert machine.measure(other).values[Quantity.POWER] < values[Quantity.POWER]


def test_the_time_for_which_a_card_is_slowed_down_by_heat_is_counted() -> None:
    time = [0.0]
    machine = SimulatedMachine("1xH100-80GB", seed="n", now=lambda: time[0])
    (gpu,) = machine.uuids()
    machine.measure(gpu)
    with machine.change() as state:
        FAULTS["heat"].apply(state, state.cards[0])
    time[0] = 30.0
    assert machine.measure(gpu).values[Quantity.THROTTLED_THERMAL] == 30
    with machine.change() as state:
        mend_card(state, state.cards[0])
    time[0] = 90.0
    values = machine.measure(gpu).values
    assert (values[Quantity.THROTTLED_THERMAL], values[Quantity.THROTTLED_POWER]) == (30, 0)
    assert values[Quantity.ENERGY] == pytest.approx(90 * 105)  # an idle H100 draws 105 W


@pytest.mark.parametrize(
    ("fault", "source"), [("sram", SRAM_ECC), ("fabric", FABRIC), ("nvlink-errors", NVLINK_ERRORS)]
)
def test_a_fault_that_only_measurements_show_is_one_as_long_as_it_lasts(fault: str, source: str) -> None:
    time = [0.0]
    machine = SimulatedMachine("2xH100-80GB", seed="n", now=lambda: time[0])
    gpu, other = machine.uuids()

    def errors(of: GpuUuid) -> str:
        before = machine.measure(of).values
        time[0] += 10.0
        return find_errors(machine.measure(of), before, 10.0).get(source, "")

    assert not errors(gpu)
    with machine.change() as state:
        FAULTS[fault].apply(state, state.cards[0])
    assert errors(gpu)
    assert errors(gpu)
    assert not errors(other)
    with machine.change() as state:
        mend_card(state, state.cards[0])
    assert not errors(gpu)


def test_calls_on_a_card_that_does_not_answer_fail() -> None:
    machine = broken("unreadable")
    gpu, other = machine.uuids()
    assert [(info.uuid, info.readable) for info in machine.devices()] == [(gpu, False), (other, True)]
    with pytest.raises(NvmlError):
        machine.memory(gpu)
    machine.memory(other)


def test_a_card_without_slices_answers_but_makes_no_instance() -> None:
    machine = broken("no-slices")
    gpu, _ = machine.uuids()
    machine.memory(gpu)
    with pytest.raises(NvmlError):
        machine.create_gpu_instance(gpu, "1g.10gb", 0)


@pytest.mark.parametrize("fault", sorted(FAULTS.keys() - {"lost"}))
def test_a_mended_card_works(fault: str) -> None:
    machine = broken(fault)
    with machine.change() as state:
        mend_card(state, state.cards[0])
    assert is_healthy(machine)


@pytest.mark.parametrize(("xid", "action"), [(48, 1), (95, 1), (151, 2), (13, 0), (94, 0)])
def test_the_driver_asks_for_what_the_catalogue_says(xid: int, action: int) -> None:
    machine = SimulatedMachine("1xA100-40GB", seed="n")
    with machine.change() as state:
        report_xid(state, state.cards[0], xid)
    (gpu,) = machine.uuids()
    assert machine.attributes(gpu).recovery_action == action
    assert events(machine) == [(GpuEventKind.XID, xid)]


def test_the_help_lists_each_fault() -> None:
    text = CliRunner().invoke(break_gpu, ["--help"]).output
    faults = text.partition("Faults:")[2].partition("Examples:")[0].splitlines()
    assert {line.split()[0] for line in faults if line.strip()} == set(FAULTS)
