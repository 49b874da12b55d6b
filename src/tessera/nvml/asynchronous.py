"""NVML under an event loop.

NVML calls block: destroying an instance can take a second, and a GPU in trouble holds a call for longer. Callers use
:class:`AsyncNvml`, which has two equivalent implementations:

- :class:`~tessera.nvml.asynchronous.ThreadedNvml` runs calls on real GPUs in worker threads;
- :class:`~tessera.agent.simulated.driver.InlineNvml` runs calls on simulated GPUs on the loop's own clock.

Of real GPUs, one thread runs the calls on each GPU's instances, so that all GPUs of a node that has booted are cut side
by side; one runs all other calls, and one waits for events. NVML is thread-safe (NVIDIA's page on NVML: "safe to make
simultaneous NVML calls from multiple threads"). Nothing else runs while a GPU is reset, for which NVML is closed, or at
the end.

A cancelled call is not undone: the thread finishes it and its answer is lost. Hardware is the truth, so the caller
reads :meth:`~tessera.nvml.asynchronous.AsyncNvml.instances` again.
"""

import asyncio
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from threading import Condition
from typing import Self, TypeVar

from tessera.clock import Clock
from tessera.nvml.interface import (
    CardAttributes,
    ComputeInstance,
    ComputeMode,
    DeviceFile,
    DeviceMemory,
    GiProfileInfo,
    GpuEvent,
    GpuInfo,
    GpuInstance,
    GpuProcess,
    GpuUuid,
    MigAttributes,
    MigModeResult,
    MigUuid,
    NvLink,
    Nvml,
    PciPlace,
)
from tessera.nvml.measurements import Measurements, ProcessActivity

T = TypeVar("T")


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
            call: the call to make.
            card: the card whose instances the call is about; empty for any other call.
        """

    @abstractmethod
    async def wait_event(self, seconds: float) -> GpuEvent | None:
        """The next hardware event of any card, ``None`` when ``seconds`` passed without one."""

    @abstractmethod
    async def _process_exit(self, processes: list[GpuProcess], /) -> None:
        """Returns when one of the processes may have ended."""

    async def wait_idle(self, gpu: GpuUuid, gi_id: int | None = None) -> None:
        """Returns once no process computes on the GPU instance (on the whole card without ``gi_id``)."""
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

    async def set_known_cards(self, cards: Sequence[GpuInfo]) -> None:
        """See :meth:`.Nvml.set_known_cards`."""
        await self.call("set_known_cards", lambda nvml: nvml.set_known_cards(cards))

    async def unheard_cards(self) -> Mapping[GpuUuid, str]:
        """See :meth:`.Nvml.unheard_cards`."""
        return await self.call("unheard_cards", lambda nvml: nvml.unheard_cards())

    async def set_mig_mode(self, gpu: GpuUuid, enabled: bool) -> MigModeResult:
        """See :meth:`.Nvml.set_mig_mode`."""
        return await self.call("set_mig_mode", lambda nvml: nvml.set_mig_mode(gpu, enabled))

    async def gi_profiles(self, gpu: GpuUuid) -> list[GiProfileInfo]:
        """See :meth:`.Nvml.gi_profiles`."""
        return await self.call("gi_profiles", lambda nvml: nvml.gi_profiles(gpu))

    async def instances(self, gpu: GpuUuid) -> list[GpuInstance]:
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

    async def processes(self, device: GpuUuid | MigUuid) -> list[GpuProcess]:
        """See :meth:`.Nvml.processes`."""
        return await self.call("processes", lambda nvml: nvml.processes(device))

    async def memory(self, device: GpuUuid | MigUuid) -> DeviceMemory:
        """See :meth:`.Nvml.memory`."""
        return await self.call("memory", lambda nvml: nvml.memory(device))

    async def measure(self, gpu: GpuUuid) -> Measurements:
        """See :meth:`.Nvml.measure`."""
        return await self.call("measure", lambda nvml: nvml.measure(gpu))

    async def measure_instance(self, gpu: GpuUuid, gi_id: int) -> Measurements:
        """See :meth:`.Nvml.measure_instance`."""
        return await self.call("measure_instance", lambda nvml: nvml.measure_instance(gpu, gi_id))

    async def process_activity(self, gpu: GpuUuid) -> list[ProcessActivity]:
        """See :meth:`.Nvml.process_activity`."""
        return await self.call("process_activity", lambda nvml: nvml.process_activity(gpu))

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

    async def place(self, gpu: GpuUuid) -> PciPlace:
        """See :meth:`.Nvml.place`."""
        return await self.call("place", lambda nvml: nvml.place(gpu))

    async def network_cards(self) -> Mapping[str, PciPlace]:
        """See :meth:`.Nvml.network_cards`."""
        return await self.call("network_cards", lambda nvml: nvml.network_cards())

    async def compute_mode(self, gpu: GpuUuid) -> ComputeMode:
        """See :meth:`.Nvml.compute_mode`."""
        return await self.call("compute_mode", lambda nvml: nvml.compute_mode(gpu))

    async def set_compute_mode(self, gpu: GpuUuid, mode: ComputeMode) -> None:
        """See :meth:`.Nvml.set_compute_mode`."""
        await self.call("set_compute_mode", lambda nvml: nvml.set_compute_mode(gpu, mode))

    async def reset(self, gpu: GpuUuid) -> None:
        """See :meth:`.Nvml.reset`."""
        await self.call("reset", lambda nvml: nvml.reset(gpu))


#: Longest wait for events in one piece, seconds; it holds its thread so long.
EVENT_WAIT = 1.0
#: Seconds between two checks of a process that cannot be watched.
UNWATCHABLE_RECHECK = 1.0


class SharedLock:
    """A library that threads share until one needs it alone. That thread goes before threads that come later."""

    def __init__(self) -> None:
        self._changed = Condition()
        self._sharing = 0
        self._alone = 0  # number of threads that are alone, or wait to be

    def run_shared(self, act: Callable[[], T]) -> T:
        """Runs a function beside others."""
        with self._changed:
            self._changed.wait_for(lambda: not self._alone)
            self._sharing += 1
        try:
            return act()
        finally:
            with self._changed:
                self._sharing -= 1
                self._changed.notify_all()

    def run_alone(self, act: Callable[[], T]) -> T:
        """Runs a function while no other runs."""
        with self._changed:
            self._alone += 1
            self._changed.wait_for(lambda: not self._sharing)
            try:
                return act()
            finally:
                self._alone -= 1
                self._changed.notify_all()


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
        self._use = SharedLock()

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
                await loop.run_in_executor(self._calls, self._use.run_alone, nvml.close)
        finally:
            self._stop_threads()

    async def call(self, operation: str, call: Callable[[Nvml], T], *, card: str = "") -> T:
        """Does one call in its worker thread; a reset when no other is under way."""
        nvml = self._open_nvml(operation)
        thread = self._thread_of(card) if card else self._calls
        use = self._use.run_alone if operation == "reset" else self._use.run_shared
        return await asyncio.get_running_loop().run_in_executor(thread, use, lambda: call(nvml))

    def _thread_of(self, card: str) -> ThreadPoolExecutor:
        if card not in self._cards:
            self._cards[card] = ThreadPoolExecutor(1, thread_name_prefix=f"nvml-{card}")
        return self._cards[card]

    async def wait_event(self, seconds: float) -> GpuEvent | None:
        """The next hardware event, waited for in the events thread."""
        nvml, left = self._open_nvml("wait_event"), seconds
        while True:  # in parts: a closing caller waits for the thread, and a thread cannot be called back
            wait = asyncio.get_running_loop().run_in_executor(self._events, nvml.wait_event, min(left, EVENT_WAIT))
            left -= EVENT_WAIT
            if (event := await wait) is not None or left <= 0:
                return event

    async def _process_exit(self, processes: list[GpuProcess], /) -> None:
        if not await _wait_for_pid_exit(p.pid for p in processes):
            await self._clock.sleep(UNWATCHABLE_RECHECK)

    def _open_nvml(self, operation: str) -> Nvml:
        if self._nvml is None:
            raise RuntimeError(f"NVML is not open: {operation} was called outside `async with`")
        return self._nvml

    def _stop_threads(self) -> None:
        for thread in (self._calls, self._events, *self._cards.values()):
            thread.shutdown(wait=False)


async def _wait_for_pid_exit(pids: Iterable[int]) -> bool:
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
