"""Starts control daemons as processes: NVIDIA's ``nvidia-cuda-mps-control``, kept in the foreground.

The node's MPS host starts the process (:mod:`tessera.agent.mps.spawning`), or, without one, this agent.

These rules prevent that a daemon stays unknown or runs twice:

* The process is a shell that waits for a line before it becomes the daemon. The agent sends the line after it has
  recorded the daemon's id. If the agent dies in between, the shell's input ends, and the shell with it.
* An id is boot, PID and start time, so it can name no other process.
* If a daemon without a record answers in the pipe directory, the agent first makes it quit. The binary itself refuses
  to start beside another one of the same directory.

A daemon has a session and files of its own, so it goes on when the agent ends. The PID that the daemon writes into the
pipe directory is never read, since pods could write there.

Folders: every user can enter the pipe directory, only the daemon can write to it, and it opens its sockets to all users
itself. The directory is never removed, since containers have it mounted. The shared memory is like ``/dev/shm``: open
to all users, each file its owner's. The daemon and the containers must see the same one.

A :class:`DaemonProcess` watches, controls and ends one control daemon, and the session that it leaves behind.

The process may not be a child of this one, since an earlier agent may have started it. A daemon is started as the
leader of a session of its own, and the servers that it forks are in that session. A session's number is the leader's
PID, which the kernel gives to no other process while a member lives. So the members are the processes of a session
whose leader is the daemon, or has ended.
"""

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path

from tessera.agent.base.host import ProcessId, ProcessTable
from tessera.agent.mps.spawning import ChildSpawner, Spawner
from tessera.agent.mps.state import (
    LOG_VARIABLE,
    PIPE_VARIABLE,
    QUIT,
    ControlFailed,
    DaemonId,
    DaemonSpec,
    LaunchFailed,
    MpsPaths,
)

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

    Attributes:
        id: identifies the daemon.
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
        self.id = mark
        self._control = control
        self._output = output
        self._end_timeout = end_timeout

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


BINARY = "nvidia-cuda-mps-control"
#: Paths of the binary in a driver's root and on a host.
_FOLDERS = ("usr/bin", "usr/sbin", "bin", "sbin", "opt/bin")
#: Seconds that an answer to a command may take.
CONTROL_TIMEOUT = 5.0
#: File with the daemon's output, in its log folder.
_OUTPUT = "output.log"
#: Shell command that becomes the daemon once it reads a line, and ends when its input ends.
_SHELL = ("/bin/sh", "-c", 'read -r go && exec "$0" -f </dev/null')
#: Variables of the agent's own environment that a program of the driver may need.
_PASSED = ("PATH", "LD_LIBRARY_PATH")


def find_binary(driver_root: Path = Path("/"), search: str | None = None) -> Path | None:
    """The control binary: in ``search`` (a ``PATH``) first, then in the driver's root; ``None`` if there is none.

    Args:
        driver_root: root of the driver's files, as this process sees it.
        search: the environment's ``PATH`` unless given.
    """
    folders = [Path(each) for each in (os.environ.get("PATH", "") if search is None else search).split(":") if each]
    for folder in (*folders, *(driver_root / each for each in _FOLDERS)):
        if os.access(folder / BINARY, os.X_OK):
            return folder / BINARY
    return None


class ProcessLauncher:
    """Starts daemons as processes.

    Args:
        root: the MPS root as this process sees it.
        binary: the control binary; searched at each start if not given.
        driver_root: root of the driver's files, as this process sees it.
        shm: the shared memory of this process, which the daemons inherit.
        environment: environment of this process.
        spawner: starts the processes; children of this process unless given.
        control_timeout: seconds that an answer to a command may take.
        end_timeout: seconds that a daemon may take to end after each of quit, SIGTERM and SIGKILL.
    """

    def __init__(
        self,
        *,
        root: Path,
        binary: Path | None = None,
        driver_root: Path = Path("/"),
        shm: Path = Path("/dev/shm"),  # noqa: S108 - a mount point, not a temporary file
        environment: Mapping[str, str] | None = None,
        spawner: Spawner | None = None,
        control_timeout: float = CONTROL_TIMEOUT,
        end_timeout: float = END_TIMEOUT,
    ) -> None:
        self._paths = MpsPaths(root)
        self._binary = binary
        self._driver_root = driver_root
        self._shm = shm
        found = os.environ if environment is None else environment
        self._environment = {name: found[name] for name in _PASSED if name in found}
        self._control_timeout = control_timeout
        self._end_timeout = end_timeout
        self._table = ProcessTable()
        self._spawner = spawner or ChildSpawner()

    def find_obstacle(self) -> str:
        """The reason that no daemon can be started on this node, with the next step; empty if one can."""
        if self._find_binary() is None:
            return (
                f"{BINARY} is neither in PATH nor in the driver's root {self._driver_root}; it comes with the driver"
                " (capability `compute` of NVIDIA's container runtime, package nvidia-compute-utils)"
            )
        self._paths.shm.mkdir(parents=True, exist_ok=True)
        if not self._shm.exists() or not self._paths.shm.samefile(self._shm):
            return (
                f"{self._shm} is not {self._paths.shm}, which containers get as theirs; MPS needs the same for daemon"
                f" and clients: mount {self._paths.shm} at {self._shm} in the agent's container"
            )
        return self._spawner.find_obstacle()

    async def start(self, spec: DaemonSpec, note: Callable[[DaemonId], None]) -> DaemonProcess:
        """Starts a daemon.

        Raises:
            LaunchFailed: the daemon cannot be started.
            OSError: the folders or the id cannot be written.
        """
        binary = self._find_binary()
        if binary is None:
            raise LaunchFailed(self.find_obstacle())
        self._make_folders(spec.resource)
        process, word = await self._spawn(spec, binary)
        daemon = self._daemon(spec.resource, process)
        try:
            note(daemon.id)
            os.write(word, b"\n")
        except OSError:
            send(process, signal.SIGKILL)
            await daemon.wait_ended()
            raise
        finally:
            os.close(word)
        return daemon

    def find(self, resource: str, mark: DaemonId) -> DaemonProcess | None:
        """The daemon of that id; ``None`` if it has ended."""
        process = _parse(mark)
        return self._daemon(resource, process) if process is not None and is_alive(process) else None

    async def quit_unknown(self, resource: str) -> None:
        """Makes the daemon quit that answers in a resource's pipe directory, if there is one."""
        if (self._paths.pipe(resource) / "control").exists():
            try:
                await self._control(resource, QUIT)
            except ControlFailed:  # no answer: a daemon that has ended left the socket
                return

    async def end_leftovers(self, mark: DaemonId) -> None:
        """Ends the servers that a daemon left behind.

        Raises:
            OSError: a signal is not allowed.
        """
        process = _parse(mark)
        if process is not None and not is_alive(process):
            reap(process.pid)
            await end_session(process)

    def _find_binary(self) -> Path | None:
        return self._binary or find_binary(self._driver_root, self._environment.get("PATH", ""))

    def _make_folders(self, resource: str) -> None:
        for folder in (self._paths.pipe(resource), self._paths.log(resource)):
            folder.mkdir(mode=0o755, parents=True, exist_ok=True)
        self._paths.shm.mkdir(parents=True, exist_ok=True)
        self._paths.shm.chmod(0o1777)
        label_for_containers(self._paths.shm)
        label_for_containers(self._paths.pipe(resource))

    async def _spawn(self, spec: DaemonSpec, binary: Path) -> tuple[ProcessId, int]:
        """Starts the shell that waits; returns it and the pipe for its line.

        If this process is killed meanwhile, the pipe ends, and the shell with it.
        """
        output = os.open(self._output(spec.resource), os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
        awaited, word = os.pipe()
        environment = {**self._variables(spec.resource), "CUDA_VISIBLE_DEVICES": ",".join(spec.cards)}
        try:
            pid = await self._spawner.spawn((*_SHELL, str(binary)), environment, stdin=awaited, output=output)
            process = self._identify(spec.resource, pid)
        except BaseException:
            os.close(word)
            raise
        finally:
            os.close(awaited)
            os.close(output)
        return process, word

    def _identify(self, resource: str, pid: int) -> ProcessId:
        process = self._table.identify(pid)
        if process is None:  # a child, or one of the host, has its PID until it is collected
            raise LaunchFailed(
                f"the MPS daemon of {resource}, process {pid}, has ended already, or is not to be seen from here: agent"
                " and MPS host need the host's processes, hostPID: true in both pods"
            )
        return process

    def _daemon(self, resource: str, process: ProcessId) -> DaemonProcess:
        mark = DaemonId(f"{boot_id()}/{process.pid}/{process.start}")
        return DaemonProcess(
            process,
            mark,
            control=lambda command: self._control(resource, command),
            output=self._output(resource),
            end_timeout=self._end_timeout,
        )

    async def _control(self, resource: str, command: str) -> str:
        binary = self._find_binary()
        if binary is None:
            raise ControlFailed(self.find_obstacle())
        try:
            client = await asyncio.create_subprocess_exec(
                str(binary),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.STDOUT,
                env=self._variables(resource),
            )
        except OSError as error:  # a daemon that takes no command must still be ended
            text = f"the MPS daemon of {resource} cannot get `{command}`, {binary} does not run: {error}"
            raise ControlFailed(text) from error
        try:
            async with asyncio.timeout(self._control_timeout):
                answer, _ = await client.communicate(f"{command}\n".encode())
        except TimeoutError:
            raise ControlFailed(
                f"the MPS daemon of {resource} does not answer `{command}` within {self._control_timeout:g} s"
            ) from None
        finally:
            if client.returncode is None:
                client.kill()
                await client.wait()
        text = answer.decode(errors="replace").strip()
        if client.returncode:
            raise ControlFailed(f"the MPS daemon of {resource} refuses `{command}`: {text or 'no reason given'}")
        return text

    def _variables(self, resource: str) -> dict[str, str]:
        pipe, log = str(self._paths.pipe(resource)), str(self._paths.log(resource))
        return {**self._environment, PIPE_VARIABLE: pipe, LOG_VARIABLE: log}

    def _output(self, resource: str) -> Path:
        return self._paths.log(resource) / _OUTPUT


def _parse(mark: DaemonId) -> ProcessId | None:
    """The process of an id; ``None`` if the id is of another boot, or not ours."""
    match mark.split("/"):
        case (boot, pid, start) if boot == boot_id() and pid.isdigit() and start.isdigit():
            return ProcessId(int(pid), int(start))
    return None


#: File in which the kernel shows if SELinux is enforced.
ENFORCE = Path("/sys/fs/selinux/enforce")
#: The type that NVIDIA's plugin gives the pipe directory (k8s-device-plugin, MPS control daemon), without categories,
#: so that every container may use it.
CONTAINER_LABEL = "system_u:object_r:container_file_t:s0"


def label_for_containers(folder: Path, enforce: Path = ENFORCE) -> None:
    """Lets containers use a folder where SELinux is enforced; does nothing elsewhere.

    The shared memory needs the label like the pipe directory, since it is a folder of the host here. New files inherit
    the label.

    Raises:
        OSError: the label cannot be written.
    """
    try:
        enforced = enforce.read_text(encoding="ascii").strip() == "1"
    except FileNotFoundError:
        return
    if enforced:
        os.setxattr(folder, "security.selinux", f"{CONTAINER_LABEL}\0".encode())
