"""Requests to the control socket about cards, and about the scenario that plays on them.

At most one scenario plays; it is started, stopped and described. Requests about cards are ``break``, ``mend`` and
``use-memory``. Arguments are JSON.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import TypeVar

import msgspec

from tessera.kube.client import Client
from tessera.kube.quantity import integer_value
from tessera.nvml.errors import UnknownNvmlError
from tessera.text import one_line
from tessera_lab.activity.lab_cards import LabCards
from tessera_lab.activity.player import ScenarioPlayer
from tessera_lab.activity.scenario import Scenario, parse_scenario
from tessera_lab.daemon.lab_folder import RequestHandler
from tessera_lab.limits import LAB_XID
from tessera_lab.simulation.supervision import collect_result
from tessera_lab.simulation.virtual_time import CountedClock

T = TypeVar("T")
_log = logging.getLogger(__name__)


class _Break(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    card: str
    fault: str = ""
    xid: int | None = None
    code: int | None = None


class _Mend(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    card: str


class _UseMemory(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    pod: str
    size: str
    namespace: str = "default"


def card_handlers(cards: LabCards) -> Mapping[str, RequestHandler]:
    """Returns the handlers by the request's first word."""
    return {
        "break": lambda text: _break(cards, read_arguments(text, _Break)),
        "mend": lambda text: cards.mend_card(read_arguments(text, _Mend).card),
        "use-memory": lambda text: _use_memory(cards, read_arguments(text, _UseMemory)),
    }


def read_arguments(text: str, kind: type[T]) -> T:
    """Decodes a request's arguments.

    Raises:
        ValueError: they are not of this kind.
    """
    try:
        return msgspec.json.decode(text, type=kind)
    except (msgspec.DecodeError, RecursionError) as error:
        raise ValueError(f"arguments of the request: {error}") from error


def _break(cards: LabCards, request: _Break) -> str:
    if (request.xid is None) == (not request.fault):
        raise ValueError("a card breaks by either an XID or a fault")
    if request.xid is not None and not 1 <= request.xid <= LAB_XID:
        raise ValueError(f"XID {request.xid}: an XID is 1 to {int(LAB_XID)}")
    if request.code is not None and request.fault != "unreadable":
        raise ValueError("a code is the error of the fault unreadable, and of no other")
    if request.code is not None and not 1 <= request.code <= UnknownNvmlError.code:
        raise ValueError(f"code {request.code}: an error of NVML is 1 to {UnknownNvmlError.code}")
    return cards.break_card(request.card, fault=request.fault, xid=request.xid, code=request.code)


def _use_memory(cards: LabCards, request: _UseMemory) -> str:
    return cards.use_memory(request.namespace, request.pod, read_size(request.size))


def read_size(text: str) -> int:
    """Returns bytes.

    Raises:
        ValueError: the text is no quantity of memory.
    """
    try:
        size = integer_value(text)
    except ValueError as error:
        raise ValueError(f"size: {error}; a size is e.g. 12Gi") from error
    if size < 0:
        raise ValueError(f"size {text!r}: it must not be negative")
    return size


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
