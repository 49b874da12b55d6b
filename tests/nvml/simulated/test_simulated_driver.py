"""A simulated machine whose driver comes later, goes, and comes again."""

import pytest

from tessera.clock import LoopClock
from tessera.nvml.errors import DriverNotLoaded, InUse
from tessera.nvml.simulated.machine_access import InlineNvml
from tessera.nvml.simulated.machine_state import DRIVER_VERSION
from tessera.nvml.simulated.simulated_machine import SimulatedMachine


@pytest.fixture
def bare() -> SimulatedMachine:
    return SimulatedMachine("1xA100-40GB", seed="n", driver=None)


def test_without_a_driver_every_call_says_so(bare: SimulatedMachine) -> None:
    (gpu,) = bare.uuids()
    for call in (bare.driver_version, bare.devices, lambda: bare.memory(gpu), lambda: bare.instances(gpu)):
        with pytest.raises(DriverNotLoaded):
            call()
    with pytest.raises(DriverNotLoaded):
        bare.start_process(gpu)
    assert bare.loaded_driver is None


def test_with_a_driver_loaded_the_cards_answer(bare: SimulatedMachine) -> None:
    bare.load_driver("570.133.20")
    bare.load_driver("570.133.20")
    assert bare.driver_version() == bare.loaded_driver == "570.133.20"
    assert len(bare.devices()) == 1


def test_a_second_driver_is_not_loaded_over_the_first(bare: SimulatedMachine) -> None:
    bare.load_driver("570.133.20")
    with pytest.raises(InUse, match=r"570\.133\.20 is loaded; unload it first"):
        bare.load_driver("595.58.03")


def test_a_version_is_one(bare: SimulatedMachine) -> None:
    with pytest.raises(ValueError, match="begins with its branch"):
        bare.load_driver("latest")


def test_a_driver_in_use_is_not_unloaded(bare: SimulatedMachine) -> None:
    bare.load_driver("570.133.20")
    pid = bare.start_process(bare.uuids()[0])
    with pytest.raises(InUse, match=f"in use by processes .{pid}."):
        bare.unload_driver()
    bare.end_process(pid)
    bare.unload_driver()
    bare.unload_driver()
    assert bare.loaded_driver is None


async def test_an_open_session_holds_the_driver(bare: SimulatedMachine) -> None:
    hardware = InlineNvml(bare, LoopClock(0))
    with pytest.raises(DriverNotLoaded, match="open the driver"):
        await hardware.__aenter__()
    bare.load_driver("570.133.20")
    async with hardware:
        with pytest.raises(InUse, match="1 open sessions"):
            bare.unload_driver()
    bare.unload_driver()


def test_instances_go_with_the_driver() -> None:
    machine = SimulatedMachine("1xA100-40GB", seed="n", mig=True)
    (gpu,) = machine.uuids()
    machine.create_gpu_instance(gpu, "1g.5gb", 0)
    machine.unload_driver()
    machine.load_driver("570.133.20")
    assert machine.instances(gpu) == []
    assert machine.devices()[0].mig_enabled


def test_a_boot_leaves_the_driver_that_the_host_has(bare: SimulatedMachine) -> None:
    bare.load_driver("570.133.20")
    bare.open_session()
    bare.reboot()
    assert bare.loaded_driver is None
    bare.unload_driver()  # whoever had a session is gone
    with_one = SimulatedMachine("1xA100-40GB", seed="n")
    with_one.unload_driver()
    with_one.reboot()
    assert with_one.loaded_driver == DRIVER_VERSION
