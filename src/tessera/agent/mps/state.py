"""MPS daemons as the agent knows them: their folders and commands, and the record on disk of those that it started.

Daemons are real processes, or simulated ones on simulated cards. A daemon outlives the agent that started it, so the
next agent finds it again by its id. The agent writes each entry of the record before it acts. So an agent that is
killed at any moment leaves nothing unknown to the next one. A crash of the machine may lose the file; its reboot ends
the daemons and resets the compute modes too.

Commands are those of ``nvidia-cuda-mps-control`` (NVIDIA MPS documentation, appendix on tools and interfaces). A
default concerns servers that start later, so a change of limits is sent to the running servers too; connected clients
keep their limits. Commands name a card by its UUID. Answers other than lists of PIDs have no documented form; the agent
does not read them. MPS serves one user at a time: a client of another UID waits until the server of the first has no
clients left (NVIDIA MPS documentation, on the control daemon). Pods that share a GPU have to run as the same user.

In the compute mode ``EXCLUSIVE_PROCESS`` only the MPS server may compute on a card. A container without a way to the
daemon cannot compute beside the MPS clients, and this keeps the limits (NVIDIA MPS documentation, on compute modes). A
card is taken for one resource, and can be taken for another only after it was released. A card is not taken while
another process computes on it: the pod of that process, with a whole card or a time slice, could start no second one. A
card in the mode without a record was taken before the record was lost: the processes on it are MPS clients. The agent
sets back only modes that it has set; after a restart the record names them.
"""

import contextlib
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path, PurePosixPath
from typing import NewType, Protocol

import msgspec

from tessera.agent.base.node_files import StateFile
from tessera.agent.base.settings import ContainerEdits, ServicePlan
from tessera.api.sharing.profile import ClientShare
from tessera.clock import Clock
from tessera.kubelet.interfaces import Mount
from tessera.nvml.asynchronous import AsyncNvml
from tessera.nvml.errors import GpuLost, NotSupported, NvmlError, NvmlNotFound
from tessera.nvml.interface import ComputeMode, GpuUuid

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


class DaemonRecord(msgspec.Struct, frozen=True):
    """A daemon that was started.

    Attributes:
        mark: the daemon's id.
        cards: UUIDs of the cards that it serves.
    """

    mark: DaemonId
    cards: tuple[str, ...]


class _StoredState(msgspec.Struct, frozen=True):
    """The content of the file: daemons by resource, and the resource for which each card was taken."""

    daemons: Mapping[str, DaemonRecord] = {}
    exclusive: Mapping[str, str] = {}


class MpsState:
    """The record of daemons and cards, and its file. One agent at a time writes it.

    Args:
        path: the file.

    Attributes:
        daemons: the daemons by resource; a listed one may have ended.
        exclusive: the cards whose compute mode was changed or about to be, by UUID, with the resource that took them;
            the same mapping, always of now.
    """

    def __init__(self, path: Path) -> None:
        self._file = StateFile(path, _StoredState)
        stored = self._file.load() or _StoredState()
        self.daemons, self.exclusive = stored.daemons, dict(stored.exclusive)

    def add_daemon(self, resource: str, daemon: DaemonRecord) -> None:
        """Records a daemon.

        Raises:
            OSError: the file cannot be written; then the daemon must not work. The methods below raise it too.
        """
        self._save({**self.daemons, resource: daemon}, self.exclusive)

    def remove_daemon(self, resource: str) -> None:
        """Removes a daemon."""
        self._save({name: each for name, each in self.daemons.items() if name != resource}, self.exclusive)

    def add_card(self, card: str, resource: str) -> None:
        """Records a card whose compute mode is about to change."""
        self._save(self.daemons, {**self.exclusive, card: resource})

    def remove_card(self, card: str) -> None:
        """Removes a card whose compute mode is the default one again."""
        self._save(self.daemons, {uuid: each for uuid, each in self.exclusive.items() if uuid != card})

    def _save(self, daemons: Mapping[str, DaemonRecord], exclusive: Mapping[str, str]) -> None:
        if (daemons, exclusive) != (self.daemons, self.exclusive):
            self._file.save(_StoredState(daemons, exclusive))
            self.daemons, kept = daemons, dict(exclusive)
            self.exclusive.clear()
            self.exclusive.update(kept)


#: Seconds for which a card that has refused the mode is left out.
REFUSED_PAUSE = 60.0


class ExclusiveCards:
    """The cards that are in the mode ``EXCLUSIVE_PROCESS`` for MPS. A card that refuses a call hinders no other.

    Args:
        hardware: the node's cards.
        record: the cards that were taken, over restarts.
        clock: the time.
        describe_occupant: returns why a card cannot be taken, besides processes that compute on it; empty if it can.
    """

    def __init__(
        self, hardware: AsyncNvml, record: MpsState, clock: Clock, describe_occupant: Callable[[str], str]
    ) -> None:
        self._hardware = hardware
        self._clock = clock
        #: The cards that have refused the mode: the text, and monotonic seconds until which they are left out.
        self._refused: dict[str, tuple[str, float]] = {}
        self._describe_occupant = describe_occupant
        self._record = record

    def cards_of(self, resource: str) -> frozenset[str]:
        """UUIDs of the cards taken for a resource."""
        return frozenset(card for card, owner in self._record.exclusive.items() if owner == resource)

    async def obstacles(self, resource: str, cards: Collection[str]) -> dict[str, str]:
        """The cards that cannot be taken for a resource now, and why. The resource's own cards can be taken."""
        found = {card: await self._obstacle(resource, card) for card in cards}
        return {card: why for card, why in found.items() if why}

    async def _obstacle(self, resource: str, card: str) -> str:
        text, until = self._refused.get(card, ("", 0.0))
        if text and self._clock.monotonic() < until:
            return text
        if (owner := self._record.exclusive.get(card)) is not None:
            return "" if owner == resource else f"card {card} is still served by the MPS daemon of {owner}"
        try:
            ours = await self._hardware.compute_mode(GpuUuid(card)) is ComputeMode.EXCLUSIVE_PROCESS
            if not ours and (why := self._describe_occupant(card)):
                return f"card {card}: {why}"
            processes = await self._hardware.processes(GpuUuid(card))
        except GpuLost:
            return f"card {card} is lost"
        except NvmlError as error:
            return f"card {card} cannot be read: {error}"
        return f"card {card} still computes for others than MPS" if processes else ""

    async def take(self, resource: str, cards: Iterable[str]) -> tuple[str, ...]:
        """Sets the mode of cards that are not in it yet; returns the cards that are in it now.

        Raises:
            OSError: the record cannot be written.
        """
        taken = []
        for card in cards:
            self._record.add_card(card, resource)
            try:
                if await self._hardware.compute_mode(GpuUuid(card)) is not ComputeMode.EXCLUSIVE_PROCESS:
                    await self._hardware.set_compute_mode(GpuUuid(card), ComputeMode.EXCLUSIVE_PROCESS)
            except NvmlError as error:
                text = f"card {card} does not serve MPS alone: {error}"
                self._refused[card] = text, self._clock.monotonic() + REFUSED_PAUSE
            else:
                self._refused.pop(card, None)
                taken.append(card)
        return tuple(taken)

    async def release(self, cards: Collection[str]) -> None:
        """Sets cards back to the default mode.

        A card in MIG mode is in the default mode already. A card that is lost or was removed comes back in it: the
        mode ends when the driver loses the card (NVML, on ``nvmlDeviceSetComputeMode``).

        Raises:
            NvmlError: a card refuses; it stays taken, the others are released.
            OSError: the record cannot be written.
        """
        refusal: NvmlError | None = None
        for card in sorted(cards):
            try:
                with contextlib.suppress(GpuLost, NvmlNotFound, NotSupported):
                    await self._hardware.set_compute_mode(GpuUuid(card), ComputeMode.DEFAULT)
            except NvmlError as error:
                refusal = error
            else:
                self._record.remove_card(card)
        if refusal is not None:
            raise refusal
