"""Kubelet's checks before it accepts a plugin, and its changes to the plugins' folder."""

import asyncio
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

from tessera.kubelet.proto import deviceplugin_pb2 as dp
from tessera.kubelet.sockets import is_listening
from tessera.kubelet.wire import REGISTER
from tessera_lab.kubelet.device_plugins.grpc_servers import RegistrationServer
from tessera_lab.kubelet.device_plugins.plugin_client import is_extended_resource_name


@pytest.mark.parametrize(
    ("name", "legal"),
    [
        ("nvidia.com/gpu", True),
        ("nvidia.com/mig-1g.24gb.me.all", True),
        ("nvidia.com/mig-1g.24gb-me", True),
        ("nvidia.com/mig-1g.5gb+me", False),
        ("mig-3g.20gb", False),
        ("kubernetes.io/batteries", False),
        ("storage.kubernetes.io/x", False),
        ("requests.nvidia.com/gpu", False),
        ("nvidia.com/", False),
        ("nvidia.com/" + "a" * 63, True),
        ("nvidia.com/" + "a" * 64, False),
    ],
)
def test_a_plugin_offers_an_extended_resource(name: str, legal: bool) -> None:
    assert is_extended_resource_name(name) is legal


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize(
    ("request_", "reason"),
    [
        (dp.RegisterRequest(version="v1", endpoint="x.sock", resource_name="nvidia.com/gpu"), "version"),
        (dp.RegisterRequest(version="v1beta1", endpoint="x.sock", resource_name="gpu"), "extended resource"),
        (dp.RegisterRequest(version="v1beta1", endpoint="x.sock", resource_name="nvidia.com/gpu"), "does not answer"),
    ],
)
async def test_kubelet_refuses(folder: Path, manager: Any, request_: dp.RegisterRequest, reason: str) -> None:
    async with (
        RegistrationServer(folder, manager),
        grpc.aio.insecure_channel(f"unix:{folder}/kubelet.sock") as channel,
    ):
        with pytest.raises(grpc.aio.AioRpcError, match=reason):
            await REGISTER.unary(channel)(request_)
    assert manager.attempts == 0


async def test_kubelet_empties_its_folder_but_for_the_checkpoint(folder: Path, manager: Any) -> None:
    for name in ("kubelet_internal_checkpoint", "nvidia-gpu.sock", "kubelet.sock"):
        (folder / name).touch()
    async with RegistrationServer(folder, manager):
        assert names(folder) == ["kubelet.sock", "kubelet_internal_checkpoint"]


@pytest.mark.parametrize("steps", [1, 2, 3])
async def test_a_server_that_is_cancelled_at_its_start_does_not_listen(folder: Path, manager: Any, steps: int) -> None:
    async def serve() -> None:
        async with RegistrationServer(folder, manager):
            await asyncio.Event().wait()

    serving = asyncio.create_task(serve())
    for _ in range(steps):
        await asyncio.sleep(0)
    serving.cancel()
    await asyncio.wait({serving})
    assert not is_listening(folder / "kubelet.sock")
