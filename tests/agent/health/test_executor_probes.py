"""Probes of cards that answer, refuse, hang or are lost, and the card that each failure is counted for."""

import asyncio

import pytest

from tessera.agent.health.executor import CardProber
from tessera.agent.health.fault import CardProbed, ProbeResult
from tessera.agent.health.policy import RecoveryAction
from tessera.clock import Clock, LoopClock
from tessera.nvml.errors import NoPermission, ResetRequired
from tessera.nvml.interface import GpuUuid
from tessera.nvml.simulated.machine_access import InlineNvml
from tessera.nvml.simulated.simulated_machine import SimulatedMachine
from tessera_lab.simulation.virtual_time import run_virtual


@pytest.fixture
def machine() -> SimulatedMachine:
    return SimulatedMachine("2xA100-40GB", seed="n")


def ask(machine: SimulatedMachine, *gpus: GpuUuid) -> list[CardProbed | None]:
    """The answers of the cards, probed one after the other."""

    async def asked() -> list[CardProbed | None]:
        prober = CardProber(InlineNvml(machine, LoopClock(0)))
        try:
            return [await prober.probe(gpu) for gpu in gpus]
        finally:
            prober.stop()

    return run_virtual(asked())


def results(machine: SimulatedMachine, *gpus: GpuUuid) -> list[ProbeResult | None]:
    return [None if told is None else told.result for told in ask(machine, *gpus)]


def test_a_card_that_refuses_has_failed(machine: SimulatedMachine) -> None:
    machine.fail("memory", NoPermission)
    (told,) = ask(machine, machine.uuids()[0])
    assert told is not None
    assert told.result is ProbeResult.FAILED
    assert told.text


def test_a_probe_of_a_card_that_needs_a_reset_asks_for_one(machine: SimulatedMachine) -> None:
    machine.fail("memory", ResetRequired)
    (told,) = ask(machine, machine.uuids()[0])
    assert told is not None
    assert told.recovery is RecoveryAction.GPU_RESET


def test_a_lost_card_is_lost_and_its_neighbour_is_not(machine: SimulatedMachine) -> None:
    one, other = machine.uuids()
    machine.lose(one)
    assert results(machine, one, other) == [ProbeResult.LOST, ProbeResult.CLEAN]


def test_a_card_that_hangs_has_failed_and_no_other_card(machine: SimulatedMachine) -> None:
    one, other = machine.uuids()
    machine.slow("memory", 60)
    first, second, third = ask(machine, one, other, one)
    assert first == third == CardProbed(gpu=one, result=ProbeResult.FAILED, text="no answer within 10 s")
    assert second is None


def test_a_late_answer_makes_room_for_the_next_question(machine: SimulatedMachine) -> None:
    async def asked(clock: Clock) -> list[CardProbed | None]:
        prober = CardProber(InlineNvml(machine, clock))
        machine.slow("memory", 15)
        late = await prober.probe(machine.uuids()[0])
        await clock.sleep(6)
        machine.slow("memory", 0)
        return [late, await prober.probe(machine.uuids()[1]), await prober.probe(machine.uuids()[0])]

    told = run_virtual(asked(LoopClock(0)))
    assert [each and each.result for each in told] == [ProbeResult.FAILED, ProbeResult.CLEAN, ProbeResult.CLEAN]


def test_a_card_is_not_blamed_while_another_call_is_with_the_driver(machine: SimulatedMachine) -> None:
    async def asked(clock: Clock) -> list[CardProbed | None]:
        hardware = InlineNvml(machine, clock)
        machine.slow("set_mig_mode", 25)
        change = asyncio.create_task(hardware.set_mig_mode(machine.uuids()[1], enabled=False))
        await clock.sleep(0)
        prober = CardProber(hardware)
        told = [await prober.probe(machine.uuids()[0]) for _ in range(4)]
        await change
        return told

    told = run_virtual(asked(LoopClock(0)))
    assert [each and each.result for each in told] == [None, None, ProbeResult.CLEAN, ProbeResult.CLEAN]
