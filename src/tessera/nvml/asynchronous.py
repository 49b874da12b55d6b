"""NVML under an event loop.

NVML calls block: destroying an instance can take a second, and a GPU in trouble holds a call for longer. Callers use
:class:`AsyncNvml`, which has two equivalent implementations:

- :class:`~tessera.nvml.asynchronous.ThreadedNvml` runs calls on real GPUs in worker threads;
- :class:`~tessera.nvml.simulated.machine_access.InlineNvml` runs calls on simulated GPUs on the loop's own clock.

Of real GPUs, one thread runs the calls on each GPU's instances, so that all GPUs of a node that has booted are cut side
by side; one runs all other calls, and one waits for events. NVML is thread-safe (NVIDIA's page on NVML: "safe to make
simultaneous NVML calls from multiple threads"). Nothing else runs while a GPU is reset, for which NVML is closed, or at
the end.

A cancelled call is not undone: the thread finishes it and its answer is lost. Hardware is the truth, so the caller
reads :meth:`~tessera.nvml.asynchronous.AsyncNvml.instances` again.
"""

import asyncio
import functools
import logging
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Iterable
from concurrent.futures import ThreadPoolExecutor
from threading import Condition
from typing import Any, Concatenate, ParamSpec, Self, TypeVar

from tessera.clock import Clock
from tessera.nvml.errors import DriverMismatch, DriverNotLoaded, NvmlError
from tessera.nvml.interface import (
    GpuEvent,
    GpuProcess,
    GpuUuid,
    Nvml,
)

_log = logging.getLogger(__name__)

T = TypeVar("T")
R = TypeVar("R")
P = ParamSpec("P")


def _call(method: Callable[Concatenate[Nvml, P], R]) -> "Callable[Concatenate[AsyncNvml, P], Coroutine[Any, Any, R]]":
    """A call of :class:`.Nvml` as a coroutine."""
    operation = method.__name__

    async def call(self: "AsyncNvml", /, *args: P.args, **kwargs: P.kwargs) -> R:
        return await self.call(operation, lambda nvml: getattr(nvml, operation)(*args, **kwargs))

    functools.update_wrapper(call, method)  # its name and its text
    return call


def _instance_call(
    method: Callable[Concatenate[Nvml, GpuUuid, P], R],
) -> "Callable[Concatenate[AsyncNvml, GpuUuid, P], Coroutine[Any, Any, R]]":
    """A call about the instances of a card as a coroutine."""
    operation = method.__name__

    async def call(self: "AsyncNvml", gpu: GpuUuid, /, *args: P.args, **kwargs: P.kwargs) -> R:
        return await self.call(operation, lambda nvml: getattr(nvml, operation)(gpu, *args, **kwargs), card=gpu)

    functools.update_wrapper(call, method)  # its name and its text
    return call


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

    # The calls of :class:`.Nvml`; those about the instances of a card are in order on each card.
    driver_version = _call(Nvml.driver_version)
    cuda_version = _call(Nvml.cuda_version)
    devices = _call(Nvml.devices)
    set_known_cards = _call(Nvml.set_known_cards)
    unheard_cards = _call(Nvml.unheard_cards)
    set_mig_mode = _call(Nvml.set_mig_mode)
    gi_profiles = _call(Nvml.gi_profiles)
    instances = _instance_call(Nvml.instances)
    create_gpu_instance = _instance_call(Nvml.create_gpu_instance)
    create_compute_instance = _instance_call(Nvml.create_compute_instance)
    destroy_compute_instance = _instance_call(Nvml.destroy_compute_instance)
    destroy_gpu_instance = _instance_call(Nvml.destroy_gpu_instance)
    processes = _call(Nvml.processes)
    memory = _call(Nvml.memory)
    measure = _call(Nvml.measure)
    measure_instance = _call(Nvml.measure_instance)
    process_activity = _call(Nvml.process_activity)
    device_files = _call(Nvml.device_files)
    card_files = _call(Nvml.card_files)
    attributes = _call(Nvml.attributes)
    mig_attributes = _call(Nvml.mig_attributes)
    nvlinks = _call(Nvml.nvlinks)
    common_ancestor = _call(Nvml.common_ancestor)
    place = _call(Nvml.place)
    network_cards = _call(Nvml.network_cards)
    compute_mode = _call(Nvml.compute_mode)
    set_compute_mode = _call(Nvml.set_compute_mode)
    reset = _call(Nvml.reset)


#: Calls that concern no card; the list of cards fails only when the driver does.
_NODE_CALLS = frozenset({"devices", "driver_version", "cuda_version"})


class NvmlWithLossDetection(AsyncNvml):
    """Passes all calls on, and notices when the driver is gone.

    Args:
        inner: makes the calls.
        note_loss: called when the driver is gone.

    Attributes:
        gone: NVML's error when the driver went; empty while it is there.
    """

    def __init__(self, inner: AsyncNvml, note_loss: Callable[[], None]) -> None:
        self.simulated = inner.simulated
        self.gone = ""
        self._inner = inner
        self._note_loss = note_loss

    async def __aenter__(self) -> Self:
        await self._inner.__aenter__()
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        try:
            await self._inner.__aexit__(*exc_info)
        except NvmlError as error:  # a driver that is gone has nothing left to close
            _log.warning("NVML was not closed in order: %s", error)

    async def call(self, operation: str, call: Callable[[Nvml], T], *, card: str = "") -> T:
        """Makes one call."""
        try:
            return await self._inner.call(operation, call, card=card)
        except (DriverNotLoaded, DriverMismatch) as error:
            if operation in _NODE_CALLS or not await self._answers():
                self._record_loss(error)
            raise

    async def wait_event(self, seconds: float) -> GpuEvent | None:
        """The next hardware event."""
        try:
            return await self._inner.wait_event(seconds)
        except (DriverNotLoaded, DriverMismatch) as error:
            self._record_loss(error)
            raise

    async def _process_exit(self, processes: list[GpuProcess], /) -> None:
        await self._inner._process_exit(processes)  # noqa: SLF001 - the same interface, one object further

    async def _answers(self) -> bool:
        """True if the driver still answers; then an error is that of one card."""
        try:
            await self._inner.driver_version()
        except NvmlError:
            return False
        return True

    def _record_loss(self, error: Exception) -> None:
        if not self.gone:
            self.gone = str(error)
            self._note_loss()


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
