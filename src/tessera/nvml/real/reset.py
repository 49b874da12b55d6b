"""Resets a card with ``nvidia-smi``: NVML itself has no call for it.

The tool refuses while any process has the card open, NVML sessions included. So the caller ends its own session first,
and other clients (a metrics exporter, a persistence daemon that holds the card) show up as its refusal.
"""

import subprocess
from collections.abc import Sequence

from tessera.nvml.errors import GpuLost, InUse, NoPermission, NotSupported, NvmlError, UnknownNvmlError

#: A reset takes a few seconds, on boards with NVSwitches up to a minute.
RESET_SECONDS = 120.0
#: Texts in the tool's refusals, and the error class for each.
_REFUSALS: Sequence[tuple[str, type[NvmlError]]] = (
    ("in use by", InUse),
    ("is currently being used by", InUse),
    ("insufficient permissions", NoPermission),
    ("not supported", NotSupported),
    ("gpu is lost", GpuLost),
    ("unable to determine the device handle", GpuLost),
)


def reset_card(
    pci_bus_id: str, *, tool: Sequence[str] = ("nvidia-smi",), environment: dict[str, str] | None = None
) -> None:
    """Resets the card at that PCI address; returns when it works again.

    Args:
        pci_bus_id: ``00000000:07:00.0``.
        tool: how ``nvidia-smi`` is called, ``("chroot", "/host", "nvidia-smi")``.
        environment: of the tool; this process's if ``None``.

    Raises:
        InUse: a process has the card open; the text is the tool's.
        NotSupported: the tool is not there, or the card cannot be reset.
        NoPermission: not allowed.
        Unknown: any other refusal, or no answer within :data:`RESET_SECONDS`.
    """
    what = f"reset of the card at {pci_bus_id}"
    try:
        done = subprocess.run(  # noqa: S603 - a fixed command, no shell
            [*tool, "--gpu-reset", "-i", pci_bus_id],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            timeout=RESET_SECONDS,
            check=False,
            env=environment,
        )
    except FileNotFoundError as error:
        raise NotSupported(f"{what}: there is no {tool[0]}; mount the driver's, or reboot the node") from error
    except subprocess.TimeoutExpired as error:
        raise UnknownNvmlError(
            f"{what}: nvidia-smi has not answered for {RESET_SECONDS:.0f} s; reboot the node"
        ) from error
    if done.returncode:
        raise make_reset_error(what, done.returncode, done.stdout.decode(errors="replace"))


def make_reset_error(what: str, status: int, said: str) -> NvmlError:
    """The error that the tool's words mean.

    Args:
        what: which reset.
        status: its exit status.
        said: all that it printed.
    """
    words = " ".join(said.split())
    for part, kind in _REFUSALS:
        if part in words.casefold():
            return kind(f"{what}: {words}")
    return UnknownNvmlError(f"{what}: nvidia-smi ended with status {status}: {words or 'no output'}")
