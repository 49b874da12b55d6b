"""The interface between supervision and MPS control daemons: their folders, and the control commands.

Daemons are real processes, or simulated ones on simulated cards. A daemon outlives the agent that started it, so the
next agent finds it again by its id. The agent records the id before the daemon begins to work, so at no moment is there
a daemon without a record.

Commands are those of ``nvidia-cuda-mps-control`` (NVIDIA MPS documentation, appendix on tools and interfaces). A
default concerns servers that start later, so a change of limits is sent to the running servers too; connected clients
keep their limits. Commands name a card by its UUID. Answers other than lists of PIDs have no documented form; the agent
does not read them.

MPS serves one user at a time: a client of another UID waits until the server of the first has no clients left (NVIDIA
MPS documentation, on the control daemon). Pods that share a GPU have to run as the same user.
"""

from collections.abc import Callable
from pathlib import Path, PurePosixPath
from typing import NewType, Protocol

import msgspec

from tessera.agent.base.settings import ContainerEdits, ServicePlan
from tessera.api.sharing.profile import ClientShare
from tessera.kubelet.interfaces import Mount

#: The MPS root as containers see it (k8s-device-plugin, ``mps.ContainerRoot``).
CONTAINER_ROOT = PurePosixPath("/mps")
#: The shared memory as containers see it.
CONTAINER_SHM = "/dev/shm"  # noqa: S108 - a mount point, not a temporary file
PIPE_VARIABLE = "CUDA_MPS_PIPE_DIRECTORY"
LOG_VARIABLE = "CUDA_MPS_LOG_DIRECTORY"


class MpsPaths(msgspec.Struct, frozen=True):
    """The folders of MPS below one root; the root as the daemon, the host or a container sees it.

    Paths are those of NVIDIA's device plugin: below the root ``<resource>/pipe`` and ``<resource>/log``, one folder for
    each resource, and ``shm`` for all. Containers see the pipe directory below ``/mps`` and the shared memory as their
    ``/dev/shm``, so their pods need no ``hostIPC``. Nothing of another resource is mounted.
    """

    root: Path

    def pipe(self, resource: str) -> Path:
        """The pipe directory of a resource's daemon, through which it takes commands and clients."""
        return self.root / resource / "pipe"

    def log(self, resource: str) -> Path:
        """The log folder of a resource's daemon; containers never see it."""
        return self.root / resource / "log"

    @property
    def shm(self) -> Path:
        """Shared memory of all daemons and their clients."""
        return self.root / "shm"


def container_edits(resource: str, host: MpsPaths) -> ContainerEdits:
    """Returns the edits that make a container a client of the resource's daemon.

    Args:
        resource: the resource of the daemon.
        host: the MPS folders as kubelet sees them.
    """
    pipe = str(CONTAINER_ROOT / resource / "pipe")
    return ContainerEdits(
        envs={PIPE_VARIABLE: pipe},
        mounts=(
            Mount(container_path=pipe, host_path=str(host.pipe(resource)), read_only=False),
            Mount(container_path=CONTAINER_SHM, host_path=str(host.shm), read_only=False),
        ),
    )


#: Identifies one daemon, over restarts of the agent and of the machine.
DaemonId = NewType("DaemonId", str)


class LaunchFailed(RuntimeError):  # noqa: N818 - says what happened
    """A daemon cannot be started; the text gives the reason and the next step."""


class ControlFailed(RuntimeError):  # noqa: N818 - says what happened
    """A daemon refused a control command or did not answer it in time."""


class DaemonSpec(msgspec.Struct, frozen=True):
    """The values with which a daemon is started. Limits are not among them, since they can be set while it runs.

    Attributes:
        resource: the extended resource whose shares it serves.
        cards: UUIDs of the cards that its servers see.
    """

    resource: str
    cards: tuple[str, ...]


class MpsDaemon(Protocol):
    """A control daemon that was started, by this agent or a former one."""

    @property
    def id(self) -> DaemonId:
        """Identifies the daemon."""
        ...

    async def wait_ended(self) -> str:
        """Waits until the daemon has ended; returns how it ended, as far as that is known."""
        ...

    async def control(self, command: str) -> str:
        """The answer to one control command.

        Raises:
            ControlFailed: the daemon refused the command, or did not answer in time.
        """
        ...

    async def end(self) -> None:
        """Ends the daemon and its servers: first by the command, then by signals. Returns when they have ended.

        Clients that are still connected lose their work.
        """
        ...


class DaemonLauncher(Protocol):
    """Starts daemons and finds those of former agents."""

    def find_obstacle(self) -> str:
        """The reason that no daemon can be started on this node, with the next step; empty if one can."""
        ...

    async def start(self, spec: DaemonSpec, note: Callable[[DaemonId], None]) -> MpsDaemon:
        """Starts a daemon. It may not answer commands yet.

        Args:
            spec: resource and cards of the daemon.
            note: records the id; the daemon begins to work only after that.

        Raises:
            LaunchFailed: the daemon cannot be started.
            OSError: ``note`` could not write; then no daemon was started.
        """
        ...

    def find(self, resource: str, mark: DaemonId) -> MpsDaemon | None:
        """The daemon that a former agent started; ``None`` if it has ended."""
        ...

    async def quit_unknown(self, resource: str) -> None:
        """Makes a daemon of a resource quit that answers and has no record, if there is one."""
        ...

    async def end_leftovers(self, mark: DaemonId) -> None:
        """Ends the servers that a daemon left behind, which still hold its cards."""
        ...


QUIT = "quit"


async def list_servers(daemon: MpsDaemon) -> list[int]:
    """PIDs of the daemon's servers, which it starts for the first client of a user.

    Raises:
        ControlFailed: the daemon does not answer, here and in the functions below.
    """
    return _pids(await daemon.control("get_server_list"))


async def count_clients(daemon: MpsDaemon) -> int:
    """The number of connected clients."""
    return sum([len(_pids(await daemon.control(f"get_client_list {server}"))) for server in await list_servers(daemon)])


async def set_limits(daemon: MpsDaemon, plan: ServicePlan) -> None:
    """Sets the share of each further client, for servers that run and servers that will start."""
    for card, share in plan.devices.items():
        await _set(daemon, f"set_default_device_pinned_mem_limit {card} {_amount(share)}")
    await _set(daemon, f"set_default_active_thread_percentage {plan.thread_percent}")
    for server in await list_servers(daemon):
        for card, share in plan.devices.items():
            await _set(daemon, f"set_device_pinned_mem_limit {server} {card} {_amount(share)}")
        await _set(daemon, f"set_active_thread_percentage {server} {plan.thread_percent}")


def _amount(share: ClientShare) -> str:
    return f"{share.memory_mib}M"


async def _set(daemon: MpsDaemon, command: str) -> None:
    answer = await daemon.control(command)
    # The text of the answer has the refusal; no document says that the exit status shows it.
    if any(word in answer.lower() for word in ("fail", "invalid", "error", "denied")):
        raise ControlFailed(f"MPS daemon refuses `{command}`: {answer.strip()}")


def _pids(answer: str) -> list[int]:
    return [int(word) for word in answer.split() if word.isdigit()]
