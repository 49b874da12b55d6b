"""Finds the node's driver, decides if it may be used, and opens it.

Rules:

1. A replacement of the driver goes first: while the node's label asks for a pause, nothing uses a card.
2. A driver container reports by its marker that it is ready, and only then is its library used. Where such a container
   is expected (by the node's label, or by files below the driver root), a library of the host does not count: it would
   be left from the earlier container.
3. A validation concerns one driver. A marker that names another driver container, or that names none and is older than
   the container's own, concerns the earlier driver.
"""

import logging
from enum import Enum
from pathlib import Path
from typing import Literal, Protocol

import msgspec

from tessera.agent.base.node_files import MarkerFile, MarkerId
from tessera.agent.base.settings import ValidationMode
from tessera.agent.base.wake_ups import ChangeNotifier, Fact
from tessera.clock import Clock
from tessera.kubelet.inotify import watch_folder
from tessera.nvml.asynchronous import AsyncNvml, ThreadedNvml
from tessera.nvml.errors import LIBRARY_NOT_FOUND, DriverMismatch, NvmlError
from tessera.nvml.real.device_nodes import list_driver_nodes, make_nodes
from tessera.nvml.real.library import find_library
from tessera.nvml.real.real_nvml import RealNvml


class DriverHome(Enum):
    """The source of the driver: the host, or a driver container."""

    HOST = "host"
    CONTAINER = "container"


Reason = Literal[
    "WaitingForDriver",
    "WaitingForToolkit",
    "WaitingForValidation",
    "PausedForDriver",
    "NvmlFailed",
    "StateOfNewerVersion",
]


class WaitReason(msgspec.Struct, frozen=True):
    """Reason that the cards cannot be used yet: ``reason`` for machines, ``message`` for people."""

    reason: Reason
    message: str


class DriverFound(msgspec.Struct, frozen=True):
    """A driver that may be opened.

    Attributes:
        home: the source of the driver.
        container: the marker of the container that brought it; ``None`` for the host's.
    """

    home: DriverHome
    container: MarkerId | None = None


class DriverFacts(msgspec.Struct, frozen=True, kw_only=True):
    """Facts that the agent can see without the driver.

    Attributes:
        paused: true if the node's label asks every process to release the cards.
        managed: true if the node's driver comes in a container.
        container: the marker of a driver container that is ready.
        library: true if the driver's library is below the driver root.
        toolkit: the marker of the container runtime that knows the cards.
        validated: the marker of the validation.
        driver_root: the driver root, for messages.
    """

    paused: bool = False
    managed: bool = False
    container: MarkerId | None = None
    library: bool = False
    toolkit: MarkerFile | None = None
    validated: MarkerFile | None = None
    driver_root: str = ""


def find_driver(facts: DriverFacts) -> DriverFound | WaitReason:
    """The driver that may be opened now, or the reason that there is none."""
    if facts.paused:
        return WaitReason("PausedForDriver", "the driver is being replaced: no card is advertised and NVML is closed")
    if facts.container is not None:
        if facts.library:
            return DriverFound(DriverHome.CONTAINER, facts.container)
        text = (
            f"the driver container is ready, but {facts.driver_root} has no libnvidia-ml.so.1: its files do not reach"
            " this container; the host's /run must be a shared mount (mount --make-rshared /run)"
        )
        return WaitReason("WaitingForDriver", text)
    if facts.managed or facts.library:
        return WaitReason("WaitingForDriver", "the driver container is not ready yet")
    return DriverFound(DriverHome.HOST)


def is_still_usable(found: DriverFound, facts: DriverFacts) -> bool:
    """True if an open driver may still be used."""
    return not facts.paused and facts.container == found.container


def check_validation(found: DriverFound, facts: DriverFacts, mode: ValidationMode) -> WaitReason | None:
    """Reason that the cards of an open driver may not be advertised yet; ``None`` if they may."""
    if mode is ValidationMode.NEVER or (mode is ValidationMode.AUTO and found.home is DriverHome.HOST):
        return None
    if _about(found, facts.validated):
        return None
    if facts.validated is not None:
        return WaitReason("WaitingForValidation", "the last validation was of another driver; waiting for a new one")
    if _about(found, facts.toolkit):
        return WaitReason("WaitingForValidation", "no program has been run on the cards yet; tessera validate does it")
    return WaitReason("WaitingForToolkit", "the driver works; the container runtime does not know the cards yet")


def _about(found: DriverFound, mark: MarkerFile | None) -> bool:
    """True if a marker concerns this driver."""
    return mark is not None and (found.container is None or mark.is_about(found.container))


_log = logging.getLogger(__name__)

#: The control device; it exists as soon as a driver of the host can be used.
CONTROL_DEVICE = "nvidiactl"


class DriverBackend(Protocol):
    """A node's driver."""

    def has_library(self) -> bool:
        """True if the driver's library is below the driver root."""
        ...

    def module(self) -> str:
        """Identifies the kernel module that is loaded; empty if none is."""
        ...

    def nvml(self, home: DriverHome) -> AsyncNvml:
        """The driver's NVML, not opened yet."""
        ...

    def root(self, home: DriverHome) -> Path | None:
        """Root of the driver's files, as this process sees it; ``None`` if they are in the usual places."""
        ...

    def needs_new_process(self, error: NvmlError) -> bool:
        """True if only a new process can open a driver of the host that refused with this error."""
        ...

    async def watch(self, changes: ChangeNotifier) -> None:
        """Notifies ``changes`` when a driver of the host may have appeared, until cancelled."""
        ...


class MachineDriver:
    """The machine's own driver.

    Args:
        root: folder in which a driver container shows its files.
        clock: the time.
        dev: the host's ``/dev``.
        proc: the host's ``/proc``.
    """

    def __init__(self, root: Path, clock: Clock, *, dev: Path = Path("/dev"), proc: Path = Path("/proc")) -> None:
        self._root = root
        self._clock = clock
        self._dev = dev
        self._proc = proc

    def has_library(self) -> bool:
        """See :meth:`DriverBackend.has_library`."""
        return find_library(self._root) is not None

    def module(self) -> str:
        """See :meth:`DriverBackend.module`; a module that is loaded again makes its control device again."""
        try:
            status = (self._dev / CONTROL_DEVICE).stat()
        except OSError:  # not there
            return ""
        return f"{status.st_dev}-{status.st_ino}"

    def nvml(self, home: DriverHome) -> AsyncNvml:
        """See :meth:`DriverBackend.nvml`. Opening it makes device nodes that a driver container made for itself."""
        return ThreadedNvml(RealNvml if home is DriverHome.HOST else self._of_container, self._clock)

    def root(self, home: DriverHome) -> Path | None:
        """See :meth:`DriverBackend.root`."""
        return self._root if home is DriverHome.CONTAINER else None

    def needs_new_process(self, error: NvmlError) -> bool:
        """The container runtime gives a container the host's library when it starts the container, and never later."""
        missing = error.code == LIBRARY_NOT_FOUND and self.module()
        return bool(missing) or isinstance(error, DriverMismatch)

    async def watch(self, changes: ChangeNotifier) -> None:
        """See :meth:`DriverBackend.watch`; watches the control device."""
        loaded: str | None = None
        async for _ in watch_folder(self._dev):
            before, loaded = loaded, self.module()
            if loaded != before:
                changes.notify(Fact.DRIVER)

    def _of_container(self) -> RealNvml:
        made = make_nodes(self._dev, list_driver_nodes(self._proc))
        if made:
            _log.info("made device nodes that the driver container had made only for itself: %s", ", ".join(made))
        tool = ("chroot", str(self._root), "nvidia-smi")
        return RealNvml(proc=self._proc, library=find_library(self._root), reset_tool=tool)
