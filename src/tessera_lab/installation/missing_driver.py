"""What an agent finds on a node of the lab that was started without cards: it waits for a driver, as on a real node."""

import asyncio
from collections.abc import Callable
from pathlib import Path

from tessera.agent.driver.driver_state import DriverHome
from tessera.nvml.errors import DriverNotLoaded, NvmlError
from tessera.nvml.worker import AsyncNvml


class NoDriver:
    """See :class:`tessera.agent.driver.hardware.Driver`; there is none, and none comes.

    Args:
        node: the node's name, for messages.
    """

    def __init__(self, node: str) -> None:
        self._node = node

    def has_library(self) -> bool:
        """Its library is nowhere."""
        return False

    def nvml(self, _home: DriverHome) -> AsyncNvml:
        """Nothing can be opened.

        Raises:
            DriverNotLoaded: always.
        """
        raise DriverNotLoaded(f"node {self._node} of the lab was started without cards")

    def root(self, _home: DriverHome) -> Path | None:
        """It has no files."""
        return None

    def needs_new_process(self, _error: NvmlError) -> bool:
        """Waiting costs nothing."""
        return False

    async def watch(self, _notify: Callable[[], None]) -> None:
        """Nothing happens."""
        await asyncio.Event().wait()
