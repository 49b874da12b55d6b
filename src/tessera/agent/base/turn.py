"""The turn of an agent on its node: one agent at a time acts there, and hands over to the next without a gap.

During an update with ``maxSurge`` the agents of two versions run side by side for some seconds. Rules:

1. Only the holder of the lock on ``agent.lock`` changes cards, files and API objects. The kernel frees the lock when
   its process ends, however it ends.
2. The holder listens on ``agent.sock``. A successor connects, and waits until the connection says that the turn is over
   or ends: so it learns at once of a predecessor that was killed.
3. A predecessor that is told to end frees the lock, says so, and goes on with its last device lists, as long as the
   connection is open and not longer than :data:`HANDOVER_TIMEOUT`. The successor closes it once kubelet has its lists.
4. When Tessera leaves the node, nothing is handed over: the predecessor makes its lists empty, and the successor waits
   for its end. The last of them removes the lock and the socket.

The folder is one of the host, for root only: agents in two pods meet there, and no tenant. Versions of the agent speak
with each other here, so the one message never changes.
"""

import asyncio
import fcntl
import logging
import os
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tessera.clock import Clock

#: Seconds that a predecessor waits for its successor's lists. It is shorter than ``terminationGracePeriodSeconds``.
HANDOVER_TIMEOUT = 8.0
#: Seconds before a lock is tried again whose holder does not listen: it has just begun, or is about to end.
RETRY = 0.1
#: Seconds after which the lock is tried although the predecessor is silent: its end may not have closed the connection.
LOCK_RECHECK = 10.0
LOCK, SOCKET = "agent.lock", "agent.sock"
#: What the predecessor says.
_OVER = b"over\n"

_log = logging.getLogger(__name__)


class NodeTurn:
    """The turn of this agent.

    Args:
        folder: the agent's state folder on the host.
        clock: for pauses.
        on_met: called once the turn is this agent's, or its predecessor knows that it waits.

    Attributes:
        waiting: true while another agent has the turn.
    """

    def __init__(self, folder: Path, clock: Clock, on_met: Callable[[], None] = lambda: None) -> None:
        self._folder = folder
        self._clock = clock
        self._on_met = on_met
        self.waiting = False
        #: The file whose lock this agent holds.
        self._lock: int | None = None
        self._server: asyncio.Server | None = None
        #: Connections of successors that wait.
        self._successors: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []
        #: The connection to a predecessor that still serves its lists.
        self._predecessor: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        #: True if the connection is still open, and nothing was said on it for :data:`LOCK_RECHECK`.
        self._silent = False

    @property
    def has_successor(self) -> bool:
        """True if another agent waits for the turn."""
        return any(not reader.at_eof() for reader, _ in self._successors)

    def is_taken(self) -> bool:
        """True if another agent has the turn now."""
        if not self._folder.is_dir():
            return False
        if self._try_lock():
            self._free()
            return False
        return True

    async def take(self) -> None:
        """Returns once this agent has the turn.

        Raises:
            OSError: the folder cannot be written.
        """
        self._folder.mkdir(parents=True, exist_ok=True)
        while not self._try_lock():
            await self._wait_for_predecessor()
        self.waiting = False
        self._server = await self._listen()
        self._on_met()

    def note_serving(self) -> None:
        """Lets the predecessor end: kubelet has this agent's lists."""
        if self._predecessor is not None:
            self._predecessor[1].close()
            self._predecessor = None

    async def outlive(self) -> None:
        """Returns once no predecessor serves kubelet any more, or it takes too long."""
        if self._predecessor is not None:
            with suppress(TimeoutError, ConnectionError):
                async with asyncio.timeout(HANDOVER_TIMEOUT):
                    await self._predecessor[0].read()
            self.note_serving()

    async def hand_over(self) -> None:
        """Gives the turn to the successor; returns when it serves kubelet, has ended, or takes too long."""
        self._free()
        reader, writer = next(each for each in self._successors if not each[0].at_eof())
        writer.write(_OVER)
        with suppress(TimeoutError, ConnectionError):
            async with asyncio.timeout(HANDOVER_TIMEOUT):
                await reader.read()

    def end(self, *, leaves: bool = False) -> None:
        """Frees the turn.

        Args:
            leaves: true if Tessera leaves the node, so that no file stays.
        """
        self._free()
        if leaves:
            for name in (LOCK, SOCKET):
                (self._folder / name).unlink(missing_ok=True)
        self.note_serving()
        for _, writer in self._successors:
            writer.close()

    def _free(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def _try_lock(self) -> bool:
        descriptor = os.open(self._folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return False
        self._lock = descriptor
        return True

    async def _wait_for_predecessor(self) -> None:
        if not self._silent or self._predecessor is None:
            self.note_serving()
            try:
                with _short_path(self._folder) as path:
                    self._predecessor = await asyncio.open_unix_connection(path)
            except OSError:
                await self._clock.sleep(RETRY)
                return
        reader, self._silent = self._predecessor[0], False
        if not self.waiting:
            _log.info("another agent acts on this node, this one waits for its turn: %s", self._folder / LOCK)
        self.waiting = True
        self._on_met()
        try:
            async with asyncio.timeout(LOCK_RECHECK):
                word = await reader.readline()
            if word != _OVER:
                await self._clock.sleep(RETRY)
        except TimeoutError:
            self._silent = True
        except ConnectionError:
            await self._clock.sleep(RETRY)

    async def _listen(self) -> asyncio.Server:
        with _short_path(self._folder) as path, suppress(FileNotFoundError):
            os.unlink(path)  # noqa: PTH108 - a path below /proc
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        with _short_path(self._folder) as path:
            listener.bind(path)
        (self._folder / SOCKET).chmod(0o600)
        return await asyncio.start_unix_server(self._meet, sock=listener)

    async def _meet(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._server is None:  # it came while the turn was given on
            writer.close()
        else:
            self._successors.append((reader, writer))


@contextmanager
def _short_path(folder: Path) -> Iterator[str]:
    """A path of the socket that fits: one of a socket may have 107 bytes."""
    descriptor = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{descriptor}/{SOCKET}"
    finally:
        os.close(descriptor)
