"""The simulated container runtime of a node: creates containers and runs their processes.

There are three sorts of containers. The injected entrypoint runs Tessera's own commands for real; an image may have a
program (:mod:`tessera_lab.kubelet.images.catalogue`); the runtime interprets the command of all others. It resolves CDI
devices as containerd does. A running container that sees MIG devices has a simulated process with memory on each, so
that nobody can destroy a slice in use; a container that sees any card keeps the driver loaded
(:mod:`tessera_lab.kubelet.containers.gpu_processes`). A container with a share by MPS is a client of the simulated
daemon, and fails when that ends.

Commands that it interprets: ``sleep`` (seconds, suffixes ``smhd``, ``infinity``), ``true``, ``false``, ``exit``,
``echo``, tools that end at once, and ``sh -c`` / ``bash -c`` scripts made of these with ``;``, ``&&``, ``||`` and
newlines. A loop runs forever. Any other program counts as a server and runs forever too, as does an image whose own
command is unknown; the container's log says that it is simulated.
"""

import asyncio
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from tessera.agent.mps.interfaces import CONTAINER_ROOT, PIPE_VARIABLE
from tessera.kubelet.interfaces import ContainerAllocateResponse
from tessera_lab.kubelet.containers.cdi import CdiEdits, CdiRegistry
from tessera_lab.kubelet.containers.gpu_processes import ContainerOwner, GpuProcesses
from tessera_lab.kubelet.images.node_images import NodeImages
from tessera_lab.simulation.virtual_time import CountedClock

#: Programs that print something and end.
SHORT_TOOLS = frozenset(
    {
        "cat",
        "date",
        "env",
        "hostname",
        "id",
        "ls",
        "mkdir",
        "nvidia-smi",
        "printenv",
        "ps",
        "pwd",
        "set",
        "test",
        "touch",
    }
)

#: Images whose own command ends by itself, by a part of their name.
SHORT_IMAGES = ("vectoradd", "hello-world", "cuda-sample")

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_SHELLS = frozenset({"sh", "bash", "ash", "dash"})
_LOOP = re.compile(r"\b(while|until|for)\b")
_PIECES = re.compile(r"(&&|\|\||;|\n)")


class CommandBehaviour(msgspec.Struct, frozen=True, kw_only=True):
    """Behaviour of a command.

    Attributes:
        seconds: how long it runs; None for ever.
        exit_code: its exit code when it ends by itself.
        output: the lines it prints.
    """

    seconds: float | None
    exit_code: int = 0
    output: tuple[str, ...] = ()


def parse_command(image: str, argv: Sequence[str]) -> CommandBehaviour:
    """Returns the behaviour of a container with this command and these arguments.

    Args:
        image: the image's name, which decides if there is no command.
        argv: command and arguments after ``$(VAR)`` was expanded.
    """
    if not argv:
        if any(part in image for part in SHORT_IMAGES):
            return CommandBehaviour(seconds=1.0, output=(f"simulated: image {image} ends after 1 s",))
        return CommandBehaviour(seconds=None, output=(f"simulated: image {image} runs until it is stopped",))
    name = argv[0].rsplit("/", 1)[-1]
    if name in _SHELLS and len(argv) > 2 and argv[1].startswith("-") and argv[1].endswith("c"):
        return _parse_script(argv[2])
    return _parse_simple(argv, last=True)


def _parse_simple(argv: Sequence[str], *, last: bool) -> CommandBehaviour:
    name, rest = argv[0].rsplit("/", 1)[-1], argv[1:]
    match name:
        case "sleep":
            return _parse_sleep(rest)
        case "true" | ":":
            return CommandBehaviour(seconds=0)
        case "false":
            return CommandBehaviour(seconds=0, exit_code=1)
        case "exit":
            return CommandBehaviour(seconds=0, exit_code=int(rest[0]) % 256 if rest and rest[0].isdigit() else 0)
        case "echo":
            return CommandBehaviour(seconds=0, output=(" ".join(rest),))
        case "exec" if rest:
            return _parse_simple(rest, last=True)
        case _ if name in SHORT_TOOLS or not last:
            return CommandBehaviour(seconds=0, output=(f"simulated: {shlex.join(argv)}",))
        case _:
            return CommandBehaviour(seconds=None, output=(f"simulated: {shlex.join(argv)} runs until it is stopped",))


def _parse_sleep(arguments: Sequence[str]) -> CommandBehaviour:
    total = 0.0
    for text in arguments:
        if text == "infinity":
            return CommandBehaviour(seconds=None)
        unit = _UNITS.get(text[-1:], 0)
        try:
            total += float(text[:-1]) * unit if unit else float(text)
        except ValueError:
            return CommandBehaviour(seconds=0, exit_code=1, output=(f"sleep: invalid time interval '{text}'",))
    if not arguments:
        return CommandBehaviour(seconds=0, exit_code=1, output=("sleep: missing operand",))
    return CommandBehaviour(seconds=total)


def _parse_script(text: str) -> CommandBehaviour:
    if _LOOP.search(text):
        return CommandBehaviour(seconds=None, output=("simulated: a script with a loop runs until it is stopped",))
    seconds, code = 0.0, 0
    output: list[str] = []
    pieces = [piece.strip(" \t") for piece in _PIECES.split(text)]
    for index in range(0, len(pieces), 2):
        joint = pieces[index - 1] if index else ";"
        if not pieces[index] or (joint == "&&" and code) or (joint == "||" and not code):
            continue
        try:
            words = shlex.split(pieces[index], comments=True)
        except ValueError as error:
            return CommandBehaviour(seconds=seconds, exit_code=2, output=(*output, f"sh: syntax error: {error}"))
        if not words:
            continue
        step = _parse_simple(words, last=not any(pieces[index + 1 :]))
        output += step.output
        if step.seconds is None:
            return CommandBehaviour(seconds=None, output=tuple(output))
        seconds, code = seconds + step.seconds, step.exit_code
        if words[0] == "exit":
            break
    return CommandBehaviour(seconds=seconds, exit_code=code, output=tuple(output))


Json = Mapping[str, Any]

#: Environment variables that list a container's GPUs.
DEVICE_VARIABLES = ("NVIDIA_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES")


class CreatedContainer(msgspec.Struct, frozen=True, kw_only=True):
    """A created container that has not started."""

    image: str
    argv: tuple[str, ...]
    env: Mapping[str, str]


class ContainerRuntime:
    """The containers of one node.

    Args:
        clock: the node's time; its ``pending`` counts waits that end by themselves.
        cdi: the node's CDI devices.
        processes: the processes on the node's cards; None for a node without GPUs.
        gpu_memory: bytes that a process takes on each MIG device.
        images: the node's images.

    Attributes:
        images: the node's images.
    """

    def __init__(
        self,
        *,
        clock: CountedClock,
        cdi: CdiRegistry,
        processes: GpuProcesses | None,
        gpu_memory: int,
        images: NodeImages,
    ) -> None:
        self._clock = clock
        self._cdi = cdi
        self._processes = processes
        self._gpu_memory = gpu_memory
        self.images = images

    def create(
        self, image: str, argv: Sequence[str], env: Mapping[str, str], allocations: Sequence[ContainerAllocateResponse]
    ) -> CreatedContainer:
        """Creates a container.

        Args:
            image: its image.
            argv: command and arguments, expanded.
            env: environment from the pod's spec.
            allocations: Allocate responses of device plugins for it.

        Raises:
            CdiError: a CDI device does not exist.
        """
        merged: dict[str, str] = {}
        names: list[str] = []
        for allocation in allocations:
            merged |= allocation.envs
            names += allocation.cdi_devices
        edits: CdiEdits = self._cdi.edits(names)
        return CreatedContainer(image=image, argv=tuple(argv), env={**merged, **env, **edits.env})

    def log_head(self, created: CreatedContainer) -> list[str]:
        """Returns the first lines of a simulated container's log: that it is simulated, its devices and variables."""
        lines = [f"{name}={created.env[name]}" for name in sorted(created.env)]
        return [f"simulated container, image {created.image}, command {list(created.argv)}", *lines]

    async def run(self, created: CreatedContainer, owner: ContainerOwner, log: Callable[[str], None]) -> int:
        """Runs a simulated container to its end and returns its exit code; cancel it to stop it.

        Args:
            created: the container.
            owner: its pod and name.
            log: adds a line to its log.

        Raises:
            NvmlError: a MIG device that it sees does not exist, or no driver is loaded.
            MemoryError: a MIG device has too little memory left.
        """
        does = parse_command(created.image, created.argv)
        for line in does.output:
            log(line)
        devices = visible_devices(created.env)
        if self._processes is None or not devices:
            await self._wait(does.seconds)
            return does.exit_code
        resource = mps_resource(created.env)
        with self._processes.running(owner, devices, self._gpu_memory, resource) as container:
            work = asyncio.ensure_future(self._wait(does.seconds))
            try:
                await asyncio.wait((work, container.ended), return_when=asyncio.FIRST_COMPLETED)
            finally:
                work.cancel()
            if resource and container.ended.done():
                log(f"simulated: the MPS daemon of {resource} is gone, or a signal came")
            return container.ended.result() if container.ended.done() else does.exit_code

    async def _wait(self, seconds: float | None) -> None:
        """Waits as long as a command runs; None for ever."""
        if seconds is None:
            await asyncio.Event().wait()
        elif seconds:
            await self._clock.sleep(seconds)


def visible_devices(env: Mapping[str, str], *prefixes: str) -> tuple[str, ...]:
    """Returns the UUIDs of cards and MIG devices in a container's environment; with prefixes, those that match one."""
    for name in DEVICE_VARIABLES:
        uuids = tuple(each for each in env.get(name, "").split(",") if each.startswith(prefixes or ("GPU-", "MIG-")))
        if uuids:
            return uuids
    return ()


def mps_resource(env: Mapping[str, str]) -> str:
    """Returns the resource whose MPS daemon a container is a client of; empty for none."""
    path = env.get(PIPE_VARIABLE, "")
    return path.removeprefix(f"{CONTAINER_ROOT}/").removesuffix("/pipe") if path else ""
