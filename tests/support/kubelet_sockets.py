"""A kubelet process on unix sockets."""

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

from tessera_lab.kubelet.device_plugins.grpc_servers import PodResourcesServer, RegistrationServer
from tessera_lab.kubelet.devices.device_manager import DeviceManager


@contextlib.asynccontextmanager
async def serve_kubelet(kubelet: DeviceManager, folder: Path) -> AsyncIterator[None]:
    """Serves the sockets of a kubelet, ``kubelet.sock`` and ``pods.sock``, until the block ends."""
    async with (
        RegistrationServer(folder, kubelet.add_plugin),
        PodResourcesServer(folder / "pods.sock", kubelet),
    ):
        yield
