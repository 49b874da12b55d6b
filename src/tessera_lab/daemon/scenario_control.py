"""The scenario that plays on a running lab, at most one: starts, stops and describes it for the control socket."""

import asyncio
import logging
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

import msgspec

from tessera.kube.client.client import Client
from tessera.text import one_line
from tessera_lab.activity.lab_cards import LabCards
from tessera_lab.activity.player import ScenarioPlayer
from tessera_lab.activity.scenario import Scenario, parse_scenario
from tessera_lab.daemon.card_requests import read_arguments
from tessera_lab.daemon.control_socket import RequestHandler
from tessera_lab.simulation.supervision import collect_result
from tessera_lab.simulation.virtual_time import CountedClock

_log = logging.getLogger(__name__)


class ScenarioRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Arguments of the request ``scenario``: a name of RFC 1123 for the status and labels, and the scenario's text."""

    name: str
    text: str


class ScenarioControl:
    """Plays one scenario after another.

    Args:
        cards: the lab's cards and pods.
        client: creates and deletes the scenarios' pods.
        clock: the lab's time.
    """

    def __init__(self, cards: LabCards, client: Client, clock: CountedClock) -> None:
        self._cards = cards
        self._client = client
        self._clock = clock
        #: The scenario that was requested last, with its name; ``None`` for none.
        self._wanted: tuple[str, Scenario] | None = None
        self._changed = asyncio.Event()
        #: The player of :attr:`_wanted`; ``None`` while the scenario before it is still stopped.
        self._player: ScenarioPlayer | None = None

    def handlers(self) -> Mapping[str, RequestHandler]:
        """Returns the handlers by the request's first word."""
        return {"scenario": self._start, "scenario-stop": self._stop, "scenario-status": lambda _: self._status()}

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Plays what is requested inside the block."""
        task = asyncio.create_task(self._run())
        try:
            yield
        finally:
            task.cancel()
            await asyncio.wait([task])

    def _start(self, text: str) -> str:
        request = read_arguments(text, ScenarioRequest)
        scenario = parse_scenario(request.text)
        name = one_line(request.name)
        self._want((name, scenario))
        length = f"for {scenario.lasts}" if scenario.lasts else "until: tessera lab scenario --stop"
        return f"scenario {name} plays on the simulated cards {length}"

    def _stop(self, _: str) -> str:
        before = self._wanted
        self._want(None)
        return (
            "no scenario plays" if before is None else f"scenario {before[0]} is stopped, and what it made is removed"
        )

    def _want(self, wanted: tuple[str, Scenario] | None) -> None:
        self._wanted = wanted
        self._changed.set()

    def _status(self) -> str:
        if self._wanted is None:
            return "no scenario plays"
        if self._player is None or self._changed.is_set():
            return f"scenario {self._wanted[0]} starts"
        return self._player.status()

    async def _run(self) -> None:
        while True:
            await self._changed.wait()
            self._changed.clear()
            if self._wanted is None:
                continue
            name, scenario = self._wanted
            player = self._player = ScenarioPlayer(
                name, scenario, cards=self._cards, client=self._client, clock=self._clock
            )
            playing = asyncio.create_task(collect_result(player.run()))
            try:
                await self._changed.wait()
            finally:
                playing.cancel()
                await asyncio.wait([playing])
                error = None if playing.cancelled() else playing.result()
                if error is not None:
                    _log.error("scenario %s", name, exc_info=error)
            await player.stop()
            self._player = None
