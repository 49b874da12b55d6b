"""The MPS host of a node: starts control daemons for the agent, so that they do not end with the agent's container.

It has no settings, no state and no access to the API server. It takes one request after the other
(:mod:`tessera.agent.mps.spawning`) on a socket for root only, in a folder that no container of a tenant sees. Its
children are daemons that the agent knows by PID and start time; the host only collects their ends. An agent that starts
anew, of whatever version, finds them.

When the host itself ends, the runtime ends its daemons too: their clients lose their work, and the agent starts new
daemons in the next host.
"""

import logging
import os
import signal
import socket
from pathlib import Path
from types import FrameType

import msgspec

from tessera.agent.mps.spawning import ANSWER_TIMEOUT, SPAWN_VERSION, SpawnAnswer, SpawnRequest, start_process
from tessera.limits.processes import SPAWN_REQUEST

_log = logging.getLogger(__name__)

_FILES = 2


class MpsHost:
    """Starts processes on request.

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
            text, files, _, _ = socket.recv_fds(connection, int(SPAWN_REQUEST), _FILES)
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
