"""Every call of the interface that changes nothing is made on every card, and timed."""

import inspect
from typing import Protocol

import pytest

from tessera.accept.acceptance import CHANGES, CallReader, reading_calls
from tessera.accept.facts import CallResult, Outcome
from tessera.nvml.errors import GpuLost, NotSupported, UnknownNvmlError
from tessera.nvml.interface import GpuUuid, Nvml
from tessera.nvml.simulated.simulated_machine import SimulatedMachine

CALLS = [name for name, member in vars(Nvml).items() if inspect.isfunction(member) and not name.startswith("_")]


@pytest.fixture
def cut() -> SimulatedMachine:
    """Two A100; the first has a MIG device."""
    machine = SimulatedMachine("2xA100-40GB", seed="n")
    first = machine.uuids()[0]
    machine.set_mig_mode(first, True)
    machine.create_compute_instance(first, machine.create_gpu_instance(first, "1g.5gb", 0), 0)
    return machine


def read(machine: SimulatedMachine, protocol: type = Nvml) -> list[CallResult]:
    ticks = iter(range(100_000))
    return list(CallReader(machine, lambda: next(ticks) / 1000, protocol=protocol).read_all(machine.devices()))


def test_every_call_of_the_interface_is_made_or_named_as_a_change(cut: SimulatedMachine) -> None:
    made = {result.call for result in read(cut)}
    changes = {name for name in CALLS if name.partition("_")[0] in CHANGES}
    assert made | changes == set(CALLS)
    assert not made & changes


def test_every_call_is_known_to_be_about_something(cut: SimulatedMachine) -> None:
    assert [result.text for result in read(cut) if result.outcome is Outcome.ERROR] == []


def test_calls_that_are_made_change_nothing(cut: SimulatedMachine) -> None:
    with cut.change() as state:
        before = repr(state)
    read(cut)
    with cut.change() as state:
        assert repr(state) == before


@pytest.mark.parametrize(
    "name", [name for name in reading_calls(Nvml) if "gpu" in inspect.signature(getattr(Nvml, name)).parameters]
)
def test_a_call_on_a_card_has_a_result_for_every_card(cut: SimulatedMachine, name: str) -> None:
    assert {result.card for result in read(cut) if result.call == name} == {0, 1}


class Newer(Nvml, Protocol):
    """The interface of tomorrow."""

    def fan_speed(self, gpu: GpuUuid) -> int: ...

    def weather(self, city: str) -> int: ...


class NewerMachine(SimulatedMachine):
    def fan_speed(self, gpu: GpuUuid) -> int:
        return self.uuids().index(gpu) + 40


def test_a_new_call_is_made_without_a_change_here() -> None:
    machine = NewerMachine("2xA30", seed="n")
    found = [result for result in read(machine, Newer) if result.call == "fan_speed"]
    assert [(each.card, each.value, each.milliseconds) for each in found] == [(0, 40, 1.0), (1, 41, 1.0)]


def test_a_new_call_about_something_unknown_is_an_error_that_says_where_to_add_it() -> None:
    (found,) = (each for each in read(NewerMachine("A30", seed="n"), Newer) if each.call == "weather")
    assert found.outcome is Outcome.ERROR
    assert "what to pass as city; add it to tessera.accept.acceptance" in found.text


def test_errors_of_one_card_are_its_own(cut: SimulatedMachine) -> None:
    second = cut.uuids()[1]
    cut.fail("memory", UnknownNvmlError, times=None, gpu=second)
    cut.fail("compute_mode", NotSupported, times=None, gpu=second)
    found = {(each.call, each.card): each for each in read(cut)}
    assert found["memory", 1].outcome is Outcome.ERROR
    assert found["memory", 1].code == 999
    assert found["compute_mode", 1].outcome is Outcome.ABSENT
    assert found["memory", 0].outcome is found["compute_mode", 0].outcome is Outcome.VALUE


def test_a_lost_card_is_not_asked(cut: SimulatedMachine) -> None:
    cut.lose(cut.uuids()[1])
    with pytest.raises(GpuLost):
        cut.memory(cut.uuids()[1])
    assert {each.text for each in read(cut) if each.card == 1} == {
        "the card is lost: it fell off the bus; drain the node and reboot it"
    }


def test_a_skipped_call_says_why() -> None:
    machine = SimulatedMachine("A30", seed="n")
    reader = CallReader(machine, lambda: 0.0, skip={"wait_event": "the agent's"})
    (found,) = (each for each in reader.read_all(machine.devices()) if each.call == "wait_event")
    assert (found.outcome, found.text) == (Outcome.ABSENT, "the agent's")
