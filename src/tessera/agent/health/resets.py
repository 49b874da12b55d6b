"""Resets a card that asks for it, once nobody has any part of it.

A reset ends what computes on the card and destroys its MIG instances, so it is done only to a card that is out already
and that no pod holds; the driver itself refuses as long as any process has the card open. A card that was reset has to
prove itself like any other (:mod:`tessera.agent.health.faults`). One that keeps asking is reset less and less often.
"""

from collections.abc import Awaitable, Callable

from tessera.clock import Clock
from tessera.nvml.interface import GpuUuid
from tessera.nvml.worker import AsyncNvml

#: Whether no pod holds any part of a card, nor is about to.
Free = Callable[[str], Awaitable[bool]]

#: Seconds from the first try to the second; doubled with every further one.
FIRST_PAUSE = 60.0
#: Seconds between two tries at most.
LONGEST_PAUSE = 3600.0
#: Seconds without a try after which a card counts as never tried.
FORGOTTEN = 4 * LONGEST_PAUSE


class CardResets:
    """Resets cards.

    Args:
        hardware: the cards.
        free: whether nobody has any part of a card; may raise ``ConnectionError`` if it cannot be told.
        done: told of every card that was reset.
        clock: the time.
    """

    def __init__(
        self, *, hardware: AsyncNvml, free: Free, done: Callable[[str], Awaitable[None]], clock: Clock
    ) -> None:
        self._hardware = hardware
        self._free = free
        self._done = done
        self._clock = clock
        #: When each card was tried last, and how often.
        self._tries: dict[str, tuple[float, int]] = {}

    async def reset(self, gpu: str) -> bool:
        """Resets a card if it is free and its time has come; returns whether it was reset.

        Raises:
            NvmlError: the driver refuses; the text says why.
        """
        now = self._clock.monotonic()
        last, count = self._tries.get(gpu, (now - FORGOTTEN, 0))
        if now - last >= FORGOTTEN:
            count = 0
        elif now - last < min(FIRST_PAUSE * 2.0 ** (count - 1), LONGEST_PAUSE):
            return False
        try:
            if not await self._free(gpu):
                return False
        except ConnectionError:
            return False
        self._tries[gpu] = (now, count + 1)
        await self._hardware.reset(GpuUuid(gpu))
        await self._done(gpu)
        return True
