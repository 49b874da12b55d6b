"""Keeps the MPS daemon of one resource running, with the limits that its plan asks for.

Rules:

1. cards are in the mode ``EXCLUSIVE_PROCESS`` before the daemon starts, and go back to the default mode after it ended;
2. a share is ready only when the daemon answers and the limits are set, and not from the moment on that it died;
3. a daemon that died, or does not answer, is started again after a pause that grows with each failure. Servers that it
   left are ended first: they hold the cards, so that no new server could start. Clients lose what they compute;
4. other limits are set while the daemon runs, for clients that connect from then on;
5. other cards need another daemon, since a server sees the cards that it was started with. That costs every client
   what it computes, so it waits until none is connected. So does the end of a daemon that is no longer wanted. A card
   that cannot be taken yet does not hold up the others: it joins them later;
6. an agent that stops leaves its daemons alone, and the next one takes over those that it would start.
"""

import asyncio
import random
from collections.abc import Mapping

from tessera.agent.base.change_notifier import ChangeNotifier
from tessera.agent.base.mps_plan import MpsPlan
from tessera.agent.mps.interfaces import (
    ControlFailed,
    DaemonId,
    DaemonLauncher,
    DaemonSpec,
    LaunchFailed,
    MpsDaemon,
    count_clients,
    list_servers,
    set_limits,
)
from tessera.agent.mps.state import DaemonRecord, ExclusiveCards, MpsState
from tessera.clock import Clock
from tessera.kube.backoff import Backoff
from tessera.nvml.errors import NvmlError

#: How often a daemon is asked whether it still answers, seconds.
CHECK_INTERVAL = 5.0
#: How long a daemon may take from its start to its first answer, seconds.
START_TIMEOUT = 15.0
#: Pause between questions to a daemon that starts, seconds.
START_CHECK_INTERVAL = 0.05
#: First and longest pause before a daemon is started again, seconds.
SHORTEST_PAUSE = 0.5
LONGEST_PAUSE = 30.0
#: A daemon that was up so long, in seconds, did not fail at its start: the next pause is short again.
STABLE = 60.0

_FAILURES = (ControlFailed, LaunchFailed, NvmlError, OSError)


class DaemonSupervisor:
    """The daemon of one resource.

    Args:
        resource: whose shares it serves.
        launcher: starts and finds daemons.
        cards: sets compute modes.
        record: what survives a restart of the agent.
        wake: shared by all supervisors of a node; notified when a wish or a card's owner changed.
        told: notified when :attr:`served` or :attr:`why` changed.
        clock: for pauses.
        rng: spreads the pauses.
    """

    def __init__(
        self,
        resource: str,
        *,
        launcher: DaemonLauncher,
        cards: ExclusiveCards,
        record: MpsState,
        wake: ChangeNotifier,
        told: ChangeNotifier,
        clock: Clock,
        rng: random.Random,
    ) -> None:
        self._resource = resource
        self._launcher = launcher
        self._cards = cards
        self._record = record
        self._wake = wake
        self._told = told
        self._clock = clock
        self._backoff = Backoff(rng, shortest=SHORTEST_PAUSE, longest=LONGEST_PAUSE)
        self._wanted: MpsPlan | None = None
        self._served: frozenset[str] = frozenset()
        self._why = "the MPS daemon is being started"
        self._up_since: float | None = None

    @property
    def served(self) -> frozenset[str]:
        """UUIDs of the cards whose shares can be used now."""
        return self._served

    @property
    def problem(self) -> str:
        """What is not as asked; empty if all is."""
        return self._why

    def set_plan(self, plan: MpsPlan | None) -> None:
        """Says what the daemon shall be; ``None`` for none."""
        if plan != self._wanted:
            self._wanted = plan
            self._wake.notify()

    async def run(self) -> None:
        """Keeps the daemon as wanted; returns once none is wanted and every card was given back."""
        daemon = self._left_behind()
        while True:
            try:
                if daemon is None:
                    await self._sweep()
                    daemon = await self._next()
                if daemon is None:
                    return
                await self._keep(daemon)
            except _FAILURES as error:
                await self._failed(str(error))
            daemon = None

    def _left_behind(self) -> MpsDaemon | None:
        left = self._record.daemons.get(self._resource)
        return None if left is None else self._launcher.find(self._resource, left.mark)

    async def _sweep(self) -> None:
        """Ends what is there without being kept."""
        left = self._record.daemons.get(self._resource)
        if left is None:
            await self._launcher.quit_unknown(self._resource)
            return
        if (daemon := self._launcher.find(self._resource, left.mark)) is not None:
            await daemon.end()
        await self._launcher.end_leftovers(left.mark)
        self._record.remove_daemon(self._resource)

    async def _next(self) -> MpsDaemon | None:
        """Starts the daemon that is wanted; ``None`` when none is and nothing is left to do."""
        while True:
            seen = self._wake.count
            plan = self._wanted
            await self._give_back(keep=() if plan is None else plan.cards)
            if self._wanted is not plan:
                continue
            if plan is None:
                return None
            obstacles = await self._cards.obstacles(self._resource, plan.cards)
            if cards := tuple(card for card in plan.cards if card not in obstacles):
                return await self._start(cards)
            self._tell(frozenset(), _texts(obstacles))
            await self._wake.wait(seen, CHECK_INTERVAL)

    async def _give_back(self, keep: tuple[str, ...]) -> None:
        if spare := self._cards.cards_of(self._resource).difference(keep):
            await self._cards.release(spare)
            self._wake.notify()

    async def _start(self, cards: tuple[str, ...]) -> MpsDaemon:
        if missing := self._launcher.find_obstacle():
            raise LaunchFailed(missing)
        await self._cards.take(self._resource, cards)

        def note(mark: DaemonId) -> None:
            self._record.add_daemon(self._resource, DaemonRecord(mark, cards))

        return await self._launcher.start(DaemonSpec(self._resource, cards), note)

    async def _keep(self, daemon: MpsDaemon) -> None:
        """Returns when the daemon is to be ended.

        Raises:
            LaunchFailed: it ended by itself.
            ControlFailed: it does not answer, or refuses.
            NvmlError: a card refuses.
            OSError: the record cannot be written.
        """
        cards = self._record.daemons[self._resource].cards
        ended = asyncio.ensure_future(daemon.wait_ended())
        ended.add_done_callback(lambda _: self._wake.notify())
        try:
            if self._wanted is not None:
                await self._cards.take(self._resource, [card for card in cards if card in self._wanted.devices])
            await self._first_answer(daemon, ended)
            await self._follow(daemon, cards, ended)
        finally:
            ended.cancel()

    async def _first_answer(self, daemon: MpsDaemon, ended: "asyncio.Future[str]") -> None:
        deadline = self._clock.monotonic() + START_TIMEOUT
        while True:
            try:
                await list_servers(daemon)
            except ControlFailed:
                self._check_alive(ended)
                if self._clock.monotonic() >= deadline:
                    raise
                await self._clock.sleep(START_CHECK_INTERVAL)
            else:
                return

    async def _follow(self, daemon: MpsDaemon, cards: tuple[str, ...], ended: "asyncio.Future[str]") -> None:
        """Brings about what is wanted of a daemon that answers, as long as it can do so."""
        in_force: MpsPlan | None = None
        asked = self._clock.monotonic()
        while True:
            seen = self._wake.count
            self._check_alive(ended)
            wanted = self._wanted
            obstacles = await self._missing(wanted, cards)
            change = _change(wanted, cards, obstacles)
            if change and not await count_clients(daemon):
                self._tell(frozenset(), change)
                return
            limits = _only(wanted, cards)
            if limits is not None and limits != in_force:
                await set_limits(daemon, limits)
                in_force = limits
            self._check_alive(ended)
            self._tell(frozenset(cards), f"{change}, once its clients have ended" if change else _texts(obstacles))
            await self._wake.wait(seen, max(0.0, asked + CHECK_INTERVAL - self._clock.monotonic()))
            if self._clock.monotonic() >= asked + CHECK_INTERVAL and not ended.done():
                await list_servers(daemon)
                asked = self._clock.monotonic()

    async def _missing(self, wanted: MpsPlan | None, cards: tuple[str, ...]) -> dict[str, str]:
        """The wanted cards that a daemon does not serve and could not, and why."""
        missing = [] if wanted is None else [card for card in wanted.cards if card not in cards]
        return await self._cards.obstacles(self._resource, missing)

    def _check_alive(self, ended: "asyncio.Future[str]") -> None:
        if ended.done():
            raise LaunchFailed(f"the MPS daemon ended: {ended.result()}")

    async def _failed(self, text: str) -> None:
        if self._up_since is not None and self._clock.monotonic() - self._up_since >= STABLE:
            self._backoff.reset()
        pause = self._backoff.next()
        self._tell(frozenset(), text)
        until = self._clock.monotonic() + pause
        wanted = self._wanted
        while self._wanted is wanted and (rest := until - self._clock.monotonic()) > 0:
            await self._wake.wait(self._wake.count, rest)

    def _tell(self, served: frozenset[str], why: str) -> None:
        if bool(served) != bool(self._served):
            self._up_since = self._clock.monotonic() if served else None
        if (served, why) != (self._served, self._why):
            self._served, self._why = served, why
            self._told.notify()


def _only(plan: MpsPlan | None, cards: tuple[str, ...]) -> MpsPlan | None:
    """A plan as far as it concerns these cards; ``None`` if it does not."""
    shares = {} if plan is None else {card: share for card, share in plan.devices.items() if card in cards}
    return MpsPlan(shares, plan.replicas) if plan is not None and shares else None


def _change(wanted: MpsPlan | None, cards: tuple[str, ...], obstacles: Mapping[str, str]) -> str:
    """What has to become of a daemon that serves these cards; empty if nothing."""
    if wanted is None:
        return "the MPS daemon ends"
    possible = [card for card in wanted.cards if card not in obstacles]
    if frozenset(possible) == frozenset(cards):
        return ""
    return f"the MPS daemon changes from cards {', '.join(cards)} to {', '.join(possible) or 'none'}"


def _texts(obstacles: Mapping[str, str]) -> str:
    return "; ".join(obstacles.values())
