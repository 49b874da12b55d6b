"""Endpoints for device plugins of a node: in this process, or unix sockets in the node's folders as on a real node."""

import asyncio
import shutil
from contextlib import AsyncExitStack
from pathlib import Path

from tessera.clock import Clock
from tessera_lab.kubelet.context import GrpcPlugins, InProcessPlugins
from tessera_lab.kubelet.device_plugins.claim_client import ClaimDrivers, ClaimRegistry
from tessera_lab.kubelet.devices.checkpoint import (
    Checkpoint,
    ClaimCheckpoint,
    FileCheckpoint,
    FileClaimCheckpoint,
    MemoryCheckpoint,
    MemoryClaimCheckpoint,
)
from tessera_lab.kubelet.devices.device_manager import DeviceManager


class PluginEndpoints:
    """One node's endpoints for device plugins, and the plugins' files.

    Args:
        plugins: how they connect.
        clock: for the pauses after a driver's failed registration.
    """

    def __init__(self, plugins: InProcessPlugins | GrpcPlugins, clock: Clock) -> None:
        self._plugins, self._clock = plugins, clock
        self._stack: AsyncExitStack | None = None

    def checkpoint(self) -> Checkpoint:
        """The checkpoint of the device manager's ledger."""
        folders = self._plugins.directories
        return MemoryCheckpoint() if folders is None else FileCheckpoint(folders.plugins)

    def cdi_folders(self) -> list[Path]:
        """The folders of CDI files."""
        match self._plugins:
            case InProcessPlugins():
                return [self._plugins.cdi] if self._plugins.cdi else []
            case GrpcPlugins():
                return [self._plugins.directories.cdi]

    def markers(self) -> Path | None:
        """The folder where parts of the driver stack write marker files."""
        match self._plugins:
            case InProcessPlugins():
                return self._plugins.validations
            case GrpcPlugins():
                return self._plugins.directories.validations

    def lose_memory(self) -> None:
        """Deletes the content of ``/run``, CDI files and markers among it, as the node went down."""
        for folder in self.cdi_folders():
            for path in folder.glob("*.json"):
                path.unlink()
        markers = self.markers()
        for path in markers.iterdir() if markers is not None else ():
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink()

    async def open(self, devices: DeviceManager, drivers: ClaimDrivers) -> None:
        """Starts to accept registrations of plugins and drivers, and to answer pod-resources."""
        match self._plugins:
            case InProcessPlugins():
                self._plugins.bus.start(devices.add_plugin, devices, drivers)
            case GrpcPlugins():
                from tessera_lab.kubelet.device_plugins.grpc_servers import (
                    PodResourcesServer,
                    RegistrationServer,
                )

                directories = self._plugins.directories
                self._stack = AsyncExitStack()
                socket = directories.pod_resources / "kubelet.sock"
                await self._stack.enter_async_context(PodResourcesServer(socket, devices))
                await self._stack.enter_async_context(RegistrationServer(directories.plugins, devices.add_plugin))
                registry = asyncio.create_task(ClaimRegistry(directories.registry, drivers, self._clock).run())
                self._stack.push_async_callback(_end, registry)

    def claim_checkpoint(self) -> ClaimCheckpoint:
        """The checkpoint of prepared claims."""
        folders = self._plugins.directories
        return MemoryClaimCheckpoint() if folders is None else FileClaimCheckpoint(folders.root)

    async def shut(self) -> None:
        """Stops serving; does nothing if it is not open."""
        if isinstance(self._plugins, InProcessPlugins):
            self._plugins.bus.stop()
        stack, self._stack = self._stack, None
        if stack is not None:
            await stack.aclose()


async def _end(task: "asyncio.Task[None]") -> None:
    task.cancel()
    await asyncio.wait([task])
