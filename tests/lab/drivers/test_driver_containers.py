"""Driver containers of the lab: what they bring, how long it takes, what is left when they go."""

from typing import Any

import pytest
from tests.support.driver_machine import DriverMachine

from tessera_lab.drivers.driver_containers import broken_driver, building_driver, precompiled_driver
from tessera_lab.simulation.cost_model import CostModel

COSTS = CostModel(prepare_seconds=20, compile_seconds=200, install_seconds=10, load_seconds=5, unload_seconds=3)
KERNEL = "5.14.0-284.54.1.el9_2.x86_64"
READY = ".driver-ctr-ready"
VERSION = "525.125.06"


async def test_finished_modules_are_installed_and_loaded(machine: DriverMachine) -> None:
    container = machine.run(precompiled_driver(VERSION, COSTS, kernel=KERNEL), argv=("nvidia-driver", "init"))
    assert await container.healthy() == 15
    assert machine.machine.loaded_driver == VERSION
    assert machine.markers == [READY]


async def test_sources_are_compiled_first(machine: DriverMachine) -> None:
    assert await machine.run(building_driver(VERSION, COSTS)).healthy() == 235


async def test_a_stopped_container_takes_marker_and_module_away(machine: DriverMachine) -> None:
    container = machine.run(precompiled_driver(VERSION, COSTS))
    await container.healthy()
    assert await container.stop() == 18
    assert (machine.machine.loaded_driver, machine.markers) == (None, [])


async def test_a_driver_in_use_stays_for_the_next_container(machine: DriverMachine) -> None:
    container = machine.run(precompiled_driver(VERSION, COSTS))
    await container.healthy()
    close = machine.machine.open_session()
    await container.stop()
    assert (machine.machine.loaded_driver, machine.markers) == (VERSION, [])
    assert "the driver stays loaded" in container.log[-1]
    same = machine.run(precompiled_driver(VERSION, COSTS))
    assert await same.healthy() == 18  # at once: nothing is installed or loaded again
    other = machine.run(precompiled_driver("535.1", COSTS))
    assert (await other.ends())[0] == 1
    assert "module nvidia is in use by 1 open sessions" in other.log[-1]
    close()
    third = machine.run(precompiled_driver("535.1", COSTS))
    await third.healthy()
    assert machine.machine.loaded_driver == "535.1"


@pytest.mark.parametrize(
    ("program", "words"),
    [
        (precompiled_driver(VERSION, COSTS, kernel="6.8.0"), f"the modules are for kernel 6.8.0, {KERNEL} runs"),
        (building_driver(VERSION, COSTS, fails="no headers for this kernel"), "no headers for this kernel"),
        (broken_driver("Invalid module format"), "Invalid module format"),
    ],
)
async def test_what_does_not_fit_ends_with_an_error(machine: DriverMachine, program: Any, words: str) -> None:
    container = machine.run(program)
    assert (await container.ends())[0] == 1
    assert words in container.log[-1]
    assert (machine.machine.loaded_driver, machine.markers) == (None, [])


async def test_without_a_card_there_is_nothing_to_load(machine: DriverMachine) -> None:
    container = machine.run(precompiled_driver(VERSION, COSTS), machine=None)
    assert (await container.ends())[0] == 1


async def test_other_containers_of_the_image_load_nothing(machine: DriverMachine) -> None:
    for program in (precompiled_driver(VERSION, COSTS), building_driver(VERSION, COSTS)):
        container = machine.run(program, argv=("nvidia-driver", "reload_nvidia_peermem"))
        assert await container.healthy() == 0
        await container.stop()
    assert machine.machine.loaded_driver is None


async def test_without_files_there_are_no_markers(machine: DriverMachine) -> None:
    container = machine.run(precompiled_driver(VERSION, COSTS), markers=None)
    await container.healthy()
    await container.stop()
    assert machine.machine.loaded_driver is None
