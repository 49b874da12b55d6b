"""Serves the records of a process to a command in the same container.

A process that records listens on a Unix socket in the abstract namespace, which only its own network namespace (its
pod) reaches, and answers only its own user. ``tessera debug record`` connects through ``kubectl exec``, so it needs the
right to run commands in Tessera's pods.
"""

import asyncio
import os
import socket
import struct
from collections.abc import Callable, Iterator, Sequence
from typing import Any, ParamSpec, TypeVar

import msgspec

from tessera.limits.processes import RECORD_SIZE
from tessera.replay.recorder import FORMAT_VERSION, Decider, FunctionRecorder, Record, Recorder

#: The message of a process without records, with the remedy.
NO_RECORDS = (
    "the process in this container keeps no records; turn recording on, such as: kubectl -n tessera-system set env"
    " deployment/tessera-controller TESSERA_RECORD=2000 (for agents: daemonset/tessera-agent)"
)

P = ParamSpec("P")
R = TypeVar("R")

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
        """Records a decider from now on; it replaces an earlier one of the same kind and name."""
        if self.keep:
            decider.recorder = Recorder(kind, decider, keep=self.keep, name=name)
            self._recorders[kind, name] = decider.recorder

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
