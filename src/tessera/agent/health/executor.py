"""Probes and resets cards: the only module of this folder that touches the hardware.

A probe is as cheap as possible. One reading of the memory goes through the driver to the card and back; then the
recovery action that the driver asks for is read, if the driver has one, and the GPU instances, if they are needed. A
card that does not answer in time counts as failed: a driver that hangs is no sign of health. NVML answers one call at a
time, and a call that hangs cannot be cancelled. So only one probe is open at any time: until a card has answered, no
other card is probed, and none counts as failed for that. The time limit of a card begins with its own call, not while
the driver still works on another one.

A reset ends all computations on the card and destroys its MIG instances. So a card is reset only if it is unhealthy and
no pod holds a part of it; the driver itself refuses as long as any process has the card open. Afterwards the card must
show clean probes like any other (:mod:`tessera.agent.health.faults`). If a card needs resets again and again, the
pauses between them grow.
"""

import asyncio
from collections.abc import Collection, Iterable
from typing import Protocol

from tessera.agent.base.wake_ups import RetryDelays
from tessera.agent.health.fault import CardProbed, ProbeResult
from tessera.agent.health.policy import RecoveryAction
from tessera.clock import Clock
from tessera.nvml.asynchronous import AsyncNvml
from tessera.nvml.errors import GpuLost, NvmlError, ResetRequired
from tessera.nvml.interface import GpuUuid

#: Seconds that a card has to answer. A busy card answers within milliseconds, one whose driver resets it in seconds.
PROBE_TIMEOUT = 10.0
#: Delays between two attempts to reset a card.
RESET_DELAYS = RetryDelays(first=60.0, most=3600.0)
#: Seconds without an attempt after which a card counts as never reset.
FORGOTTEN = 4 * RESET_DELAYS.most


async def probe_card(hardware: AsyncNvml, gpu: GpuUuid, *, instances: bool = False) -> CardProbed:
    """Probes a card, however long it takes.

    Args:
        hardware: the node's cards.
        gpu: the card's UUID.
        instances: if true, reads its GPU instances too.
    """
    try:
        await hardware.memory(gpu)
        recovery = _parse_recovery((await hardware.attributes(gpu)).recovery_action)
        found = frozenset([each.gi_id for each in await hardware.instances(gpu)]) if instances else None
    except GpuLost as error:
        return CardProbed(gpu=gpu, result=ProbeResult.LOST, text=str(error))
    except ResetRequired as error:
        return CardProbed(gpu=gpu, result=ProbeResult.CLEAN, recovery=RecoveryAction.GPU_RESET, text=str(error))
    except NvmlError as error:
        return CardProbed(gpu=gpu, result=ProbeResult.FAILED, text=str(error))
    return CardProbed(gpu=gpu, result=ProbeResult.CLEAN, recovery=recovery, instances=found)


def _parse_recovery(action: int | None) -> RecoveryAction | None:
    """The recovery action; ``None`` if the driver gives none, or an action of a later driver that is unknown here."""
    return RecoveryAction(action) if action in set(RecoveryAction) else None


class _Probe:
    """A probe of one card.

    Attributes:
        gpu: the card's UUID.
        begun: set when the card's own call begins.
        answer: the task that waits for the answer.
    """

    def __init__(self, hardware: AsyncNvml, gpu: GpuUuid, *, instances: bool) -> None:
        self.gpu = gpu
        self._instances = instances
        self.begun = asyncio.Event()
        self.answer = asyncio.create_task(self._ask(hardware), name=f"probe of {gpu}")

    async def _ask(self, hardware: AsyncNvml) -> CardProbed:
        try:
            await hardware.call("turn", lambda _: None)  # all calls before this one are answered now
        finally:
            self.begun.set()
        return await probe_card(hardware, self.gpu, instances=self._instances)


class CardProber:
    """Probes the cards of a node, one at a time.

    Args:
        hardware: the node's cards.
    """

    def __init__(self, hardware: AsyncNvml) -> None:
        self._hardware = hardware
        self._current: _Probe | None = None

    async def probe(self, gpu: GpuUuid, *, instances: bool = False) -> CardProbed | None:
        """Probes a card; ``None`` if that is not possible now, since the driver has not answered an earlier call."""
        if self._current is None or self._current.answer.done():
            self._current = _Probe(self._hardware, gpu, instances=instances)
        elif self._current.gpu != gpu:
            return None
        probe = self._current
        try:
            async with asyncio.timeout(PROBE_TIMEOUT):
                await probe.begun.wait()
        except TimeoutError:
            return None
        try:
            async with asyncio.timeout(PROBE_TIMEOUT):
                return await asyncio.shield(probe.answer)
        except TimeoutError:
            return CardProbed(gpu=gpu, result=ProbeResult.FAILED, text=f"no answer within {PROBE_TIMEOUT:g} s")

    def stop(self) -> None:
        """Stops waiting for an answer."""
        if self._current is not None:
            self._current.answer.cancel()


class CardHost(Protocol):
    """The rest of the agent, as far as a reset concerns it."""

    async def is_unused(self, gpu: str) -> bool:
        """True if no pod holds any part of a card, nor is about to; raises ConnectionError if that is unknown."""
        ...

    async def is_node_empty(self) -> bool:
        """True if no pod holds a card of the node, nor is about to; raises ConnectionError if that is unknown."""
        ...

    async def reread_card(self, gpu: str | None) -> None:
        """Reads a card anew after it was reset."""
        ...


class CardResetter:
    """Resets cards that no pod uses.

    Args:
        hardware: the cards.
        host: reports if a card is in use, and reads a card anew after its reset.
        clock: the time.
    """

    def __init__(self, hardware: AsyncNvml, *, host: CardHost, clock: Clock) -> None:
        self._hardware = hardware
        self._host = host
        self._clock = clock
        #: Time of the last attempt to reset each card, and number of attempts.
        self._attempts: dict[str, tuple[float, int]] = {}

    async def reset(self, gpu: str) -> bool:
        """Resets a card if no pod uses it and its pause is over; returns true if it was reset.

        Raises:
            NvmlError: the driver refuses; the text has the reason.
        """
        now = self._clock.monotonic()
        last, count = self._attempts.get(gpu, (now - FORGOTTEN, 0))
        if now - last >= FORGOTTEN:
            count = 0
        elif now - last < RESET_DELAYS.after(count):
            return False
        try:
            if not await self._host.is_unused(gpu):
                return False
        except ConnectionError:
            return False
        self._attempts[gpu] = (now, count + 1)
        await self._hardware.reset(GpuUuid(gpu))
        await self._host.reread_card(gpu)
        return True


#: Seconds between two probes of a card without a fault.
PROBE_INTERVAL = 60.0
#: Seconds between two probes of a suspected card.
SUSPECT_PROBE_INTERVAL = 10.0
#: Least seconds between two probes of one card, however many events come.
_SHORTEST_INTERVAL = 1.0


class ProbeSchedule:
    """The next probe of each card of a node: seldom without a fault, often if suspected. Pure.

    Times are seconds of a monotonic clock.
    """

    def __init__(self) -> None:
        #: Time of the last probe of each card that was probed.
        self._probed_at: dict[str, float] = {}
        #: Time of the next probe; has exactly the node's cards.
        self._due: dict[str, float] = {}

    def set_cards(self, cards: Iterable[str], now: float) -> None:
        """Takes in the node's cards; a new one is due at once."""
        self._due = {card: self._due.get(card, now) for card in cards}

    def due(self, now: float) -> list[str]:
        """The cards to probe now."""
        return [card for card, at in self._due.items() if at <= now]

    def pause(self, now: float) -> float | None:
        """Seconds until the next card is due; None without cards."""
        soonest = min(self._due.values(), default=None)
        return None if soonest is None else max(0.0, soonest - now)

    def note_probe(self, card: str, now: float) -> None:
        """Takes in that a probe of a card begins; the next one comes soon, unless :meth:`note_well` is called."""
        self._probed_at[card] = now
        self._due[card] = now + SUSPECT_PROBE_INTERVAL

    def note_well(self, card: str) -> None:
        """Takes in that nothing is wrong with a card that was probed."""
        self._due[card] = self._probed_at[card] + PROBE_INTERVAL

    def hasten(self, card: str, now: float) -> None:
        """Has a card probed at once, but not twice within a second; ignores other nodes' cards."""
        if card in self._due:
            allowed = self._probed_at.get(card, now - _SHORTEST_INTERVAL) + _SHORTEST_INTERVAL
            self._due[card] = min(self._due[card], max(now, allowed))

    def suspect(self, cards: Collection[str], now: float) -> None:
        """Has cards probed as often as suspected ones."""
        soon = now + SUSPECT_PROBE_INTERVAL
        self._due = {card: min(at, soon) if card in cards else at for card, at in self._due.items()}
