"""The records of a process, handed to whoever runs a command beside it in its container.

A process that records listens on a Unix socket in the abstract namespace, which only its own network namespace (its
pod) reaches, and answers its own user only. ``tessera debug record`` gets there through ``kubectl exec``, so the API
server decides who may: whoever may run commands in Tessera's pods.
"""

import asyncio
import os
import socket
import struct
from collections.abc import Callable, Iterator, Sequence
from typing import Any, ParamSpec, TypeVar

import msgspec

from tessera.limits.processes import RECORD_SIZE
from tessera.replay.recorder import Decider, Record, Recorder

#: Why a process has no records to offer, and what to do.
NO_RECORDS = "the process in this container keeps no records; start it with --record N, or set TESSERA_RECORD=N"

P = ParamSpec("P")
R = TypeVar("R")

#: Where a process listens; a container has one.
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
        self._recorders: dict[tuple[str, str], Recorder] = {}

    def attach(self, kind: str, decider: Decider[..., Any], name: str = "") -> None:
        """Records a decider from now on; it takes the place of an earlier one of the same kind and name."""
        if self.keep:
            decider.recorder = Recorder(kind, decider, keep=self.keep, name=name)
            self._recorders[kind, name] = decider.recorder

    def call(self, kind: str, decide: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
        """Lets a function decide that has no state, and records it."""
        if not self.keep:
            return decide(*args, **kwargs)
        recorder = self._recorders.get((kind, ""))
        if recorder is None:
            recorder = self._recorders[kind, ""] = Recorder(kind, None, keep=self.keep)
        return recorder.call(decide, *args, **kwargs)

    def forget(self, kind: str, name: str) -> None:
        """Drops the record of a decider that is gone."""
        self._recorders.pop((kind, name), None)

    def records(self) -> Iterator[Record]:
        """What is kept of each decider."""
        for each in list(self._recorders.values()):
            yield each.record()


async def serve_records(recorders: Recorders, name: str = SOCKET) -> None:
    """Answers each connection with the records, one JSON document a line, until cancelled.

    Args:
        recorders: of this process; without recording nothing is opened.
        name: of the socket in the abstract namespace.

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
    """The user at the other end, as the kernel knows it."""
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
            found.append(msgspec.json.decode(line, type=Record))
        except msgspec.DecodeError as error:
            raise ValueError(f"line {number} is no record of a decider: {error}") from error
    return found
