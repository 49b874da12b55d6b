"""Deciders, and the recorder of their last decisions: a state, and the inputs and outputs that followed.

A decider takes events in at one entry and gives instructions out; it does no I/O and has no clock.

A recorder keeps between N and 2 N decisions: after each N it stores the decider's whole state and drops the decisions
before the previous stored state, so a record always begins at a known state. Storing the state of a large cluster takes
time (``bench/replay.py``), so recording is off by default.

A decider that is a function has no state: its argument holds everything that it depends on, for instance all nodes.
Its recorder keeps the last N decisions, and fewer if they are large.

The records of a process are served to a command in the same container.

A process that records listens on a Unix socket in the abstract namespace, which only its own network namespace (its
pod) reaches, and answers only its own user. ``tessera debug record`` connects through ``kubectl exec``, so it needs the
right to run commands in Tessera's pods.
"""

import asyncio
import os
import socket
import struct
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Annotated, Any, ClassVar, Generic, ParamSpec, TypeVar

import msgspec

from tessera.limits import RECORD_SIZE
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

    Its state, its arguments (an event, and the time if it matters) and its results are plain data.
    """

    #: Attributes that are no part of the state. A decider that is recorded has a ``handle`` of its own, which records.
    TRANSIENT: ClassVar[tuple[str, ...]] = ("handle",)

    @abstractmethod
    def handle(self, *args: P.args, **kwargs: P.kwargs) -> Result:
        """Changes the state, and returns the instructions that follow."""


#: The message of a process without records, with the remedy.
NO_RECORDS = (
    "the process in this container keeps no records; turn recording on, such as: kubectl -n tessera-system set env"
    " deployment/tessera-controller TESSERA_RECORD=2000 (for agents: daemonset/tessera-agent)"
)


#: Name of the socket; a container has one such process.
SOCKET = "tessera-debug"
#: ``struct ucred`` of unix(7): process, user, group.
_PEER = struct.Struct("iII")


class Recorders:
    """The records of one process's deciders.

    Args:
        keep: decisions to keep of each decider at least; 0 turns recording off.
    """

    def __init__(self, keep: int = 0) -> None:
        self.keep = keep
        #: Recorders of state machines, by kind and name.
        self._recorders: dict[tuple[str, str], Recorder] = {}
        #: Recorders of functions, by kind.
        self._functions: dict[str, FunctionRecorder] = {}

    def attach(self, kind: str, decider: Decider[..., Any], name: str = "") -> None:
        """Records a decider from now on; it replaces an earlier one of the same kind and name.

        Calls of ``decider.handle`` are recorded; those of a bound ``handle`` that somebody took before are not.
        """
        if self.keep:
            recorder = self._recorders[kind, name] = Recorder(kind, decider, keep=self.keep, name=name)
            vars(decider)["handle"] = partial(recorder.call, partial(type(decider).handle, decider))

    def call(self, kind: str, decide: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
        """Calls a decider that is a function without state, and records the call."""
        if not self.keep:
            return decide(*args, **kwargs)
        recorder = self._functions.get(kind)
        if recorder is None:
            recorder = self._functions[kind] = FunctionRecorder(kind, keep=self.keep)
        return recorder.call(decide, *args, **kwargs)

    def forget(self, kind: str, name: str) -> None:
        """Drops the record of a decider that has ended."""
        self._recorders.pop((kind, name), None)

    def records(self) -> Iterator[Record]:
        """Yields the record of each decider."""
        recorders: list[Recorder | FunctionRecorder] = [*self._recorders.values(), *self._functions.values()]
        for each in recorders:
            yield each.record()


async def serve_records(recorders: Recorders, name: str = SOCKET) -> None:
    """Answers each connection with the records, one JSON document a line, until cancelled.

    Args:
        recorders: the recorders of this process; without recording, no socket is opened.
        name: the socket's name in the abstract namespace.

    Raises:
        OSError: another process of this network namespace has the name.
    """
    if not recorders.keep:
        return

    async def answer(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            if _peer_user(writer.get_extra_info("socket")) == os.getuid():
                for record in recorders.records():
                    writer.write(msgspec.json.encode(record) + b"\n")
                    await writer.drain()
        except ConnectionError:
            pass  # the reader is gone
        finally:
            writer.close()

    # uvloop refuses paths in the abstract namespace, so the sockets are made here.
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(f"\0{name}")
    server = await asyncio.start_unix_server(answer, sock=listener)
    async with server:
        await server.serve_forever()


def _peer_user(connection: socket.socket) -> int:
    """Returns the user at the other end, as the kernel reports it."""
    _, user, _ = _PEER.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size))
    return int(user)


async def fetch_records(name: str = SOCKET) -> bytes:
    """The records of the process in this network namespace, one JSON document a line.

    Raises:
        ConnectionRefusedError: no process records here.
    """
    connection = socket.socket(socket.AF_UNIX)
    try:
        connection.connect(f"\0{name}")
    except OSError:
        connection.close()
        raise
    reader, writer = await asyncio.open_unix_connection(sock=connection)
    try:
        return await reader.read(-1)
    finally:
        writer.close()


class _Header(msgspec.Struct):
    version: int = FORMAT_VERSION


def read_records(data: bytes) -> Sequence[Record]:
    """The records of a file.

    Raises:
        ValueError: a line is no record, or the file is too large.
    """
    if len(data) > RECORD_SIZE:
        raise ValueError(f"the file of records is too large ({RECORD_SIZE})")
    found = []
    for number, line in enumerate(data.splitlines(), 1):
        try:
            version = msgspec.json.decode(line, type=_Header).version
            if version > FORMAT_VERSION:
                raise ValueError(
                    f"line {number} has format {version}, and this version of Tessera reads up to {FORMAT_VERSION};"
                    " replay it with the version that recorded it"
                )
            found.append(msgspec.json.decode(line, type=Record))
        except (msgspec.DecodeError, RecursionError) as error:
            raise ValueError(f"line {number} is no record of a decider: {error}") from error
    return found
