"""Real GPUs under an event loop: worker threads give the calls an order.

One thread runs the calls on each GPU's instances, so that all GPUs of a node that has booted are cut side by side; one
runs all other calls, and one waits for events. NVML is thread-safe (NVIDIA's page on NVML: "safe to make simultaneous
NVML calls from multiple threads"). Nothing else runs while a GPU is reset, for which NVML is closed, or at the end.

A cancelled call is not undone: the thread finishes it and its answer is lost. Hardware is the truth, so the caller
reads :meth:`~tessera.nvml.asynchronous.async_nvml.AsyncNvml.instances` again.
"""

import asyncio
import os
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from threading import Condition
from typing import Self, TypeVar

from tessera.clock import Clock
from tessera.nvml.asynchronous.async_nvml import AsyncNvml
from tessera.nvml.interface import GpuEvent, GpuProcess, Nvml

T = TypeVar("T")

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
