"""Reboots the host of the agent's container, as a person at its console would: by asking its systemd.

The agent's pod is privileged and sees the host's processes, so it can enter the namespaces of process 1 and call
``systemctl`` there. Services end in order, kubelet's graceful shutdown of pods included where it is set up. Without the
host's processes, process 1 is the container's own and has no systemctl, which is told.
"""

import asyncio
import logging

_log = logging.getLogger(__name__)

#: Enters the host and asks for the reboot; ``nsenter`` is of util-linux, which every Debian image has.
ARGUMENTS = ("--target", "1", "--mount", "--uts", "--ipc", "--net", "--pid", "--", "systemctl", "reboot")
#: Where programs are, in the container and on the host; nothing else of the container's environment holds there.
ENVIRONMENT = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}
#: Seconds that systemd may take to accept it. A systemctl that gets no answer gives up by itself after 25 s.
PATIENCE = 30.0


async def reboot_host(*, nsenter: str = "nsenter", patience: float = PATIENCE) -> None:
    """Asks the host to reboot. Returns when it has agreed; it goes down after that.

    A host that does not answer in time counts as asked: the reboot may well come, and must not be asked for again.

    Args:
        nsenter: the program that enters the host.
        patience: seconds for the answer.

    Raises:
        OSError: the host cannot be entered, or refuses.
    """
    try:
        process = await asyncio.create_subprocess_exec(
            nsenter,
            *ARGUMENTS,
            env=ENVIRONMENT,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
    except OSError as error:
        raise OSError(f"{nsenter} cannot be run: {error.strerror}; it is part of util-linux") from error
    try:
        async with asyncio.timeout(patience):
            said, _ = await process.communicate()
    except TimeoutError:
        _log.warning("`systemctl reboot` on the host has not answered within %g s; it counts as asked for", patience)
        return
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode:
        raise OSError(_refusal(said.decode(errors="replace").strip(), process.returncode))


def _refusal(said: str, code: int) -> str:
    text = f"`systemctl reboot` on the host ended with {code}: {said or 'no reason given'}"
    if "systemctl" in said or "nsenter" in said:
        text += "; it needs a privileged container with hostPID on a host with systemd"
    return text
