"""Asks a card whether it is all right, as cheaply as can be asked.

One reading of its memory goes through the driver to the card and back; then the driver's own verdict on the card is
read, where it has one, and which GPU instances there are, if somebody wants to know. A card that does not answer within
the time counts as failed: a driver that hangs is no sign of health.

NVML answers one call at a time, and a call that hangs cannot be taken back. So only one question is open at any time:
while a card owes its answer no other one is asked, and none is blamed for the silence. And the patience with a card
begins when it is its turn, not while somebody else's call is with the driver.
"""

import asyncio
from collections.abc import Awaitable, Callable

from tessera.agent.health.events import CardProbed, ProbeResult
from tessera.agent.health.policy import RecoveryAction
from tessera.clock import Clock
from tessera.nvml.asynchronous.async_nvml import AsyncNvml
from tessera.nvml.errors import GpuLost, NvmlError, ResetRequired
from tessera.nvml.interface import GpuUuid

#: Seconds that a card has to answer. A busy card answers within milliseconds, one whose driver resets it in seconds.
PROBE_TIMEOUT = 10.0


async def probe_card(hardware: AsyncNvml, gpu: GpuUuid, *, instances: bool = False) -> CardProbed:
    """How a card answers, however long it takes.

    Args:
        hardware: the node's cards.
        gpu: which.
        instances: read its GPU instances too.
    """
    try:
        await hardware.memory(gpu)
        recovery = _known((await hardware.attributes(gpu)).recovery_action)
        found = frozenset([each.gi_id for each in await hardware.instances(gpu)]) if instances else None
    except GpuLost as error:
        return CardProbed(gpu=gpu, result=ProbeResult.LOST, text=str(error))
    except ResetRequired as error:
        return CardProbed(gpu=gpu, result=ProbeResult.CLEAN, recovery=RecoveryAction.GPU_RESET, text=str(error))
    except NvmlError as error:
        return CardProbed(gpu=gpu, result=ProbeResult.FAILED, text=str(error))
    return CardProbed(gpu=gpu, result=ProbeResult.CLEAN, recovery=recovery, instances=found)


def _known(action: int | None) -> RecoveryAction | None:
    """The driver's verdict; none where it gives none, or one of a later driver that has no meaning here."""
    return RecoveryAction(action) if action in set(RecoveryAction) else None


class _Question:
    """A question to one card.

    Attributes:
        gpu: which.
        put: it is the card's turn.
        answer: waits for the answer.
    """

    def __init__(self, hardware: AsyncNvml, gpu: GpuUuid, *, instances: bool) -> None:
        self.gpu = gpu
        self._instances = instances
        self.put = asyncio.Event()
        self.answer = asyncio.create_task(self._ask(hardware), name=f"probe of {gpu}")

    async def _ask(self, hardware: AsyncNvml) -> CardProbed:
        try:
            await hardware.call("turn", lambda _: None)  # whoever called before has its answer now
        finally:
            self.put.set()
        return await probe_card(hardware, self.gpu, instances=self._instances)


class CardProber:
    """Asks the cards of a node, one question at a time.

    Args:
        hardware: the node's cards.
        patience: seconds after which a card counts as failed.
    """

    def __init__(self, hardware: AsyncNvml, *, patience: float = PROBE_TIMEOUT) -> None:
        self._hardware = hardware
        self._patience = patience
        self._open: _Question | None = None

    async def probe(self, gpu: GpuUuid, *, instances: bool = False) -> CardProbed | None:
        """How a card answers; ``None`` if it cannot be asked, since the driver owes somebody else an answer."""
        if self._open is None or self._open.answer.done():
            self._open = _Question(self._hardware, gpu, instances=instances)
        elif self._open.gpu != gpu:
            return None
        question = self._open
        try:
            async with asyncio.timeout(self._patience):
                await question.put.wait()
        except TimeoutError:
            return None
        try:
            async with asyncio.timeout(self._patience):
                return await asyncio.shield(question.answer)
        except TimeoutError:
            return CardProbed(gpu=gpu, result=ProbeResult.FAILED, text=f"no answer within {self._patience:g} s")

    def stop(self) -> None:
        """Waits for no answer any more."""
        if self._open is not None:
            self._open.answer.cancel()


#: Whether no pod holds any part of a card, nor is about to.
Free = Callable[[str], Awaitable[bool]]

#: Seconds from the first try to the second; doubled with every further one.
FIRST_PAUSE = 60.0
#: Seconds between two tries at most.
LONGEST_PAUSE = 3600.0
#: Seconds without a try after which a card counts as never tried.
FORGOTTEN = 4 * LONGEST_PAUSE


class CardResetter:
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
