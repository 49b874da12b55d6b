"""Watches, controls and ends a control daemon as a process, and the session that it leaves behind.

The process may not be a child of this one, since an earlier agent may have started it. A daemon is started as the
leader of a session of its own, and the servers that it forks are in that session. A session's number is the leader's
PID, which the kernel gives to no other process while a member lives. So the members are the processes of a session
whose leader is the daemon, or has ended.
"""

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path

from tessera.agent.base.processes import ProcessId, ProcessTable
from tessera.agent.mps.interfaces import QUIT, ControlFailed, DaemonId, LaunchFailed

#: Fields of /proc/PID/stat after the name in brackets: state, parent, group, session (proc_pid_stat(5)).
_STATE, _SESSION = 0, 3
_ENDED_STATES = frozenset("ZX")


def boot_id(proc: Path = Path("/proc")) -> str:
    """The boot id of the machine; another one after each reboot."""
    return (proc / "sys/kernel/random/boot_id").read_text(encoding="ascii").strip()


def is_alive(process: ProcessId, proc: Path = Path("/proc")) -> bool:
    """True if the process has not ended. A zombie has ended."""
    fields = _fields(proc, process.pid)
    return bool(fields) and fields[_STATE] not in _ENDED_STATES and ProcessTable(proc).identify(process.pid) == process


def session_members(leader: ProcessId, proc: Path = Path("/proc")) -> list[ProcessId]:
    """The live processes of a session besides its leader; none if the number belongs to another session by now."""
    table = ProcessTable(proc)
    if table.identify(leader.pid) not in {None, leader}:
        return []
    found = []
    for entry in proc.iterdir():
        if not entry.name.isdigit() or int(entry.name) == leader.pid:
            continue
        fields = _fields(proc, int(entry.name))
        if fields and int(fields[_SESSION]) == leader.pid and fields[_STATE] not in _ENDED_STATES:
            process = table.identify(int(entry.name))
            if process is not None and process.start >= leader.start:
                found.append(process)
    return found


def _fields(proc: Path, pid: int) -> list[str]:
    try:
        text = (proc / str(pid) / "stat").read_text(encoding="utf-8", errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return []
    return text.rpartition(")")[2].split()


def send(process: ProcessId, number: signal.Signals) -> None:
    """Sends a signal to the process, unless it has ended.

    Raises:
        OSError: the signal is not allowed.
    """
    with ProcessTable().open(process) as held:
        if held is not None:
            held.send(number)


async def wait_end(process: ProcessId) -> None:
    """Returns once the process has ended. A child of this process is not reaped."""
    try:
        descriptor = os.pidfd_open(process.pid)
    except ProcessLookupError:
        return
    loop = asyncio.get_running_loop()
    over = asyncio.Event()
    try:
        if ProcessTable().identify(process.pid) != process:
            return
        loop.add_reader(descriptor, over.set)
        await over.wait()
    finally:
        loop.remove_reader(descriptor)
        os.close(descriptor)


def reap(pid: int) -> str:
    """Describes the end of a child of this process; empty if it is no child, or was reaped already."""
    try:
        result = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG)
    except ChildProcessError:
        return ""
    if result is None:
        return ""
    if result.si_code == os.CLD_EXITED:
        return f"exit status {result.si_status}"
    return f"signal {signal.Signals(result.si_status).name}"


#: Seconds that a daemon may take to end after each of: quit, SIGTERM, SIGKILL.
END_TIMEOUT = 5.0


class DaemonProcess:
    """A daemon that runs as a process.

    Args:
        process: the daemon.
        id: identifies the daemon.
        control: sends it a command.
        output: the file with its output.
        end_timeout: seconds that it may take to end after each of quit, SIGTERM and SIGKILL.
    """

    def __init__(
        self,
        process: ProcessId,
        mark: DaemonId,
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
    def id(self) -> DaemonId:
        """Identifies the daemon."""
        return self._mark

    @property
    def pid(self) -> int:
        """Its PID."""
        return self._process.pid

    async def wait_ended(self) -> str:
        """Returns once it has ended."""
        await wait_end(self._process)
        how = reap(self.pid) or f"process {self.pid} is gone"
        last = _last_line(self._output)
        return f"{how}, its last output: {last}" if last else how

    async def control(self, command: str) -> str:
        """The answer to one control command.

        Raises:
            ControlFailed: the daemon refused the command or did not answer in time.
        """
        return await self._control(command)

    async def end(self) -> None:
        """Ends the daemon and the other processes of its session.

        Raises:
            LaunchFailed: the daemon still runs after SIGKILL.
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
    """Ends the rest of a daemon's session with SIGKILL."""
    for process in session_members(leader):
        send(process, signal.SIGKILL)
        await wait_end(process)


def _last_line(output: Path) -> str:
    try:
        lines = output.read_text(encoding="utf-8", errors="replace").split("\n")
    except OSError:
        return ""
    return next((line.strip() for line in reversed(lines) if line.strip()), "")
