"""Processes by session: what a daemon leaves behind when it dies, found and ended without mistaking anybody.

A daemon is started as the leader of a session of its own, and the servers that it forks are in it. A session's number
is the leader's PID, which the kernel gives to nobody else while a member lives. So members are those of a session whose
leader is the daemon, or is gone.
"""

import asyncio
import os
import signal
from pathlib import Path

from tessera.agent.base.processes import ProcessId, ProcessTable

#: In /proc/PID/stat what follows the name in brackets: state, parent, group, session (proc_pid_stat(5)).
_STATE, _SESSION = 0, 3
_ENDED_STATES = frozenset("ZX")


def boot_id(proc: Path = Path("/proc")) -> str:
    """Names the machine's current run; another one after each reboot."""
    return (proc / "sys/kernel/random/boot_id").read_text(encoding="ascii").strip()


def alive(process: ProcessId, proc: Path = Path("/proc")) -> bool:
    """Whether the process has not ended; one that only waits to be reaped has."""
    fields = _fields(proc, process.pid)
    return bool(fields) and fields[_STATE] not in _ENDED_STATES and ProcessTable(proc).identify(process.pid) == process


def members(leader: ProcessId, proc: Path = Path("/proc")) -> list[ProcessId]:
    """The processes of a session besides its leader that have not ended; none if the number is another session's."""
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
    """Sends a signal to the process, to nobody if it has ended.

    Raises:
        OSError: not allowed.
    """
    with ProcessTable().hold(process) as held:
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
    """How a child of this process ended; empty if it is none, or has been reaped already."""
    try:
        result = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG)
    except ChildProcessError:
        return ""
    if result is None:
        return ""
    if result.si_code == os.CLD_EXITED:
        return f"exit status {result.si_status}"
    return f"signal {signal.Signals(result.si_status).name}"
