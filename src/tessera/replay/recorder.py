"""Keeps the last calls of a decider: what went in and what came out, after the state before the first of them.

A recorder that is off costs one comparison a call. One that is on keeps between N and 2 N calls: after each N it
writes down the decider's whole state and forgets the calls before the last such moment, so a record always begins at a
known state. Writing the state of a large cluster takes time (``bench/replay.py``); that is why it is off by default.
"""

from collections.abc import Callable, Sequence
from typing import Any, ParamSpec, TypeVar

import msgspec

from tessera.replay.state_codec import encode

P = ParamSpec("P")
T = TypeVar("T")


class Call(msgspec.Struct, frozen=True):
    """One call of a decider.

    Attributes:
        method: its name.
        arguments: those by position, see :func:`.encode`.
        named: those by keyword.
        result: what came back.
        error: the class of the exception that it raised, if it did.
    """

    method: str
    arguments: Any
    named: Any
    result: Any = None
    error: str = ""


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """What a recorder has kept.

    Attributes:
        decider: the decider's kind, a key of :data:`tessera.replay.deciders.DECIDERS`.
        name: which one of its kind: a card's UUID; empty where a process has one.
        state: before the first call, see :func:`.encode`.
        calls: in order.
        skipped: calls before the first that were forgotten.
    """

    decider: str
    name: str = ""
    state: Any
    calls: Sequence[Call]
    skipped: int = 0


class Recorder:
    """Calls a decider and keeps what went in and came out.

    Args:
        kind: the decider's kind.
        decider: the decider.
        keep: calls to keep at least; 0 keeps nothing.
        name: which one of its kind.
    """

    def __init__(self, kind: str, decider: object, *, keep: int = 0, name: str = "") -> None:
        self._kind, self._name, self._keep = kind, name, keep
        self._decider = decider
        #: Calls so far.
        self._count = 0
        #: The decider's state at the last moment at which it was written down, and the calls since.
        self._state: Any = encode(decider, shared=True) if keep else None
        self._calls: list[Call] = []
        #: The same of the moment before that one, if there was one.
        self._earlier: tuple[Any, list[Call]] | None = None

    def call(self, method: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Calls a method of the decider.

        Args:
            method: a bound method of it.
            args: its arguments, plain data.
            kwargs: named ones.
        """
        if not self._keep:
            return method(*args, **kwargs)
        if len(self._calls) >= self._keep:
            self._earlier = self._state, self._calls
            self._state, self._calls = encode(self._decider, shared=True), []
        given = encode(args), encode(kwargs)
        self._count += 1
        try:
            result = method(*args, **kwargs)
        except BaseException as error:
            self._calls.append(Call(method.__name__, *given, error=type(error).__name__))
            raise
        self._calls.append(Call(method.__name__, *given, encode(result)))
        return result

    def record(self) -> Record | None:
        """What is kept; None where nothing is."""
        if not self._keep:
            return None
        state, calls = (self._state, []) if self._earlier is None else self._earlier
        kept = [*calls, *self._calls]
        return Record(decider=self._kind, name=self._name, state=state, calls=kept, skipped=self._count - len(kept))
