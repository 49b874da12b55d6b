"""Deciders, and the recorder of their last decisions: a state, and the inputs and outputs that followed.

A decider takes events in at one entry and gives instructions out; it does no I/O and has no clock.

A recorder keeps between N and 2 N decisions: after each N it stores the decider's whole state and drops the decisions
before the previous stored state, so a record always begins at a known state. Storing the state of a large cluster takes
time (``bench/replay.py``), so recording is off by default.

A decider that is a function has no state: its argument holds everything that it depends on, for instance all nodes.
Its recorder keeps the last N decisions, and fewer if they are large.
"""

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from typing import Annotated, Any, ClassVar, Generic, ParamSpec, TypeVar

import msgspec

from tessera.replay.state_codec import encode

#: Bytes of JSON that the recorder of one function keeps: 500 plans of five nodes, 3 of a thousand nodes.
FUNCTION_RECORD_BYTES = 16 * 2**20

#: Version of the format of records that this version of Tessera writes, and the newest that it reads.
FORMAT_VERSION = 1

P = ParamSpec("P")
R = TypeVar("R")


class Decision(msgspec.Struct, frozen=True):
    """One decision, in the form of :func:`.encode`.

    Attributes:
        arguments: the arguments by position, then those by name.
        result: the returned value.
        error: the class of the raised exception; empty if it returned.
    """

    arguments: Any
    result: Any = None
    error: str = ""


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """The last decisions of one decider.

    Attributes:
        decider: the decider's kind, a key of :data:`tessera.observe.record_player.DECIDERS`.
        name: distinguishes deciders of one kind: a card's UUID; empty if a process has one of the kind.
        state: the state before the first decision, see :func:`.encode`.
        decisions: the decisions in order.
        skipped: number of earlier decisions, which were dropped.
        version: version of this format; a record without it has version 1.
    """

    decider: str
    name: str = ""
    state: Any
    decisions: Sequence[Decision]
    skipped: Annotated[int, msgspec.Meta(ge=0)] = 0
    version: int = FORMAT_VERSION


class Recorder:
    """Calls a decider, and keeps its arguments and results.

    Args:
        kind: the decider's kind.
        decider: the decider whose state is stored.
        keep: decisions to keep at least, 1 or more.
        name: distinguishes deciders of one kind.
    """

    def __init__(self, kind: str, decider: object, *, keep: int, name: str = "") -> None:
        self._kind, self._name, self._keep = kind, name, keep
        self._decider = decider
        #: Number of decisions so far.
        self._count = 0
        #: The last stored state of the decider, and the decisions since, at most ``keep``.
        self._state: Any = encode(decider, shared=True)
        self._decisions: list[Decision] = []
        #: The stored state before that one, and the ``keep`` decisions between the two; None before the second.
        self._earlier: tuple[Any, list[Decision]] | None = None

    def call(self, decide: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
        """Calls a function of the decider, and records the call.

        Args:
            decide: the decider's own function.
            args: its arguments, plain data.
            kwargs: its arguments by name.
        """
        if len(self._decisions) >= self._keep:
            self._earlier = self._state, self._decisions
            self._state, self._decisions = encode(self._decider, shared=True), []
        arguments = encode((args, kwargs))
        self._count += 1
        try:
            result = decide(*args, **kwargs)
        except BaseException as error:
            self._decisions.append(Decision(arguments, error=type(error).__name__))
            raise
        self._decisions.append(Decision(arguments, encode(result)))
        return result

    def record(self) -> Record:
        """Returns the kept decisions, and the state before them."""
        state, before = (self._state, []) if self._earlier is None else self._earlier
        kept = [*before, *self._decisions]
        skipped = self._count - len(kept)
        return Record(decider=self._kind, name=self._name, state=state, decisions=kept, skipped=skipped)


class FunctionRecorder:
    """Calls a decider that is a function, and keeps the last calls.

    Args:
        kind: the decider's kind.
        keep: decisions to keep at most.
        size: bytes of JSON to keep at most; the last decision is kept even if it is larger.
    """

    def __init__(self, kind: str, *, keep: int, size: int = FUNCTION_RECORD_BYTES) -> None:
        self._kind, self._keep, self._size = kind, keep, size
        #: Number of decisions so far.
        self._count = 0
        #: The last decisions as JSON, at most ``_keep``. Together they have at most ``_size`` bytes, unless it is one.
        self._decisions: deque[bytes] = deque()
        #: The sum of the lengths of ``_decisions``.
        self._bytes = 0

    def call(self, decide: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
        """Calls the function, and records the call; see :meth:`Recorder.call`."""
        given = encode((args, kwargs), shared=True)
        try:
            result = decide(*args, **kwargs)
        except BaseException as error:
            self._add(Decision(given, error=type(error).__name__))
            raise
        self._add(Decision(given, encode(result)))
        return result

    def _add(self, decision: Decision) -> None:
        text = msgspec.json.encode(decision)
        self._count += 1
        self._decisions.append(text)
        self._bytes += len(text)
        while len(self._decisions) > self._keep or (self._bytes > self._size and len(self._decisions) > 1):
            self._bytes -= len(self._decisions.popleft())

    def record(self) -> Record:
        """Returns the kept decisions."""
        kept = [msgspec.json.decode(each, type=Decision) for each in self._decisions]
        return Record(decider=self._kind, state=None, decisions=kept, skipped=self._count - len(kept))


Result = TypeVar("Result")


class Decider(ABC, Generic[P, Result]):
    """A state machine whose decisions can be recorded and replayed.

    Its state, its arguments (an event, and the time if it matters) and its results are plain data. Executors call
    :meth:`handle`; a decider implements :meth:`react`.
    """

    #: Attributes that are no part of the state.
    TRANSIENT: ClassVar[tuple[str, ...]] = ("recorder",)
    #: Records each call; None while nothing is recorded.
    recorder: Recorder | None = None

    def handle(self, *args: P.args, **kwargs: P.kwargs) -> Result:
        """Handles one event; arguments and result are those of :meth:`react`."""
        if self.recorder is None:
            return self.react(*args, **kwargs)
        return self.recorder.call(self.react, *args, **kwargs)

    @abstractmethod
    def react(self, *args: P.args, **kwargs: P.kwargs) -> Result:
        """Changes the state, and returns the instructions that follow."""
