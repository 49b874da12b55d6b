"""Cards behind an event loop: real ones in a thread, simulated ones on the loop's clock."""

import asyncio
import inspect
import subprocess
import sys
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from tessera.clock import SystemClock
from tessera.nvml.asynchronous import AsyncNvml, ThreadedNvml
from tessera.nvml.errors import DriverMismatch, InUse, NvmlError
from tessera.nvml.interface import ComputeMode, GpuEvent, GpuEventKind, GpuProcess, Nvml
from tessera.nvml.simulated.machine_access import InlineNvml
from tessera.nvml.simulated.machine_state import ANY, SimEvent, SimulatedFault
from tessera.nvml.simulated.simulated_machine import SimulatedMachine


class HandClock(SystemClock):
    """Time that a test moves on."""

    def __init__(self) -> None:
        self.slept: list[float] = []
        self.time = 0.0

    def monotonic(self) -> float:
        return self.time

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.time += seconds
        await asyncio.sleep(0)


async def test_a_slow_call_takes_its_time_on_the_clock(machine: SimulatedMachine) -> None:
    machine.slow("create_gpu_instance", 2.5)
    clock, gpu = HandClock(), machine.uuids()[0]
    async with InlineNvml(machine, clock) as nvml:
        gi_id = await nvml.create_gpu_instance(gpu, "3g.20gb", 0)
        made = await nvml.create_compute_instance(gpu, gi_id, 2)
        assert (await nvml.instances(gpu))[0].compute_instances == (made,)
    assert clock.slept == [2.5]


async def test_calls_are_done_in_the_order_in_which_they_were_made(machine: SimulatedMachine) -> None:
    machine.slow("create_gpu_instance", 1)
    gpu = machine.uuids()[0]
    async with InlineNvml(machine, HandClock()) as nvml:
        made, listed = await asyncio.gather(nvml.create_gpu_instance(gpu, "1g.5gb", 0), nvml.instances(gpu))
    assert [one.gi_id for one in listed] == [made]


def test_every_call_of_nvml_is_a_coroutine_of_the_same_name_and_text() -> None:
    for name in vars(Nvml).keys() & vars(AsyncNvml).keys() - {"wait_event"}:
        if not name.startswith("_"):
            call, found = getattr(Nvml, name), getattr(AsyncNvml, name)
            assert inspect.iscoroutinefunction(found), name
            assert (found.__name__, found.__doc__) == (name, call.__doc__)


@pytest.mark.parametrize("kind", ["threads", "loop"])
async def test_an_error_of_a_call_reaches_its_caller_and_ends_nothing(machine: SimulatedMachine, kind: str) -> None:
    clock, gpu = HandClock(), machine.uuids()[0]
    nvml = InlineNvml(machine, clock) if kind == "loop" else ThreadedNvml(lambda: machine, clock)
    async with nvml:
        machine.fail("instances", InUse)
        with pytest.raises(InUse):
            await nvml.instances(gpu)
        with pytest.raises(TypeError):
            await nvml.place()  # type: ignore[call-arg]
        assert await nvml.instances(gpu) == []


async def test_two_real_cards_are_cut_side_by_side_and_one_is_not(machine: SimulatedMachine) -> None:
    meet, story = threading.Barrier(2, timeout=60), list[str]()

    def at_once(_nvml: Nvml) -> None:
        meet.wait()

    def noted(word: str, _nvml: Nvml) -> None:
        story.append(word)

    async with ThreadedNvml(lambda: machine, SystemClock()) as nvml:
        await asyncio.gather(*(nvml.call("create_gpu_instance", at_once, card=card) for card in ("a", "b")))
        await asyncio.gather(*(nvml.call("create_gpu_instance", partial(noted, word), card="a") for word in "123"))
    assert story == ["1", "2", "3"]


async def test_a_card_is_reset_while_nothing_else_is_under_way(machine: SimulatedMachine) -> None:
    """The reset closes NVML for everybody."""
    begun, go, story = threading.Event(), threading.Event(), list[str]()

    def cut(_nvml: Nvml) -> None:
        begun.set()
        go.wait(60)
        story.append("cut")

    async with ThreadedNvml(lambda: machine, SystemClock()) as nvml:
        cutting = asyncio.create_task(nvml.call("create_gpu_instance", cut, card="a"))
        await asyncio.to_thread(begun.wait, 10)
        reset = asyncio.create_task(nvml.call("reset", lambda _: story.append("reset")))
        await asyncio.sleep(0)
        go.set()
        await asyncio.gather(cutting, reset)
    assert story == ["cut", "reset"]


async def test_an_event_wakes_who_waits(machine: SimulatedMachine) -> None:
    gpu = machine.uuids()[0]
    async with InlineNvml(machine, SystemClock()) as nvml:
        waiting = asyncio.create_task(nvml.wait_event(60))
        await asyncio.sleep(0)
        machine.report(SimEvent(GpuEventKind.XID, gpu, 94))
        assert await waiting == GpuEvent(kind=GpuEventKind.XID, gpu=gpu, xid=94)
        assert await nvml.wait_event(0.001) is None


async def test_a_fault_that_takes_the_place_of_another_wakes_who_waits(machine: SimulatedMachine) -> None:
    with machine.change() as state:
        state.faults = [SimulatedFault("devices", 999)]
    async with InlineNvml(machine, SystemClock()) as nvml, asyncio.timeout(20):
        waiting = asyncio.create_task(nvml.wait_event(60))
        await asyncio.sleep(0)
        with machine.change() as state:
            state.faults = [SimulatedFault("wait_event", 999)]
        with pytest.raises(NvmlError):
            await waiting


async def test_an_event_of_another_process_is_found(state: Path) -> None:
    one = SimulatedMachine("A100-40GB", seed="n", state=state)
    other = SimulatedMachine("A100-40GB", seed="n", state=state)
    async with InlineNvml(one, SystemClock()) as nvml:
        waiting = asyncio.create_task(nvml.wait_event(60))
        await asyncio.sleep(0)
        other.lose(other.uuids()[0])
        event = await waiting
    assert event is not None
    assert event.xid == 79


async def test_an_instance_is_idle_when_its_last_process_ended(machine: SimulatedMachine) -> None:
    gpu = machine.uuids()[0]
    async with InlineNvml(machine, SystemClock()) as nvml:
        gi_id = await nvml.create_gpu_instance(gpu, "2g.10gb", 0)
        made = await nvml.create_compute_instance(gpu, gi_id, 1)
        await nvml.wait_idle(gpu, gi_id)
        first, second = machine.start_process(made.mig_uuid), machine.start_process(made.mig_uuid)
        idle = asyncio.create_task(nvml.wait_idle(gpu, gi_id))
        for pid in (first, second):
            await asyncio.sleep(0)
            assert not idle.done()
            with pytest.raises(InUse):
                await nvml.destroy_compute_instance(gpu, gi_id, made.ci_id)
            machine.end_process(pid)
        await idle
        await nvml.wait_idle(gpu)


async def test_real_cards_are_driven_from_one_thread_that_is_not_the_loops(machine: SimulatedMachine) -> None:
    threads = set()

    def open_nvml() -> SimulatedMachine:
        threads.add(threading.current_thread())
        return machine

    gpu = machine.uuids()[0]
    async with ThreadedNvml(open_nvml, SystemClock()) as nvml:
        await nvml.call("thread", lambda _: threads.add(threading.current_thread()))
        gi_ids = await asyncio.gather(*(nvml.create_gpu_instance(gpu, "1g.5gb", start) for start in range(7)))
        assert gi_ids == [7, 8, 9, 10, 11, 12, 13]
        assert await nvml.wait_event(0) is None
    assert len(threads) == 1
    assert threading.main_thread() not in threads
    with pytest.raises(RuntimeError, match="NVML is not open"):
        await nvml.devices()


@pytest.mark.parametrize("kind", ["real", "simulated"])
async def test_cards_are_read_and_reset_through_the_loop(machine: SimulatedMachine, kind: str) -> None:
    gpu, other = machine.uuids()
    machine.set_mig_mode(other, False)
    hardware = ThreadedNvml(lambda: machine, SystemClock()) if kind == "real" else InlineNvml(machine, SystemClock())
    async with hardware as nvml:
        gi_id = await nvml.create_gpu_instance(gpu, "3g.20gb", 0)
        made = await nvml.create_compute_instance(gpu, gi_id, 2)
        assert await nvml.cuda_version() == machine.cuda_version()
        assert await nvml.attributes(gpu) == machine.attributes(gpu)
        assert await nvml.mig_attributes(made.mig_uuid) == machine.mig_attributes(made.mig_uuid)
        assert await nvml.nvlinks(other) == machine.nvlinks(other)
        assert await nvml.common_ancestor(gpu, other) == machine.common_ancestor(gpu, other)
        assert await nvml.card_files(gpu) == await nvml.device_files(gpu, gi_id, made.ci_id) == []
        await nvml.set_compute_mode(other, ComputeMode.PROHIBITED)
        assert await nvml.compute_mode(other) is ComputeMode.PROHIBITED
        await nvml.reset(gpu)
        assert await nvml.instances(gpu) == []


async def test_a_slow_reset_takes_its_time_on_the_clock(machine: SimulatedMachine) -> None:
    machine.slow("reset", 4)
    clock = HandClock()
    async with InlineNvml(machine, clock) as nvml:
        await nvml.reset(machine.uuids()[0])
    assert clock.slept == [4]


async def test_a_driver_that_cannot_be_opened_is_told(machine: SimulatedMachine) -> None:
    machine.fail(ANY, DriverMismatch, times=None)

    def open_nvml() -> SimulatedMachine:
        machine.driver_version()
        return machine

    with pytest.raises(DriverMismatch):
        async with ThreadedNvml(open_nvml, SystemClock()):
            pass


class OneProcess(SimulatedMachine):
    """A card that one process of this host computes on until it ends."""

    process: subprocess.Popen[bytes]

    def processes(self, _device: str) -> list[GpuProcess]:
        return [] if self.process.poll() is not None else [GpuProcess(pid=self.process.pid, memory_bytes=0)]


@pytest.fixture
def computing() -> Iterator[OneProcess]:
    machine = OneProcess("A100-40GB", seed="n")
    with subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE) as process:
        machine.process = process
        yield machine


async def test_the_end_of_a_real_process_is_not_polled_for(computing: OneProcess) -> None:
    clock = HandClock()
    async with ThreadedNvml(lambda: computing, clock) as nvml:
        idle = asyncio.create_task(nvml.wait_idle(computing.uuids()[0]))
        await nvml.devices()
        assert not idle.done()
        assert computing.process.stdin is not None
        computing.process.stdin.close()
        await idle
    assert clock.slept == []


async def test_a_wait_for_events_does_not_keep_nvml_open_for_its_whole_time(machine: SimulatedMachine) -> None:
    class Slow(SimulatedMachine):
        waits: list[float]

        def wait_event(self, seconds: float) -> GpuEvent | None:
            self.waits.append(seconds)
            return None

    cards = Slow("A30", seed="n")
    cards.waits = []
    async with ThreadedNvml(lambda: cards, SystemClock()) as nvml:
        assert await nvml.wait_event(2.5) is None
    assert cards.waits == [1.0, 1.0, 0.5]
