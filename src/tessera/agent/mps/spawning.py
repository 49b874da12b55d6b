"""Who starts the process of a control daemon: the agent itself, or the node's MPS host.

A container runtime ends every process of a container with it. So a daemon that shall outlive the agent's container
belongs to another one: the MPS host, a pod that does nothing but start processes for the agent, and that an update
leaves alone. Both are in the host's PID namespace, so the agent watches, signals and ends the process as one of its
own.

The agent decides what runs: it sends command line and environment, and the open files for input and output. So a host
of an older version starts what a newer agent needs. The message has a version; the host refuses one that it does not
know.

The MPS host has no settings, no state and no access to the API server. It takes one request after the other on a socket
for root only, in a folder that no container of a tenant sees. Its children are daemons that the agent knows by PID and
start time; the host only collects their ends. An agent that starts anew, of whatever version, finds them.

When the host itself ends, the runtime ends its daemons too: their clients lose their work, and the agent starts new
daemons in the next host.
"""

import asyncio
import logging
import os
import signal
import socket
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import Protocol

import msgspec

from tessera.agent.mps.state import LaunchFailed

#: Version of :class:`SpawnRequest`; a new one only if an older host would do something wrong.
SPAWN_VERSION = 1
#: Bytes of a message: command line and environment of a daemon with 16 cards have less than two thousand.
MESSAGE_SIZE = 64 * 1024
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
        if len(request) > MESSAGE_SIZE:
            raise LaunchFailed(
                f"a process of {argv[0]} needs a message of {len(request)} bytes; it may have at most {MESSAGE_SIZE:,}"
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
                return msgspec.json.decode(connection.recv(MESSAGE_SIZE), type=SpawnAnswer)
        except (OSError, ValueError) as error:
            raise LaunchFailed(f"the node's MPS host does not answer at {self._path}: {error}; {_LOOK}") from error


_log = logging.getLogger(__name__)

_FILES = 2


class MpsHost:
    """The MPS host: starts processes on request.

    Args:
        path: the socket; one that is left there is replaced.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._children: set[int] = set()

    def serve(self) -> None:
        """Answers requests until SIGTERM or SIGINT; then ends the daemons.

        Raises:
            OSError: the socket cannot be made.
        """
        signal.signal(signal.SIGCHLD, self._collect)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, _stop)
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._path.unlink(missing_ok=True)
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
            before = os.umask(0o177)
            try:
                listener.bind(os.fspath(self._path))
            finally:
                os.umask(before)
            listener.listen()
            _log.info("serving %s", self._path)
            try:
                while True:
                    connection, _ = listener.accept()
                    with connection:
                        self._answer(connection)
            except _Stopped:
                _log.info("ending, and %d daemons with it", len(self._children))
            finally:
                self._path.unlink(missing_ok=True)
                self._end_children()

    def _answer(self, connection: socket.socket) -> None:
        connection.settimeout(ANSWER_TIMEOUT)
        files: list[int] = []
        try:
            text, files, _, _ = socket.recv_fds(connection, MESSAGE_SIZE, _FILES)
            if text:
                connection.send(msgspec.json.encode(self._start(text, files)))
        except OSError as error:
            _log.warning("an agent went away before its answer: %s", error)
        finally:
            for each in files:
                os.close(each)

    def _start(self, text: bytes, files: list[int]) -> SpawnAnswer:
        try:
            request = msgspec.json.decode(text, type=SpawnRequest)
        except (ValueError, RecursionError) as error:
            return SpawnAnswer(error=f"the request cannot be read: {error}")
        if request.version > SPAWN_VERSION:
            return SpawnAnswer(
                error=f"the request has version {request.version}, this host knows versions up to {SPAWN_VERSION}; its"
                " pod is of an older version of Tessera: delete the pod tessera-mps of this node when no MPS client"
                " runs there, and the DaemonSet starts the newer one"
            )
        if not request.argv or len(files) != _FILES:
            return SpawnAnswer(error="the request has no command, or not the two files for input and output")
        try:
            pid = start_process(request.argv, request.env, *files)
        except (OSError, ValueError) as error:  # a NUL in a text is a ValueError
            return SpawnAnswer(error=f"{request.argv[0]}: {error}")
        self._children.add(pid)
        _log.info("started process %d: %s", pid, request.argv[-1])
        return SpawnAnswer(pid=pid)

    def _collect(self, _number: int, _frame: FrameType | None) -> None:
        """Collects the ends of children, so that none stays as a zombie."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if not pid:
                return
            self._children.discard(pid)
            _log.info("process %d ended: status %d", pid, os.waitstatus_to_exitcode(status))

    def _end_children(self) -> None:
        for pid in list(self._children):
            try:
                os.killpg(pid, signal.SIGTERM)
            except ProcessLookupError:
                continue


class _Stopped(BaseException):
    """A signal asks for the end."""


def _stop(_number: int, _frame: FrameType | None) -> None:
    raise _Stopped
