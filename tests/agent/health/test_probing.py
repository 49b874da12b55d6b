"""Cards that answer, refuse, hang and are lost, as simulated hardware."""

import pytest

from tessera.agent.health.marks import ProbeResult
from tessera.agent.health.policy import RecoveryAction
from tessera.agent.health.probing import probe
from tessera.clock import SystemClock
from tessera.nvml.errors import NoPermission
from tessera.nvml.simulated import SimulatedMachine
from tessera.nvml.worker import InlineNvml


@pytest.fixture
def machine() -> SimulatedMachine:
    return SimulatedMachine("2xA100-40GB", seed="n")


async def test_a_card_that_answers_is_clean(machine: SimulatedMachine) -> None:
    told = await probe(InlineNvml(machine, SystemClock()), machine.uuids()[0], recovery=RecoveryAction.DRAIN_AND_RESET)
    assert (told.result, told.recovery) == (ProbeResult.CLEAN, RecoveryAction.DRAIN_AND_RESET)


async def test_a_card_that_refuses_has_failed(machine: SimulatedMachine) -> None:
    machine.fail("memory", NoPermission)
    told = await probe(InlineNvml(machine, SystemClock()), machine.uuids()[0])
    assert told.result is ProbeResult.FAILED
    assert told.text


async def test_a_card_that_hangs_has_failed(machine: SimulatedMachine) -> None:
    machine.slow("memory", 60)
    told = await probe(InlineNvml(machine, SystemClock()), machine.uuids()[0], patience=0.01)
    assert (told.result, told.text) == (ProbeResult.FAILED, "no answer within 0.01 s")


async def test_a_lost_card_is_lost_and_its_neighbour_is_not(machine: SimulatedMachine) -> None:
    one, other = machine.uuids()
    machine.lose(one)
    hardware = InlineNvml(machine, SystemClock())
    assert (await probe(hardware, one)).result is ProbeResult.LOST
    assert (await probe(hardware, other)).result is ProbeResult.CLEAN
