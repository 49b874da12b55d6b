"""The interface between the agent and the driver, and the machine's own driver.

It finds the driver and opens it; :mod:`tessera.agent.driver.driver_state` decides whether it may be used.
"""

import logging
from pathlib import Path
from typing import Protocol

from tessera.agent.base.change_notifier import ChangeNotifier, Fact
from tessera.agent.driver.driver_state import DriverHome
from tessera.clock import Clock
from tessera.kubelet.inotify import watch_folder
from tessera.nvml.asynchronous.async_nvml import AsyncNvml
from tessera.nvml.asynchronous.threaded import ThreadedNvml
from tessera.nvml.errors import LIBRARY_NOT_FOUND, DriverMismatch, NvmlError
from tessera.nvml.real.device_nodes import list_driver_nodes, make_nodes
from tessera.nvml.real.library import find_library
from tessera.nvml.real.real_nvml import RealNvml

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
