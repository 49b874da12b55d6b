"""The machine's own driver: its places, the signs of its arrival, and its opening."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pynvml
import pytest
from tests.agent.driver.conftest import VERSION, DriverScene

from tessera.agent.base.wake_ups import EVERY, ChangeNotifier, Fact
from tessera.agent.driver.hardware import DriverHome, MachineDriver
from tessera.agent.simulated import SimulatedDriver
from tessera.api.nodes.node_marks import DRIVER_CONTAINER_READY
from tessera.clock import LoopClock, SystemClock
from tessera.nvml.asynchronous import NvmlWithLossDetection
from tessera.nvml.errors import DriverMismatch, DriverNotLoaded, GpuLost, NvmlError, make_error
from tessera.nvml.real.library import NAME
from tessera.nvml.simulated.machine_access import InlineNvml
from tessera.nvml.simulated.simulated_machine import SimulatedMachine


class Listener(ChangeNotifier):
    """Calls a function at each change."""

    def __init__(self, listen: Callable[[], None]) -> None:
        super().__init__()
        self._listen = listen

    def notify(self, _facts: Fact = EVERY) -> None:
        self._listen()


@pytest.fixture
def driver(tmp_path: Path) -> MachineDriver:
    for folder in ("dev", "proc"):
        (tmp_path / folder).mkdir()
    return MachineDriver(tmp_path / "root", SystemClock(), dev=tmp_path / "dev", proc=tmp_path / "proc")


@pytest.mark.parametrize("driver", ["550.54.15", None])
def test_simulated_cards_accept_a_driver_container_that_reports_ready(tmp_path: Path, driver: str | None) -> None:
    machine = SimulatedMachine("A30", seed="n", driver=driver)
    simulated = SimulatedDriver(machine, SystemClock(), markers=tmp_path)
    assert simulated.has_library() is (driver is None)
    (tmp_path / DRIVER_CONTAINER_READY).touch()
    assert simulated.has_library()


def put_library(root: Path) -> None:
    (root / "usr/lib64").mkdir(parents=True)
    (root / "usr/lib64" / NAME).write_text("no library")


def test_a_container_s_driver_is_found_by_its_library(driver: MachineDriver, tmp_path: Path) -> None:
    assert not driver.has_library()
    put_library(tmp_path / "root")
    assert driver.has_library()
    assert driver.root(DriverHome.CONTAINER) == tmp_path / "root"
    assert driver.root(DriverHome.HOST) is None


async def test_the_container_s_library_is_the_one_that_is_opened(
    driver: MachineDriver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pynvml, "nvmlLib", None)
    put_library(tmp_path / "root")
    with pytest.raises(DriverNotLoaded, match=f"{tmp_path}/root/usr/lib64/{NAME} cannot be loaded"):
        async with driver.nvml(DriverHome.CONTAINER):
            pass


def test_only_a_new_process_is_given_a_library_that_was_not_there_or_has_changed(
    driver: MachineDriver, tmp_path: Path
) -> None:
    no_library, no_module = make_error(12, "nvmlInit"), make_error(9, "nvmlInit")
    assert not driver.needs_new_process(no_library)
    (tmp_path / "dev/nvidiactl").touch()
    assert driver.needs_new_process(no_library)
    assert not driver.needs_new_process(no_module)
    assert driver.needs_new_process(DriverMismatch("nvmlInit"))


async def test_only_the_control_device_announces_a_driver(driver: MachineDriver, tmp_path: Path) -> None:
    told = asyncio.Queue[None]()
    task = asyncio.create_task(driver.watch(Listener(lambda: told.put_nowait(None))))
    async with asyncio.timeout(60):
        await told.get()
        for name in ("tty9", "nvidiactl", "tty8"):
            (tmp_path / "dev" / name).touch()
        await told.get()
        (tmp_path / "dev/tty9").unlink()
        (tmp_path / "dev/nvidiactl").unlink()
        await told.get()
    assert told.empty()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_a_driver_that_is_gone_is_remembered_and_a_lost_card_is_not_taken_for_it() -> None:
    machine = SimulatedMachine("A30", seed="n")
    changes = ChangeNotifier()
    async with NvmlWithLossDetection(InlineNvml(machine, SystemClock()), lambda: changes.notify(Fact.DRIVER)) as nvml:
        assert nvml.simulated
        machine.fail("memory", GpuLost)
        with pytest.raises(GpuLost):
            await nvml.memory(machine.uuids()[0])
        assert not nvml.gone
        machine.fail("devices", DriverMismatch, times=2)
        for _ in range(2):
            with pytest.raises(DriverMismatch):
                await nvml.devices()
        assert "restart this process" in nvml.gone
        machine.fail("wait_event", DriverNotLoaded)
        with pytest.raises(DriverNotLoaded):
            await nvml.wait_event(0)
        assert changes.count == 1


@pytest.mark.parametrize("error", [DriverNotLoaded, DriverMismatch])
async def test_a_card_that_says_the_driver_is_gone_is_not_believed_while_the_driver_answers(
    error: type[NvmlError],
) -> None:
    machine = SimulatedMachine("2xA30", seed="n")
    async with NvmlWithLossDetection(InlineNvml(machine, SystemClock()), lambda: None) as nvml:
        machine.fail("memory", error, gpu=machine.uuids()[0], times=None)
        with pytest.raises(error):
            await nvml.memory(machine.uuids()[0])
        assert not nvml.gone
        with machine.change() as state:
            state.driver_version = ""
        with pytest.raises(DriverNotLoaded):
            await nvml.memory(machine.uuids()[1])
        assert nvml.gone


async def test_a_driver_that_cannot_be_closed_in_order_is_closed() -> None:
    class Gone(InlineNvml):
        async def __aexit__(self, *exc_info: object) -> None:
            raise DriverNotLoaded("nvmlShutdown")

    async with NvmlWithLossDetection(Gone(SimulatedMachine("A30", seed="n"), SystemClock()), lambda: None):
        pass


async def test_a_host_driver_that_only_a_new_process_can_open_ends_this_one(
    scene: DriverScene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SimulatedDriver, "needs_new_process", lambda _self, error: isinstance(error, DriverNotLoaded))
    scene.machine.unload_driver()
    await scene.begin_life()
    assert scene.agent is not None
    (ended,) = await asyncio.gather(scene.agent, return_exceptions=True)
    assert isinstance(ended, BaseExceptionGroup)
    assert ended.split(NvmlError)[1] is None


@pytest.mark.scene(driver=None)
async def test_a_container_s_driver_never_ends_the_process(scene: DriverScene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SimulatedDriver, "needs_new_process", lambda _self, _error: True)
    await scene.begin(agent=False)
    scene.markers.write(".driver-ctr-ready")
    scene.start_life()
    await scene.tells("NvmlFailed")
    scene.machine.load_driver(VERSION)
    scene.validate()
    await scene.tells("Advertised")


def test_simulated_drivers_tell_of_each_change_of_the_module() -> None:
    machine = SimulatedMachine("A30", seed="n", driver=None)
    told: list[Any] = []

    async def follow() -> None:
        driver = SimulatedDriver(machine, LoopClock(0.0))
        assert driver.has_library()
        task = asyncio.create_task(driver.watch(Listener(lambda: told.append(machine.loaded_driver))))
        await asyncio.sleep(0)
        machine.load_driver(VERSION)
        machine.slow("devices", 1.0)
        machine.unload_driver()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    asyncio.run(follow())
    assert told == [VERSION, None]
