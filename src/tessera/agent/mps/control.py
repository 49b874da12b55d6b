"""The control commands of an MPS daemon that Tessera uses, spelled as ``nvidia-cuda-mps-control`` takes them.

Source: NVIDIA MPS documentation, appendix on tools and interfaces. A default concerns servers that start later, so a
change of limits is told to the running servers too; clients that are connected keep what they have. A card is named by
its UUID. What a server answers besides lists of PIDs has no documented form and is not read.
"""

from tessera.agent.mps.launcher import ControlFailed, Daemon
from tessera.agent.mps.plan import MpsPlan
from tessera.api.sharing.mps import ClientShare

QUIT = "quit"


async def servers(daemon: Daemon) -> list[int]:
    """PIDs of the daemon's servers, which it starts for the first client of a user.

    Raises:
        ControlFailed: the daemon does not answer. The same holds for all that follow.
    """
    return _pids(await daemon.control("get_server_list"))


async def clients(daemon: Daemon) -> int:
    """How many clients are connected."""
    return sum([len(_pids(await daemon.control(f"get_client_list {server}"))) for server in await servers(daemon)])


async def set_limits(daemon: Daemon, plan: MpsPlan) -> None:
    """Sets what each further client may use, of servers that run and that will start."""
    for card, share in plan.devices.items():
        await _set(daemon, f"set_default_device_pinned_mem_limit {card} {_amount(share)}")
    await _set(daemon, f"set_default_active_thread_percentage {plan.thread_percent}")
    for server in await servers(daemon):
        for card, share in plan.devices.items():
            await _set(daemon, f"set_device_pinned_mem_limit {server} {card} {_amount(share)}")
        await _set(daemon, f"set_active_thread_percentage {server} {plan.thread_percent}")


def _amount(share: ClientShare) -> str:
    return f"{share.memory_mib}M"


async def _set(daemon: Daemon, command: str) -> None:
    answer = await daemon.control(command)
    # A refusal is told in words; the exit status of the command is not documented to tell it.
    if any(word in answer.lower() for word in ("fail", "invalid", "error", "denied")):
        raise ControlFailed(f"MPS daemon refuses `{command}`: {answer.strip()}")


def _pids(answer: str) -> list[int]:
    return [int(word) for word in answer.split() if word.isdigit()]
