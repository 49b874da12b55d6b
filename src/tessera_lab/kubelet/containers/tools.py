"""Programs of a simulated container that print something and end: what they print there.

They know the container's variables and the cards that it sees. It holds no files but the devices below ``/dev``.
"""

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase

import msgspec

from tessera.nvml.interface import Nvml
from tessera_lab.apiserver.interfaces import CommandResult
from tessera_lab.kubelet.nvidia_smi.cards import find_cards
from tessera_lab.kubelet.nvidia_smi.program import KNOWN, run_nvidia_smi

#: Exit codes of a shell: a command that cannot be run, and one that does not exist.
CANNOT_RUN, NO_COMMAND = 126, 127
#: The commands, for people.
TOOLS = ("echo WORDS", "env", "hostname", "kill 1", "ls /dev", "printenv [NAME]", "true", "false", *KNOWN)

#: Environment variables that list a container's GPUs.
DEVICE_VARIABLES = ("NVIDIA_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES")
#: Devices that every container has (runtime-spec, config-linux.md, default devices).
_DEVICES = ("full", "null", "ptmx", "random", "tty", "urandom", "zero")
_NO_GPU = b"nvidia-smi: not found: NVIDIA's runtime puts it only into containers that hold a GPU; this one holds none\n"
_DRIVER = ("nvidia-uvm", "nvidia-uvm-tools", "nvidiactl")


class Surroundings(msgspec.Struct, frozen=True, kw_only=True):
    """What a command finds in a container.

    Attributes:
        env: its variables.
        hostname: the name of its pod.
        nvml: the cards of its node; None for a node without.
        now: seconds since 1970.
    """

    env: Mapping[str, str]
    hostname: str
    nvml: Nvml | None
    now: float


def visible_devices(env: Mapping[str, str]) -> tuple[str, ...]:
    """Returns the UUIDs of cards and MIG devices in a container's environment."""
    for name in DEVICE_VARIABLES:
        uuids = tuple(each for each in env.get(name, "").split(",") if each.startswith(("GPU-", "MIG-")))
        if uuids:
            return uuids
    return ()


def run_tool(argv: Sequence[str], around: Surroundings) -> CommandResult | None:
    """Runs a program in a container; None for one that containers of the lab do not have."""
    name, arguments = argv[0].rsplit("/", 1)[-1], argv[1:]
    match name, arguments:
        case "true" | ":", _:
            return CommandResult(0)
        case "false", _:
            return CommandResult(1)
        case "echo", _:
            return CommandResult(0, f"{' '.join(arguments)}\n".encode())
        case "hostname", []:
            return CommandResult(0, f"{around.hostname}\n".encode())
        case "env" | "printenv", []:
            variables = {"HOSTNAME": around.hostname, **around.env}
            return CommandResult(0, "".join(f"{key}={value}\n" for key, value in sorted(variables.items())).encode())
        case "printenv", [key] if not key.startswith("-"):
            value = around.env.get(key)
            return CommandResult(1) if value is None else CommandResult(0, f"{value}\n".encode())
        case "ls", [path] if path.rstrip("/") == "/dev" or path.startswith("/dev/"):
            return _list_devices(path, around)
        case "nvidia-smi", _:
            return _nvidia_smi(arguments, around)
        case _:
            return None


def _list_devices(path: str, around: Surroundings) -> CommandResult:
    names = list(_DEVICES)
    devices = visible_devices(around.env)
    if devices and around.nvml is not None:
        cards = find_cards(around.nvml, devices)
        names += [*_DRIVER, *(f"nvidia{card.gpu.minor}" for card in cards)]
        names += ["nvidia-caps"] if any(card.devices for card in cards) else []
    if path.rstrip("/") == "/dev":
        return CommandResult(0, "".join(f"{name}\n" for name in sorted(names)).encode())
    found = [f"/dev/{name}" for name in sorted(names) if fnmatchcase(f"/dev/{name}", path)]
    if not found:
        return CommandResult(2, stderr=f"ls: cannot access '{path}': No such file or directory\n".encode())
    return CommandResult(0, "".join(f"{name}\n" for name in found).encode())


def _nvidia_smi(arguments: Sequence[str], around: Surroundings) -> CommandResult:
    devices = visible_devices(around.env)
    if not devices or around.nvml is None:
        return CommandResult(NO_COMMAND, stderr=_NO_GPU)
    return run_nvidia_smi(arguments, around.nvml, devices, around.now)
