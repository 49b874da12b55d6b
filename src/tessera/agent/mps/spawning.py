"""Who starts the process of a control daemon: the agent itself, or the node's MPS host.

A container runtime ends every process of a container with it. So a daemon that shall outlive the agent's container
belongs to another one: the MPS host, a pod that does nothing but start processes for the agent
(:mod:`tessera.agent.mps.host`), and that an update leaves alone. Both are in the host's PID namespace, so the agent
watches, signals and ends the process as one of its own.

The agent decides what runs: it sends command line and environment, and the open files for input and output. So a host
of an older version starts what a newer agent needs. The message has a version; the host refuses one that it does not
know.
"""

import asyncio
import os
import socket
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

import msgspec

from tessera.agent.mps.interfaces import LaunchFailed
from tessera.limits.processes import SPAWN_REQUEST

#: Version of :class:`SpawnRequest`; a new one only if an older host would do something wrong.
SPAWN_VERSION = 1
#: Seconds in which the host must answer.
ANSWER_TIMEOUT = 5.0

#: The remedy for an MPS host that does not answer.
_LOOK = "see: kubectl -n tessera-system get pods -l app.kubernetes.io/name=tessera-mps -o wide"


class SpawnRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A process to start, as the leader of a session of its own; standard input and output come as descriptors."""

    version: int = SPAWN_VERSION
    argv: tuple[str, ...]
    env: Mapping[str, str]


class SpawnAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The PID in the host's namespace, or the reason that there is no process."""

    pid: int = 0
    error: str = ""


class Spawner(Protocol):
    """Starts processes."""

    def find_obstacle(self) -> str:
        """The reason that nothing can be started now, with the next step; empty if it can."""
        ...

    async def spawn(self, argv: Sequence[str], env: Mapping[str, str], *, stdin: int, output: int) -> int:
        """Starts a process as the leader of a session, and returns its PID.

        Raises:
            LaunchFailed: it cannot be started.
        """
        ...


def start_process(argv: Sequence[str], env: Mapping[str, str], stdin: int, output: int) -> int:
    """Starts a child of this process as the leader of a session, and returns its PID.

    Raises:
        OSError: it cannot be started.
    """
    return os.posix_spawn(
        argv[0],
        list(argv),
        dict(env),
        file_actions=[
            (os.POSIX_SPAWN_DUP2, stdin, 0),
            (os.POSIX_SPAWN_DUP2, output, 1),
            (os.POSIX_SPAWN_DUP2, output, 2),
        ],
        setsid=True,
    )


class ChildSpawner:
    """Starts children of this process; they end with its container."""

    def find_obstacle(self) -> str:
        """There is none."""
        return ""

    async def spawn(self, argv: Sequence[str], env: Mapping[str, str], *, stdin: int, output: int) -> int:
        """See :meth:`Spawner.spawn`."""
        return start_process(argv, env, stdin, output)


class HostSpawner:
    """Starts processes through the node's MPS host.

    Args:
        path: the host's socket, as this process sees it.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def find_obstacle(self) -> str:
        """The reason that nothing can be started now, with the next step; empty if it can."""
        if self._path.exists():
            return ""
        return f"the node's MPS host does not run yet, {self._path} does not exist; {_LOOK}"

    async def spawn(self, argv: Sequence[str], env: Mapping[str, str], *, stdin: int, output: int) -> int:
        """See :meth:`Spawner.spawn`."""
        request = msgspec.json.encode(SpawnRequest(argv=tuple(argv), env=env))
        if len(request) > SPAWN_REQUEST:
            raise LaunchFailed(
                f"a process of {argv[0]} needs a message of {len(request)} bytes; it may have {SPAWN_REQUEST}"
            )
        answer = await asyncio.to_thread(self._ask, request, (stdin, output))
        if answer.error:
            raise LaunchFailed(f"the node's MPS host starts no process: {answer.error}")
        return answer.pid

    def _ask(self, request: bytes, files: Sequence[int]) -> SpawnAnswer:
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
                connection.settimeout(ANSWER_TIMEOUT)
                connection.connect(os.fspath(self._path))
                socket.send_fds(connection, [request], list(files))
                return msgspec.json.decode(connection.recv(int(SPAWN_REQUEST)), type=SpawnAnswer)
        except (OSError, ValueError) as error:
            raise LaunchFailed(f"the node's MPS host does not answer at {self._path}: {error}; {_LOOK}") from error
