"""NVML that notices when the driver under it is gone.

Many parts call NVML, and each of them treats an error as one of its own call. That there is no driver any more is news
for whoever opened it: everything has to be let go of before another driver can come.
"""

import logging
from collections.abc import Callable
from typing import Self, TypeVar

from tessera.nvml.errors import DriverMismatch, DriverNotLoaded, NvmlError
from tessera.nvml.interface import Event, Nvml, Process
from tessera.nvml.worker import AsyncNvml

T = TypeVar("T")

_log = logging.getLogger(__name__)


class WatchedNvml(AsyncNvml):
    """Another :class:`~tessera.nvml.worker.AsyncNvml`, with a memory.

    Args:
        inner: does the calls.
        notify: called when the driver is found gone.

    Attributes:
        gone: what NVML said when the driver was found gone; empty while it is there.
    """

    def __init__(self, inner: AsyncNvml, notify: Callable[[], None]) -> None:
        self.simulated = inner.simulated
        self.gone = ""
        self._inner = inner
        self._notify = notify

    async def __aenter__(self) -> Self:
        await self._inner.__aenter__()
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        try:
            await self._inner.__aexit__(*exc_info)
        except NvmlError as error:  # a driver that is gone has nothing left to close
            _log.warning("NVML was not closed in order: %s", error)

    async def call(self, operation: str, call: Callable[[Nvml], T], *, card: str = "") -> T:
        """Does one call."""
        try:
            return await self._inner.call(operation, call, card=card)
        except (DriverNotLoaded, DriverMismatch) as error:
            self._note(error)
            raise

    async def wait_event(self, seconds: float) -> Event | None:
        """The next hardware event."""
        try:
            return await self._inner.wait_event(seconds)
        except (DriverNotLoaded, DriverMismatch) as error:
            self._note(error)
            raise

    async def _process_exit(self, processes: list[Process], /) -> None:
        await self._inner._process_exit(processes)  # noqa: SLF001 - the same interface, one object further

    def _note(self, error: Exception) -> None:
        if not self.gone:
            self.gone = str(error)
            self._notify()
