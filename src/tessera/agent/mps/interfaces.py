"""The seam between supervision and MPS control daemons: real child processes, or simulated ones on simulated cards.

A daemon outlives the agent that started it, so it is known by a mark that the next agent finds it again by. The mark is
written down before the daemon begins to work: at no instruction is there a daemon that nobody knows.

Commands are those of ``nvidia-cuda-mps-control`` (NVIDIA MPS documentation, appendix on tools and interfaces).
"""

from collections.abc import Callable
from typing import NewType, Protocol

import msgspec

from tessera.agent.base.mps_plan import MpsPlan
from tessera.api.sharing.mps_limits import ClientShare

#: Tells one daemon from every other one, over restarts of the agent and of the machine.
DaemonId = NewType("DaemonId", str)


class LaunchFailed(RuntimeError):  # noqa: N818 - says what happened
    """A daemon cannot be started; the text says why and what to do."""


class ControlFailed(RuntimeError):  # noqa: N818 - says what happened
    """A control command was refused or not answered in time."""


class DaemonSpec(msgspec.Struct, frozen=True):
    """What makes one daemon another one; limits are not among it, they can be set while it runs.

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
        """What it is found again by."""
        ...

    async def wait_ended(self) -> str:
        """Returns once the daemon has ended; says how, as far as that is known."""
        ...

    async def control(self, command: str) -> str:
        """The answer to one control command.

        Raises:
            ControlFailed: it was refused, or not answered in time.
        """
        ...

    async def end(self) -> None:
        """Ends the daemon and its servers: asked to quit first, then by signals. Returns when they are gone.

        Clients that are still connected lose what they compute.
        """
        ...


class DaemonLauncher(Protocol):
    """Starts daemons and finds those of former agents."""

    def find_obstacle(self) -> str:
        """What stands in the way of any daemon on this node, with the next step; empty if nothing does."""
        ...

    async def start(self, spec: DaemonSpec, note: Callable[[DaemonId], None]) -> MpsDaemon:
        """Starts a daemon. It may not answer commands yet.

        Args:
            spec: which.
            note: writes the mark down; the daemon begins to work after that only.

        Raises:
            LaunchFailed: it cannot be started.
            OSError: ``note`` could not write; nothing was started then.
        """
        ...

    def find(self, resource: str, mark: DaemonId) -> MpsDaemon | None:
        """The daemon that a former agent started; ``None`` if it has ended."""
        ...

    async def quit_unknown(self, resource: str) -> None:
        """Asks whatever answers as a resource's daemon, though nobody noted it, to quit."""
        ...

    async def end_leftovers(self, mark: DaemonId) -> None:
        """Ends what a daemon that has ended left behind: servers that still hold its cards."""
        ...


QUIT = "quit"


async def list_servers(daemon: MpsDaemon) -> list[int]:
    """PIDs of the daemon's servers, which it starts for the first client of a user.

    Raises:
        ControlFailed: the daemon does not answer. The same holds for all that follow.
    """
    return _pids(await daemon.control("get_server_list"))


async def count_clients(daemon: MpsDaemon) -> int:
    """How many clients are connected."""
    return sum([len(_pids(await daemon.control(f"get_client_list {server}"))) for server in await list_servers(daemon)])


async def set_limits(daemon: MpsDaemon, plan: MpsPlan) -> None:
    """Sets what each further client may use, of servers that run and that will start."""
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
    # A refusal is told in words; the exit status of the command is not documented to tell it.
    if any(word in answer.lower() for word in ("fail", "invalid", "error", "denied")):
        raise ControlFailed(f"MPS daemon refuses `{command}`: {answer.strip()}")


def _pids(answer: str) -> list[int]:
    return [int(word) for word in answer.split() if word.isdigit()]
