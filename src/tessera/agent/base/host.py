"""Reboots the node in the way that the administrator has chosen: mostly by a command outside of the container.

The agent's pod is privileged and sees the host's processes, so it can enter the namespaces of process 1 and call a
program there. No shell reads the words, and no tenant writes any of them: they are constants, or the administrator's.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence

from tessera.agent.base.node_objects import ApiMirror
from tessera.api.names import REBOOT_REQUESTED
from tessera.api.nodes.repairs import RebootWay, Repairs
from tessera.kube.client.client import Client
from tessera.kube.client.errors import ApiError
from tessera.kube.resources import NODES
from tessera.limits import CONDITION_MESSAGE
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
            answer = await _read_bounded(process)
    except TimeoutError:
        if tuple(command) != SYSTEMCTL:
            raise OSError(f"`{shown}` on the host has not ended within {seconds:g} s") from None
        _log.warning("`%s` on the host has not answered within %g s; the reboot counts as requested", shown, seconds)
        return
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode:
        raise OSError(_refusal(shown, answer, process.returncode))
    _log.info("`%s` on the host ended well: %s", shown, answer or "no output")


async def _read_bounded(process: asyncio.subprocess.Process) -> str:
    """The beginning of the output of a process as one line, once it has ended; the rest is read and dropped."""
    kept = bytearray()
    while process.stdout is not None and (part := await process.stdout.read(65536)):
        kept += part[: 4 * CONDITION_MESSAGE - len(kept)]
    await process.wait()
    return one_line(kept.decode(errors="replace").strip(), CONDITION_MESSAGE)


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
