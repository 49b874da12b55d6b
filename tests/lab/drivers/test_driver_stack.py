"""Driver manager, toolkit, and what this project's image does beside a driver when it is simulated."""

import asyncio

import pytest
from tests.support.driver_machine import DriverMachine

from tessera_lab.drivers.driver_catalogue import container_toolkit, driver_manager, tessera_image
from tessera_lab.simulation.cost_model import CostModel

COSTS = CostModel(manager_seconds=2, unload_seconds=3, toolkit_seconds=4, nvml_seconds=1, cuda_seconds=2)


async def test_the_driver_manager_takes_a_driver_away(machine: DriverMachine) -> None:
    assert await machine.run(driver_manager(COSTS)).ends() == (0, 2)
    machine.machine.load_driver("525.125.06")
    assert await machine.run(driver_manager(COSTS)).ends() == (0, 7)
    assert machine.machine.loaded_driver is None


async def test_the_driver_manager_fails_on_a_driver_in_use(machine: DriverMachine) -> None:
    machine.machine.load_driver("525.125.06")
    machine.machine.start_process(machine.machine.uuids()[0])
    assert (await machine.run(driver_manager(COSTS)).ends())[0] == 1


async def test_the_toolkit_is_ready_when_the_runtime_is(machine: DriverMachine) -> None:
    container = machine.run(container_toolkit(COSTS))
    assert await container.healthy() == 4
    await container.stop()


async def test_validation_leaves_its_markers_one_after_the_other(machine: DriverMachine) -> None:
    machine.machine.load_driver("525.125.06")
    container = machine.run(tessera_image(COSTS), argv=("tessera", "validate"))
    await asyncio.sleep(1.5)
    assert machine.markers == ["toolkit-ready"]
    assert await container.ends() == (0, 3)
    assert machine.markers == ["cuda-ready", "toolkit-ready"]
    assert any("simulated" in line for line in container.log)


@pytest.mark.parametrize("cards", [True, False])
async def test_validation_without_a_driver_or_card_fails(machine: DriverMachine, cards: bool) -> None:
    given = {} if cards else {"machine": None}
    container = machine.run(tessera_image(COSTS), argv=("tessera", "validate"), **given)
    assert (await container.ends())[0] == 1
    assert machine.markers == []


async def test_waiting_for_a_marker_ends_when_it_comes(machine: DriverMachine) -> None:
    container = machine.run(tessera_image(COSTS), argv=("tessera", "wait-for", "driver-ready"))
    await asyncio.sleep(100)
    (machine.folder / "toolkit-ready").touch()
    await asyncio.sleep(100)
    assert not container.task.done()
    (machine.folder / "driver-ready").touch()
    assert await container.ends() == (0, 200)


async def test_other_commands_stay(machine: DriverMachine) -> None:
    container = machine.run(tessera_image(COSTS), argv=("tessera", "agent"))
    await container.healthy()
    assert not container.task.done()
    await container.stop()
