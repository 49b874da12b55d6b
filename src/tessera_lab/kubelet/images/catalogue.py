"""Simulated images and registries: size, registry and program of each image.

A :class:`ImageCatalogue` stands for all registries of a simulated world. Its keys are whole references
(``registry.example/driver:525-5.14.0-rhcos4.13``) or patterns with ``*`` (``nvcr.io/nvidia/*``,
``registry.example/driver:525-*``). Rules:

* a repository that is named with tags has only these tags;
* a pattern without a tag stands for every tag of the repositories that it matches; of several patterns that match,
  the longest counts;
* every repository that is not named holds the image :attr:`Catalogue.unnamed`, so that a world need not list its
  ``busybox``;
* a reference by digest is the tag that has this digest.

Time to pull is ``latency + size / bandwidth + size / unpack``. Bandwidth is that of one node from one registry; the
model does not let nodes slow each other down.

Programs of images are coroutines that simulate a container, with time, cards and files of its node. A program reports
that it is healthy (:meth:`ProgramContext.ready`); kubelet's probes (:mod:`tessera_lab.kubelet.containers.probes`)
notice this at their next tick. Kubelet stops a program by cancelling it. The program's ``finally`` block is its preStop
hook and may wait on the context's clock until the pod's grace period is over. A machine that goes down does not wait
for programs.
"""

import asyncio
import hashlib
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

import msgspec

from tessera.driver.images import Outcome
from tessera.nvml.errors import NvmlError
from tessera_lab.kubelet.context import ContainerHost, PodIdentity
from tessera_lab.simulation.virtual_time import CountedClock

#: Exit code of a program that raised an unexpected error.
FAILED_EXIT = 1
_MIB = 1 << 20
#: Repositories of images that ask for all cards by their own variables: CUDA images of NVIDIA, and others made of them.
_CUDA_IMAGES = ("nvcr.io/nvidia/*", "*nvidia/cuda", "pytorch/pytorch", "vllm/vllm-openai", "*/pytorch/pytorch")
_CUDA_VARIABLES = {"NVIDIA_VISIBLE_DEVICES": "all", "NVIDIA_DRIVER_CAPABILITIES": "compute,utility"}


class ProgramHealth:
    """Health of a program, and the action of its startup probe.

    Attributes:
        ok: true if a probe would succeed now.
        on_started: called when the startup probe first succeeds.
    """

    def __init__(self) -> None:
        self.ok = False
        self.on_started: Callable[[], None] = lambda: None
        self._changed = asyncio.Event()

    def set(self, ok: bool) -> None:
        """Sets the result of later probes."""
        self.ok = ok
        self._changed.set()

    async def becomes(self, ok: bool) -> None:
        """Returns when a probe would have the result ``ok``."""
        while self.ok is not ok:
            self._changed.clear()
            await self._changed.wait()


class RunClock(CountedClock):
    """The clock of one run of a program; a sleep on it never ends once the machine went down.

    Attributes:
        stopped: true if the run is over; the program cannot continue.
    """

    stopped = False

    async def sleep(self, seconds: float) -> None:
        """See :meth:`.Clock.sleep`."""
        if self.stopped:
            raise asyncio.CancelledError
        await super().sleep(seconds)


@dataclass(frozen=True, kw_only=True)
class ProgramContext:
    """Context of a running program.

    Attributes:
        argv: command and arguments, ``$(VAR)`` expanded; empty for the image's own command.
        env: its environment.
        image: the reference that the pod's spec has.
        pod: the pod of the container.
        host: its node.
        clock: simulated time; a lab on virtual time may skip sleeps on it.
        log: adds a line to the container's log.
        health: see :meth:`ready` and :meth:`set_startup_hook`.
    """

    argv: tuple[str, ...]
    env: Mapping[str, str]
    image: str
    pod: PodIdentity
    host: ContainerHost
    clock: RunClock
    log: Callable[[str], None]
    health: ProgramHealth = field(default_factory=ProgramHealth)

    def ready(self, ok: bool = True) -> None:
        """Sets the result of later probes of the container."""
        self.health.set(ok)

    def set_startup_hook(self, hook: Callable[[], None]) -> None:
        """Sets the action of the container's startup probe at its first success, such as writing a marker."""
        self.health.on_started = hook


async def exit_code(program: Callable[[ProgramContext], Awaitable[int]], context: ProgramContext) -> int:
    """Runs a program to its end; after an unexpected error writes the reason to its log and returns 1."""
    try:
        return await program(context)
    except (NvmlError, OSError, ValueError) as error:
        context.log(f"simulated: {type(error).__name__}: {error}")
        return FAILED_EXIT


#: Program of an image: returns the container's exit code. Kubelet cancels it to stop the container, so its ``finally``
#: stands for a preStop hook.
ImageProgram = Callable[[ProgramContext], Awaitable[int]]


class SimulatedImage(msgspec.Struct, frozen=True, kw_only=True):
    """One image.

    Attributes:
        size_mib: size of its layers as transferred, MiB.
        program: runs in each of its containers; None: the container's command is simulated
            (:mod:`tessera_lab.kubelet.containers.runtime`).
        shared_mib: part of the size in layers that all images of its repository share; a node that has one of these
            images does not pull these layers again.
        architectures: the architectures that it exists for, as registries name them.
        has_tessera: the program runs Tessera's commands too; otherwise the lab runs them itself.
    """

    size_mib: float = 0.0
    program: ImageProgram | None = None
    shared_mib: float = 0.0
    architectures: tuple[str, ...] = ("amd64",)
    has_tessera: bool = False

    @property
    def size_bytes(self) -> int:
        """Its size in bytes."""
        return round(self.size_mib * _MIB)


def image_variables(reference: str) -> Mapping[str, str]:
    """The environment variables that an image sets (``ENV`` in the Dockerfiles of ``nvidia/cuda``)."""
    repository = repository_of(reference)
    return _CUDA_VARIABLES if any(fnmatchcase(repository, each) for each in _CUDA_IMAGES) else {}


class ImageCatalogue:
    """All registries of a simulated world; a push changes them.

    Args:
        images: by whole reference or repository pattern.
        bandwidth: MiB/s to one node by registry host (``quay.io``); other hosts have ``default_bandwidth``.
        default_bandwidth: MiB/s; 0 for no limit.
        unpack: MiB/s at which a node unpacks layers; 0 for no time.
        latency: seconds until a registry has answered with an image's manifest.
        unnamed: the image in every repository that is not named; None if such a repository does not exist.
    """

    def __init__(
        self,
        images: Mapping[str, SimulatedImage] | None = None,
        *,
        bandwidth: Mapping[str, float] | None = None,
        default_bandwidth: float = 0.0,
        unpack: float = 0.0,
        latency: float = 0.0,
        unnamed: SimulatedImage | None = SimulatedImage(),  # noqa: B008 - a frozen value
    ) -> None:
        self._tags: dict[str, SimulatedImage] = {}
        self._patterns: dict[str, SimulatedImage] = {}
        self._pushes: dict[str, int] = {}
        self._refusals: dict[str, Outcome] = {}
        self._bandwidth = dict(bandwidth or {})
        self._default_bandwidth = default_bandwidth
        self._unpack = unpack
        self.latency = latency
        self._unnamed = unnamed
        for reference, image in (images or {}).items():
            self.name(reference, image)

    def name(self, reference: str, image: SimulatedImage) -> None:
        """Adds an image under a whole reference or a pattern, as if it had always existed."""
        whole = _tag_of(reference) and "*" not in reference
        (self._tags if whole else self._patterns)[reference] = image

    def find(self, reference: str) -> SimulatedImage | None:
        """Returns the image that a pull of the reference gets; None if there is none."""
        found = self.find_image(reference)
        if found is not None:
            return found
        repository = repository_of(reference)
        tagged = [*self._tags, *(each for each in self._patterns if _tag_of(each))]
        known = any(fnmatchcase(repository, repository_of(each)) for each in tagged)
        return None if known else self._unnamed

    def find_image(self, reference: str) -> SimulatedImage | None:
        """Returns the image of a reference, if it or its repository is named."""
        repository = repository_of(reference)
        if "@" in reference:
            desired = reference.partition("@")[2]
            reference = next((each for each in self.tags(repository) if self.digest(each) == desired), reference)
        if reference in self._tags:
            return self._tags[reference]
        by_digest = "@" in reference
        matching = [
            each
            for each in self._patterns
            if fnmatchcase(repository, repository_of(each) if by_digest else each) or fnmatchcase(reference, each)
        ]
        return self._patterns[max(matching, key=len)] if matching else None

    def tags(self, repository: str) -> list[str]:
        """The whole references of a repository that are named."""
        return [each for each in self._tags if repository_of(each) == repository]

    def digest(self, reference: str) -> str:
        """Returns the present digest ``sha256:…`` of a reference; each push changes it."""
        if "@" in reference:
            return reference.partition("@")[2]
        text = f"{reference} {self._pushes.get(reference, 0)}"
        return "sha256:" + hashlib.sha256(text.encode()).hexdigest()

    def push(self, reference: str, image: SimulatedImage) -> None:
        """Pushes an image under a whole reference."""
        if not _tag_of(reference):
            raise ValueError(f"push of {reference!r}: a reference has a tag, registry/repository:tag")
        self._pushes[reference] = self._pushes.get(reference, -1) + 1
        self._tags[reference] = image

    def delete(self, reference: str) -> None:
        """Deletes a tag."""
        self._tags.pop(reference, None)

    def refuse(self, pattern: str, outcome: Outcome) -> None:
        """Sets the registries' answer for references that match the pattern, also for images that exist."""
        self._refusals[pattern] = outcome

    def allow(self, pattern: str) -> None:
        """Ends a :meth:`refuse`."""
        self._refusals.pop(pattern, None)

    def answer(self, reference: str, architecture: str) -> Outcome:
        """Returns a registry's answer to a query for an image of an architecture."""
        for pattern, outcome in self._refusals.items():
            if fnmatchcase(reference, pattern):
                return outcome
        image = self.find(reference)
        if image is None:
            return Outcome.NOT_FOUND
        return Outcome.FOUND if architecture in image.architectures else Outcome.WRONG_ARCHITECTURE

    def transfer_seconds(self, reference: str, mib: float) -> float:
        """Seconds to transfer this part of an image to one node and to unpack it."""
        rate = self._bandwidth.get(host_of(reference), self._default_bandwidth)
        return (mib / rate if rate else 0.0) + (mib / self._unpack if self._unpack else 0.0)


def repository_of(reference: str) -> str:
    """Registry and path without tag and digest."""
    name = reference.partition("@")[0]
    tag = _tag_of(name)
    return name[: -len(tag) - 1] if tag else name


def host_of(reference: str) -> str:
    """Returns the registry of a reference; ``docker.io`` if it names none."""
    first, slash, _ = reference.partition("/")
    return first if slash and ("." in first or ":" in first or first == "localhost") else "docker.io"


def _tag_of(reference: str) -> str:
    _, colon, tag = reference.partition("@")[0].rpartition(":")
    return tag if colon and "/" not in tag else ""
