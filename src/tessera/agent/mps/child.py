"""One control daemon that runs as a process: watched, asked and ended. Its process may be nobody's child here."""

import asyncio
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path

from tessera.agent.base.processes import ProcessId
from tessera.agent.mps.control import QUIT
from tessera.agent.mps.launcher import ControlFailed, DaemonMark, LaunchFailed
from tessera.agent.mps.sessions import members, reap, send, wait_end

#: How long a daemon may take to end after each of: quit, SIGTERM, SIGKILL; seconds.
END_TIMEOUT = 5.0


class ChildDaemon:
    """A daemon that runs as a process.

    Args:
        process: the daemon.
        mark: what it is found again by.
        control: sends it a command.
        output: the file with what it said.
        end_timeout: how long it may take to end after each of quit, SIGTERM and SIGKILL, seconds.
    """

    def __init__(
        self,
        process: ProcessId,
        mark: DaemonMark,
        *,
        control: Callable[[str], Awaitable[str]],
        output: Path,
        end_timeout: float = END_TIMEOUT,
    ) -> None:
        self._process = process
        self._mark = mark
        self._control = control
        self._output = output
        self._end_timeout = end_timeout

    @property
    def mark(self) -> DaemonMark:
        """What it is found again by."""
        return self._mark

    @property
    def pid(self) -> int:
        """Its PID."""
        return self._process.pid

    async def ended(self) -> str:
        """Returns once it has ended."""
        await wait_end(self._process)
        how = reap(self.pid) or f"process {self.pid} is gone"
        last = _last_line(self._output)
        return f"{how}, after it said: {last}" if last else how

    async def control(self, command: str) -> str:
        """The answer to one control command.

        Raises:
            ControlFailed: it was refused or not answered in time.
        """
        return await self._control(command)

    async def end(self) -> None:
        """Ends the daemon and what is in its session.

        Raises:
            LaunchFailed: it is still there after SIGKILL.
            OSError: a signal is not allowed.
        """
        await self._quit()
        if not await self._has_ended():
            send(self._process, signal.SIGTERM)
            if not await self._has_ended():
                send(self._process, signal.SIGKILL)
                if not await self._has_ended():
                    raise LaunchFailed(f"MPS daemon, process {self.pid}, outlives SIGKILL: the driver holds it")
        reap(self.pid)
        await end_session(self._process)

    async def _quit(self) -> None:
        try:
            await self._control(QUIT)
        except ControlFailed:
            return

    async def _has_ended(self) -> bool:
        try:
            async with asyncio.timeout(self._end_timeout):
                await wait_end(self._process)
        except TimeoutError:
            return False
        return True


async def end_session(leader: ProcessId) -> None:
    """Ends what is left of a daemon's session with SIGKILL."""
    for process in members(leader):
        send(process, signal.SIGKILL)
        await wait_end(process)


def _last_line(output: Path) -> str:
    try:
        lines = output.read_text(encoding="utf-8", errors="replace").split("\n")
    except OSError:
        return ""
    return next((line.strip() for line in reversed(lines) if line.strip()), "")
