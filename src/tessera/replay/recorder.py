"""Deciders, and the recorder that keeps their last decisions: inputs and outputs, after the state before the first.

A decider takes events in at one entry and gives instructions out; it does no I/O and has no clock.

A recorder keeps between N and 2 N decisions: after each N it writes down the decider's whole state and forgets the
decisions before the last such moment, so a record always begins at a known state. Writing the state of a large cluster
takes time, so recording is off by default.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Generic, ParamSpec, TypeVar

import msgspec

from tessera.replay.state_codec import encode

P = ParamSpec("P")
R = TypeVar("R")


class Decision(msgspec.Struct, frozen=True):
    """One decision, in the form of :func:`.encode`.

    Attributes:
        arguments: what went in: those by position, then those by name.
        result: what came out.
        error: the class of the exception that it raised, if it did.
    """

    arguments: Any
    result: Any = None
    error: str = ""


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """What a recorder has kept.

    Attributes:
        decider: the decider's kind, a key of :data:`tessera.replay.player.DECIDERS`.
        name: which one of its kind: a card's UUID; empty where a process has one.
        state: before the first decision, see :func:`.encode`.
        decisions: in order.
        skipped: decisions before the first, which were forgotten.
    """

    decider: str
    name: str = ""
    state: Any
    decisions: Sequence[Decision]
    skipped: int = 0


class Recorder:
    """Lets a decider decide, and keeps what went in and came out.

    Args:
        kind: the decider's kind.
        decider: whose state is written down; None for a decider that is a function.
        keep: decisions to keep at least, 1 or more.
        name: which one of its kind.
    """

    def __init__(self, kind: str, decider: object, *, keep: int, name: str = "") -> None:
        self._kind, self._name, self._keep = kind, name, keep
        self._decider = decider
        #: Decisions so far.
        self._count = 0
        #: The decider's state at the last moment at which it was written down, and the decisions since.
        self._state: Any = encode(decider, shared=True)
        self._decisions: list[Decision] = []
        #: The same of the moment before that one, if there was one.
        self._earlier: tuple[Any, list[Decision]] | None = None

    def call(self, decide: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
        """Decides.

        Args:
            decide: the decider's own function.
            args: its arguments, plain data.
            kwargs: those by name.
        """
        if len(self._decisions) >= self._keep:
            self._earlier = self._state, self._decisions
            self._state, self._decisions = encode(self._decider, shared=True), []
        given = encode((args, kwargs))
        self._count += 1
        try:
            result = decide(*args, **kwargs)
        except BaseException as error:
            self._decisions.append(Decision(given, error=type(error).__name__))
            raise
        self._decisions.append(Decision(given, encode(result)))
        return result

    def record(self) -> Record:
        """What is kept."""
        state, before = (self._state, []) if self._earlier is None else self._earlier
        kept = [*before, *self._decisions]
        skipped = self._count - len(kept)
        return Record(decider=self._kind, name=self._name, state=state, decisions=kept, skipped=skipped)


Result = TypeVar("Result")


class Decider(ABC, Generic[P, Result]):
    """A state machine whose decisions can be recorded and replayed.

    Its state is plain data; what goes in (an event, and the time where it matters) and what comes out are values.
    Executors call :meth:`handle`; a decider implements :meth:`decide`.
    """

    #: Attributes that are no part of the state.
    TRANSIENT: ClassVar[tuple[str, ...]] = ("recorder",)
    #: Keeps what goes in and comes out; None while nothing is recorded.
    recorder: Recorder | None = None

    def handle(self, *args: P.args, **kwargs: P.kwargs) -> Result:
        """Takes in one event; arguments and result are those of :meth:`decide`."""
        if self.recorder is None:
            return self.react(*args, **kwargs)
        return self.recorder.call(self.react, *args, **kwargs)

    @abstractmethod
    def react(self, *args: P.args, **kwargs: P.kwargs) -> Result:
        """What to do now."""
