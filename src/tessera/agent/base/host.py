"""The machine outside of the agent's container: the pod and container of a process, signals to it, and reboots.

NVML reports host PIDs. The cgroup of a process names its pod and container. Kubelet and the runtimes write the path in
several ways (both cgroup drivers, both cgroup versions, nested nodes); this module reads them all. The first pod in the
path counts, since a container may choose the names below its own cgroup freely. ``/proc`` must be the host's: the agent
runs in the host's PID namespace.

The kernel reuses a PID after its process has ended. So a process is identified by PID and start time, and gets a signal
through a pidfd that was opened before both were checked. Where the kernel proves no pod, the answer is ``None``: the
agent never acts on such a process.

The node is rebooted in the way that the administrator has chosen: mostly by a command outside of the container. The
agent's pod is privileged, so it can enter the namespaces of process 1 and call a program there. No shell reads the
words, and no tenant writes any of them: they are constants, or the administrator's.
"""

import asyncio
import logging
import os
import re
import signal
from collections.abc import Awaitable, Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NewType

import msgspec

from tessera.agent.base.node_objects import ApiMirror
from tessera.api.names import REBOOT_REQUESTED, PodUid
from tessera.api.nodes.repairs import RebootWay, Repairs
from tessera.kube.client import Client
from tessera.kube.errors import ApiError
from tessera.kube.resources import NODES
from tessera.limits import CONDITION_MESSAGE, ECHOED
from tessera.text import one_line

_log = logging.getLogger(__name__)

#: Enters the host; ``nsenter`` is in util-linux, which every Debian image has.
ARGUMENTS = ("--target", "1", "--mount", "--uts", "--ipc", "--net", "--pid", "--")
#: Asks the host's systemd to reboot; it ends services in order, kubelet's graceful shutdown of pods included.
SYSTEMCTL = ("systemctl", "reboot")
#: Makes the file by which kured and Debian's tools know that the host wants a reboot.
SENTINEL = ("touch", "/var/run/reboot-required")
#: ``PATH`` for the container and the host; no other variable of the container's environment is valid there.
ENVIRONMENT = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}
#: Seconds that a command may take. A systemctl without an answer gives up after 25 s.
COMMAND_TIMEOUT = 30.0

#: Runs a command on the host; raises OSError if it fails.
RunOnHost = Callable[[Sequence[str]], Awaitable[None]]


async def run_on_host(command: Sequence[str], *, nsenter: str = "nsenter", seconds: float = COMMAND_TIMEOUT) -> None:
    """Runs a command on the host until it ends; its output goes into the log.

    A systemctl without an answer in time counts as done: it may still reboot, and must not be asked again. Without the
    host's processes, process 1 is the container's own and has no systemctl; the error says so.

    Args:
        command: the program and its arguments.
        nsenter: the program that enters the host.
        seconds: seconds that it may take.

    Raises:
        OSError: the host cannot be entered; or the command fails, or does not end in time.
    """
    shown = one_line(" ".join(command), CONDITION_MESSAGE)
    try:
        process = await asyncio.create_subprocess_exec(
            nsenter,
            *ARGUMENTS,
            *command,
            env=ENVIRONMENT,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
    except OSError as error:
        raise OSError(f"{nsenter} cannot be run: {error.strerror}; it is part of util-linux") from error
    try:
        async with asyncio.timeout(seconds):
            answer = await read_bounded(process.stdout, 4 * CONDITION_MESSAGE)
            await process.wait()
    except TimeoutError:
        if tuple(command) != SYSTEMCTL:
            raise OSError(f"`{shown}` on the host has not ended within {seconds:g} s") from None
        _log.warning("`%s` on the host has not answered within %g s; the reboot counts as requested", shown, seconds)
        return
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    text = one_line(answer.decode(errors="replace").strip(), CONDITION_MESSAGE)
    if process.returncode:
        raise OSError(_refusal(shown, text, process.returncode))
    _log.info("`%s` on the host ended well: %s", shown, text or "no output")


async def read_bounded(stream: asyncio.StreamReader | None, size: int) -> bytes:
    """Reads a stream to its end and returns its first ``size`` bytes; drops the rest, so that the writer can end."""
    kept = bytearray()
    while stream is not None and (part := await stream.read(65536)):
        kept += part[: size - len(kept)]
    return bytes(kept)


def _refusal(command: str, answer: str, code: int) -> str:
    text = f"`{command}` on the host ended with {code}: {answer or 'no reason given'}"
    if "systemctl" in answer or "nsenter" in answer:
        text += "; the agent's container must be privileged and have hostPID, and the host needs systemd"
    return text


#: Field manager of the annotation by which a reboot is asked for.
MANAGER = "tessera-agent-reboot"


class NodeReboot:
    """Reboots the node, or asks for that.

    Args:
        host: runs commands on the host; ``None`` with simulated cards.
        client: the API server.
        node: the Node object, with its boot id.
        repairs: gives what the administrator lets Tessera do; a layout's reboot is by systemd if that names no way.
    """

    def __init__(self, host: RunOnHost | None, client: Client, node: ApiMirror, repairs: Callable[[], Repairs]) -> None:
        self._host = host
        self._client = client.with_field_manager(MANAGER)
        self._node = node
        self._repairs = repairs

    async def __call__(self) -> None:
        """Returns once the request is made; the machine goes down after that.

        Raises:
            OSError: it is refused.
        """
        repairs = self._repairs()
        match repairs.reboot:
            case RebootWay.ANNOTATION:
                await self._annotate()
            case RebootWay.COMMAND:
                await self._run(repairs.reboot_command)
            case RebootWay.SENTINEL:
                await self._run(SENTINEL)
            case _:
                await self._run(SYSTEMCTL)

    async def _run(self, command: Sequence[str]) -> None:
        if self._host is None:
            raise OSError("no machine is rebooted for simulated cards")
        await self._host(command)

    async def _annotate(self) -> None:
        """Asks the controller to set the administrator's annotation, until the node has booted."""
        body = {"metadata": {"annotations": {REBOOT_REQUESTED: self._node.boot_id()}}}
        try:
            await self._client.apply(NODES, self._node.node_name, body)
        except (ApiError, ConnectionError, TimeoutError) as error:
            raise OSError(f"the Node cannot be annotated: {error}") from error


ContainerId = NewType("ContainerId", str)

_UID = r"[0-9a-f]{8}[-_][0-9a-f]{4}[-_][0-9a-f]{4}[-_][0-9a-f]{4}[-_][0-9a-f]{12}|[0-9a-f]{32}"
# One element of a path: podUID (cgroupfs), kubepods[-burstable|-besteffort]-podUID.slice with any prefix of a nested
# kubelet (systemd). A static pod's UID is the 32 digits of its annotation kubernetes.io/config.hash.
_POD = re.compile(rf"(?:pod({_UID})|(?:[a-z0-9_]+-)*kubepods(?:-[a-z]+)?-pod({_UID})\.slice)")
_KUBEPODS = re.compile(r"kubepods|(?:[a-z0-9_]+-)*kubepods(?:-[a-z]+)?\.slice")
# RUNTIME-CONTAINER.scope, with or without either end.
_CONTAINER = re.compile(r"(?:(?P<runtime>[a-z][a-z-]*)-)?(?P<id>[0-9a-f]{64})(?:\.scope)?")
#: CRI-O's monitor runs beside the container, not in it.
_MONITOR = "crio-conmon"
#: Start time in /proc/PID/stat: field 22, counted from field 3, which follows the name in brackets (proc_pid_stat(5)).
_START = 22 - 3
#: utime and stime, fields 14 and 15.
_CPU = slice(14 - 3, 16 - 3)


class ProcessId(msgspec.Struct, frozen=True, order=True):
    """Identifies a process for good: PID and start time in clock ticks since boot."""

    pid: int
    start: int


class ProcessPod(msgspec.Struct, frozen=True):
    """Pod and container of a process.

    Attributes:
        pod: the pod's UID; of a static pod its ``kubernetes.io/config.hash``.
        container: the runtime's id; ``None`` for a process of the pod that is in no container.
    """

    pod: PodUid
    container: ContainerId | None


def parse_cgroup(text: str) -> ProcessPod | None:
    """Pod and container by ``/proc/PID/cgroup``; ``None`` if it proves no pod.

    A path from the root has to pass through ``kubepods``. A path that begins with ``/..`` is seen from inside another
    cgroup namespace, where the beginning is cut off; there the element of the pod suffices.
    """
    for line in text.splitlines():
        _, _, path = line.split(":", 2) if line.count(":") >= 2 else ("", "", "")
        found = _of_path(path)
        if found is not None:
            return found
    return None


def _of_path(path: str) -> ProcessPod | None:
    # containerd with cgroupfs may get systemd's notation as one element: SLICE:RUNTIME:CONTAINER.
    elements = [part for element in path.split("/") if element for part in _split(element)]
    for number, element in enumerate(elements):
        match = _POD.fullmatch(element)
        if match is None:
            continue
        below_kubepods = match[2] is not None or any(map(_KUBEPODS.fullmatch, elements[:number]))
        if not below_kubepods and elements[0] != "..":
            return None
        uid = PodUid((match[1] or match[2]).replace("_", "-"))
        return ProcessPod(uid, _container(elements[number + 1 :]))
    return None


def _split(element: str) -> list[str]:
    slice_, _, rest = element.partition(":")
    return [slice_, rest.replace(":", "-")] if rest else [element]


def _container(elements: list[str]) -> ContainerId | None:
    if not elements:
        return None
    match = _CONTAINER.fullmatch(elements[0])
    if match is None or match["runtime"] == _MONITOR:
        return None
    return ContainerId(match["id"])


def parse_start(text: str) -> int:
    """The start time in ``/proc/PID/stat``.

    Raises:
        ValueError: the text is not the status of a process.
    """
    # The name may have blanks and brackets itself, so the fields begin after the last bracket.
    fields = text.rpartition(")")[2].split()
    if len(fields) <= _START:
        raise ValueError(f"process status {text[:ECHOED]!r}: it ends before field 22, the start time")
    return int(fields[_START])


def parse_cpu_ticks(text: str) -> int:
    """The clock ticks of CPU time in ``/proc/PID/stat``; 0 if the text is not the status of a process."""
    fields = text.rpartition(")")[2].split()
    return sum(map(int, fields[_CPU])) if len(fields) >= _CPU.stop else 0


class ProcessTable:
    """The machine's processes.

    Args:
        proc: the host's ``/proc``.
    """

    def __init__(self, proc: Path = Path("/proc")) -> None:
        self._proc = proc

    def identify(self, pid: int) -> ProcessId | None:
        """The process that has this PID now; ``None`` if there is none."""
        text = self._read(pid, "stat")
        return None if text is None else ProcessId(pid, parse_start(text))

    def pod_of(self, process: ProcessId) -> ProcessPod | None:
        """Pod and container of the process; ``None`` if it ended or the kernel proves no pod."""
        text = self._read(process.pid, "cgroup")
        if text is None or self.identify(process.pid) != process:
            return None
        return parse_cgroup(text)

    def list_of(self, pod: PodUid, containers: Collection[str]) -> list[ProcessId]:
        """The processes of some containers of a pod.

        Args:
            pod: the pod.
            containers: the runtime's ids.
        """
        found = []
        for entry in self._proc.iterdir() if containers else ():
            process = self.identify(int(entry.name)) if entry.name.isdigit() else None
            of = self.pod_of(process) if process is not None else None
            if process is not None and of is not None and of.pod == pod and of.container in containers:
                found.append(process)
        return found

    def name_of(self, pid: int) -> str:
        """Name of the program, at most 15 bytes (proc_pid_comm(5)), which it may choose; empty if it has ended."""
        return (self._read(pid, "comm") or "").rstrip("\n")

    def cpu_seconds(self, pid: int) -> float | None:
        """CPU time that a process and its threads have used, in user and kernel mode; ``None`` if it has ended."""
        text = self._read(pid, "stat")
        return None if text is None else parse_cpu_ticks(text) / os.sysconf("SC_CLK_TCK")

    def _read(self, pid: int, name: str) -> str | None:
        try:
            return (self._proc / str(pid) / name).read_text(encoding="utf-8", errors="replace")
        except OSError:  # it has ended, or is hidden: either way no pod is proven
            return None

    @contextmanager
    def open(self, process: ProcessId) -> "Iterator[ProcessHandle | None]":
        """Holds the process: until the end of the block its PID means this process or none. ``None`` if it has ended.

        Raises:
            OSError: the kernel refuses a pidfd.
        """
        try:
            descriptor = os.pidfd_open(process.pid)
        except ProcessLookupError:
            yield None
            return
        try:
            yield ProcessHandle(descriptor) if self.identify(process.pid) == process else None
        finally:
            os.close(descriptor)


class ProcessHandle:
    """Signals one process, and never another one of the same PID."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def send(self, number: signal.Signals) -> bool:
        """Sends a signal; ``False`` if the process has ended.

        Raises:
            PermissionError: the signal is not allowed.
        """
        try:
            signal.pidfd_send_signal(self._descriptor, number)
        except ProcessLookupError:
            return False
        return True
