"""NVML for an event loop.

NVML calls block: destroying an instance can take a second, and a card in trouble holds a call for longer. Real cards
are therefore driven from worker threads, which also give the calls an order (:class:`ThreadedNvml`): one thread for
each card's instances, so that all cards of a node that has booted are cut side by side, one for all other calls, and
one that waits for events. NVML is thread-safe (NVIDIA's page on NVML: "safe to make simultaneous NVML calls from
multiple threads"); only while a card is reset, for which NVML is closed, and at the end nothing else is under way.

Simulated cards live on the loop's own clock (:class:`InlineNvml`): a slow call is a ``clock.sleep`` and then an instant
call, so that the lab's virtual time works and two runs give the same order.

Whoever drives cards takes an :class:`AsyncNvml` and cannot tell which.

A cancelled call of real cards is not undone: the thread finishes it and its answer is lost. Hardware is the truth, so
the caller reads :meth:`AsyncNvml.instances` again.
"""

import asyncio
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol, Self, TypeVar

from tessera.clock import Clock
from tessera.nvml.attributes import CardAttributes, ComputeMode, MigAttributes, NvLink
from tessera.nvml.exclusion import SharedUse
from tessera.nvml.interface import (
    ComputeInstance,
    DeviceFile,
    Event,
    GiProfileInfo,
    GpuInfo,
    GpuUuid,
    Instance,
    Memory,
    MigModeResult,
    MigUuid,
    Nvml,
    Process,
)

T = TypeVar("T")

#: A wait for events holds its thread for so long at a time, seconds.
EVENT_WAIT = 1.0
#: How often a process that cannot be watched is looked at again, seconds.
UNWATCHABLE_RECHECK = 1.0


class AsyncNvml(ABC):
    """:class:`~tessera.nvml.interface.Nvml` with the same methods as coroutines; same values, same errors.

    Use it as ``async with``: entering opens NVML, leaving closes it. Calls about the instances of one card are done one
    at a time in the order in which they were made, and so are all others.

    Attributes:
        simulated: the cards exist only here.
    """

    simulated: bool = False

    @abstractmethod
    async def __aenter__(self) -> Self: ...

    @abstractmethod
    async def __aexit__(self, *exc_info: object) -> None: ...

    @abstractmethod
    async def call(self, operation: str, call: Callable[[Nvml], T], *, card: str = "") -> T:
        """Does one call that has no method of its own here.

        Args:
            operation: names it to the simulated latency.
            call: what is done.
            card: the card whose instances it is about; empty for a call about anything else.
        """

    @abstractmethod
    async def wait_event(self, seconds: float) -> Event | None:
        """The next hardware event of any card, ``None`` when ``seconds`` passed without one."""

    @abstractmethod
    async def _process_exit(self, processes: list[Process], /) -> None:
        """Returns when one of the processes may have ended."""

    async def wait_idle(self, gpu: GpuUuid, gi_id: int | None = None) -> None:
        """Returns when no process computes on the GPU instance (on the whole card without ``gi_id``)."""
        while processes := [p for p in await self.processes(gpu) if gi_id is None or p.gi_id == gi_id]:
            await self._process_exit(processes)

    async def driver_version(self) -> str:
        """See :meth:`.Nvml.driver_version`."""
        return await self.call("driver_version", lambda nvml: nvml.driver_version())

    async def cuda_version(self) -> int:
        """See :meth:`.Nvml.cuda_version`."""
        return await self.call("cuda_version", lambda nvml: nvml.cuda_version())

    async def devices(self) -> list[GpuInfo]:
        """See :meth:`.Nvml.devices`."""
        return await self.call("devices", lambda nvml: nvml.devices())

    async def set_mig_mode(self, gpu: GpuUuid, enabled: bool) -> MigModeResult:
        """See :meth:`.Nvml.set_mig_mode`."""
        return await self.call("set_mig_mode", lambda nvml: nvml.set_mig_mode(gpu, enabled))

    async def gi_profiles(self, gpu: GpuUuid) -> list[GiProfileInfo]:
        """See :meth:`.Nvml.gi_profiles`."""
        return await self.call("gi_profiles", lambda nvml: nvml.gi_profiles(gpu))

    async def instances(self, gpu: GpuUuid) -> list[Instance]:
        """See :meth:`.Nvml.instances`."""
        return await self.call("instances", lambda nvml: nvml.instances(gpu), card=gpu)

    async def create_gpu_instance(self, gpu: GpuUuid, profile: str, start: int) -> int:
        """See :meth:`.Nvml.create_gpu_instance`."""
        return await self.call(
            "create_gpu_instance", lambda nvml: nvml.create_gpu_instance(gpu, profile, start), card=gpu
        )

    async def create_compute_instance(self, gpu: GpuUuid, gi_id: int, profile_index: int) -> ComputeInstance:
        """See :meth:`.Nvml.create_compute_instance`."""
        return await self.call(
            "create_compute_instance", lambda nvml: nvml.create_compute_instance(gpu, gi_id, profile_index), card=gpu
        )

    async def destroy_compute_instance(self, gpu: GpuUuid, gi_id: int, ci_id: int) -> None:
        """See :meth:`.Nvml.destroy_compute_instance`."""
        await self.call(
            "destroy_compute_instance", lambda nvml: nvml.destroy_compute_instance(gpu, gi_id, ci_id), card=gpu
        )

    async def destroy_gpu_instance(self, gpu: GpuUuid, gi_id: int) -> None:
        """See :meth:`.Nvml.destroy_gpu_instance`."""
        await self.call("destroy_gpu_instance", lambda nvml: nvml.destroy_gpu_instance(gpu, gi_id), card=gpu)

    async def processes(self, device: GpuUuid | MigUuid) -> list[Process]:
        """See :meth:`.Nvml.processes`."""
        return await self.call("processes", lambda nvml: nvml.processes(device))

    async def memory(self, device: GpuUuid | MigUuid) -> Memory:
        """See :meth:`.Nvml.memory`."""
        return await self.call("memory", lambda nvml: nvml.memory(device))

    async def device_files(self, gpu: GpuUuid, gi_id: int, ci_id: int) -> list[DeviceFile]:
        """See :meth:`.Nvml.device_files`."""
        return await self.call("device_files", lambda nvml: nvml.device_files(gpu, gi_id, ci_id))

    async def card_files(self, gpu: GpuUuid) -> list[DeviceFile]:
        """See :meth:`.Nvml.card_files`."""
        return await self.call("card_files", lambda nvml: nvml.card_files(gpu))

    async def attributes(self, gpu: GpuUuid) -> CardAttributes:
        """See :meth:`.Nvml.attributes`."""
        return await self.call("attributes", lambda nvml: nvml.attributes(gpu))

    async def mig_attributes(self, device: MigUuid) -> MigAttributes:
        """See :meth:`.Nvml.mig_attributes`."""
        return await self.call("mig_attributes", lambda nvml: nvml.mig_attributes(device))

    async def nvlinks(self, gpu: GpuUuid) -> list[NvLink]:
        """See :meth:`.Nvml.nvlinks`."""
        return await self.call("nvlinks", lambda nvml: nvml.nvlinks(gpu))

    async def common_ancestor(self, gpu: GpuUuid, other: GpuUuid) -> int:
        """See :meth:`.Nvml.common_ancestor`."""
        return await self.call("common_ancestor", lambda nvml: nvml.common_ancestor(gpu, other))

    async def compute_mode(self, gpu: GpuUuid) -> ComputeMode:
        """See :meth:`.Nvml.compute_mode`."""
        return await self.call("compute_mode", lambda nvml: nvml.compute_mode(gpu))

    async def set_compute_mode(self, gpu: GpuUuid, mode: ComputeMode) -> None:
        """See :meth:`.Nvml.set_compute_mode`."""
        await self.call("set_compute_mode", lambda nvml: nvml.set_compute_mode(gpu, mode))

    async def reset(self, gpu: GpuUuid) -> None:
        """See :meth:`.Nvml.reset`."""
        await self.call("reset", lambda nvml: nvml.reset(gpu))


class ThreadedNvml(AsyncNvml):
    """Real cards behind threads: one for each card's instances, one for other calls, one for waiting for events.

    Args:
        open_nvml: opens NVML; called in the worker thread when the object is entered.
        clock: waits for processes that cannot be watched.

    Raises:
        NvmlError: on entering, when NVML cannot be opened.
    """

    def __init__(self, open_nvml: Callable[[], Nvml], clock: Clock) -> None:
        self._open = open_nvml
        self._clock = clock
        self._nvml: Nvml | None = None
        self._calls = ThreadPoolExecutor(1, thread_name_prefix="nvml")
        self._cards: dict[str, ThreadPoolExecutor] = {}
        self._events = ThreadPoolExecutor(1, thread_name_prefix="nvml-events")
        self._use = SharedUse()

    async def __aenter__(self) -> Self:
        try:
            self._nvml = await asyncio.get_running_loop().run_in_executor(self._calls, self._open)
        except BaseException:
            self._stop_threads()
            raise
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        nvml, self._nvml = self._nvml, None
        loop = asyncio.get_running_loop()
        try:
            await loop.run_in_executor(self._events, lambda: None)  # a wait in progress ends before the library does
            if nvml is not None:
                await loop.run_in_executor(self._calls, self._use.alone, nvml.close)
        finally:
            self._stop_threads()

    async def call(self, operation: str, call: Callable[[Nvml], T], *, card: str = "") -> T:
        """Does one call in its worker thread; a reset when no other is under way."""
        nvml = self._opened(operation)
        thread = self._thread_of(card) if card else self._calls
        use = self._use.alone if operation == "reset" else self._use.shared
        return await asyncio.get_running_loop().run_in_executor(thread, use, lambda: call(nvml))

    def _thread_of(self, card: str) -> ThreadPoolExecutor:
        if card not in self._cards:
            self._cards[card] = ThreadPoolExecutor(1, thread_name_prefix=f"nvml-{card}")
        return self._cards[card]

    async def wait_event(self, seconds: float) -> Event | None:
        """The next hardware event, waited for in the events thread."""
        nvml, left = self._opened("wait_event"), seconds
        while True:  # in parts: whoever closes NVML waits for the thread, and a thread cannot be called back
            wait = asyncio.get_running_loop().run_in_executor(self._events, nvml.wait_event, min(left, EVENT_WAIT))
            left -= EVENT_WAIT
            if (event := await wait) is not None or left <= 0:
                return event

    async def _process_exit(self, processes: list[Process], /) -> None:
        if not await _any_pid_exit(p.pid for p in processes):
            await self._clock.sleep(UNWATCHABLE_RECHECK)

    def _opened(self, operation: str) -> Nvml:
        if self._nvml is None:
            raise RuntimeError(f"NVML is not open: {operation} was called outside `async with`")
        return self._nvml

    def _stop_threads(self) -> None:
        for thread in (self._calls, self._events, *self._cards.values()):
            thread.shutdown(wait=False)


class SimulatedNvml(Nvml, Protocol):
    """Cards that tell when something about them changed."""

    @property
    def poll_interval(self) -> float | None:
        """How often to look for changes by other processes, seconds; ``None`` if there can be none."""
        ...

    def subscribe(self, changed: Callable[[], None]) -> Callable[[], None]:
        """Calls ``changed`` after every change by this process; the function returned ends that."""
        ...

    def open_session(self) -> Callable[[], None]:
        """Opens NVML; the function returned ends that session. Raises DriverNotLoaded."""
        ...


class InlineNvml(AsyncNvml):
    """Simulated cards, called in the loop's own thread after their latency on ``clock`` has passed.

    Raises:
        DriverNotLoaded: on entering, when the machine has no driver loaded.
    """

    simulated = True

    def __init__(self, nvml: SimulatedNvml, clock: Clock) -> None:
        self._nvml = nvml
        self._clock = clock
        self._in_order: dict[str, asyncio.Lock] = {}
        self._end_session: Callable[[], None] | None = None

    async def __aenter__(self) -> Self:
        self._end_session = self._nvml.open_session()
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        if self._end_session is not None:
            self._end_session()
        self._nvml.close()

    async def call(self, operation: str, call: Callable[[Nvml], T], *, card: str = "") -> T:
        """Does one call after the latency of ``operation``."""
        async with self._in_order.setdefault(card, asyncio.Lock()):
            if seconds := self._nvml.latency(operation):
                await self._clock.sleep(seconds)
            return call(self._nvml)

    async def wait_event(self, seconds: float) -> Event | None:
        """The next simulated event."""
        deadline = self._clock.monotonic() + seconds
        while (event := self._nvml.wait_event(0)) is None:
            remaining = deadline - self._clock.monotonic()
            if remaining <= 0:
                return None
            await self._change(remaining)
        return event

    async def _process_exit(self, _processes: list[Process], /) -> None:
        await self._change(None)

    async def _change(self, at_most: float | None) -> None:
        """Returns at the next change, after ``at_most`` seconds, or when it is time to look for others' changes."""
        changed = asyncio.Event()
        unsubscribe = self._nvml.subscribe(changed.set)
        waits = [seconds for seconds in (at_most, self._nvml.poll_interval) if seconds is not None]
        try:
            async with asyncio.timeout(min(waits, default=None)):
                await changed.wait()
        except TimeoutError:
            pass
        finally:
            unsubscribe()


async def _any_pid_exit(pids: Iterable[int]) -> bool:
    """Waits until one of the processes ends; ``False`` at once if one cannot be watched or has ended already."""
    loop = asyncio.get_running_loop()
    exited = asyncio.Event()
    descriptors: list[int] = []
    try:
        for pid in pids:
            try:
                descriptors.append(os.pidfd_open(pid))
            except OSError:  # gone already, or of another PID namespace
                return False
            loop.add_reader(descriptors[-1], exited.set)
        await exited.wait()
        return True
    finally:
        for descriptor in descriptors:
            loop.remove_reader(descriptor)
            os.close(descriptor)
