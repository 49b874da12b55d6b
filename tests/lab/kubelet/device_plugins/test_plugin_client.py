"""A plugin answers kubelet alike over its socket and in the same process."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tessera.kubelet.interfaces import (
    ContainerAllocateResponse,
    Device,
    DeviceNode,
    Mount,
    PluginError,
    PreferredRequest,
)
from tessera.kubelet.plugin_server import PluginServer
from tessera_lab.kubelet.device_plugins.inprocess import InProcessPluginClient
from tessera_lab.kubelet.device_plugins.plugin_client import GrpcPluginClient, PluginClient


@pytest.fixture(params=["grpc", "direct"])
async def client(request: pytest.FixtureRequest, folder: Path, plugin: Any) -> AsyncIterator[PluginClient]:
    if request.param == "direct":
        direct = InProcessPluginClient(plugin)
        yield direct
        await direct.close()
        return
    server = PluginServer(plugin, folder / "plugin.sock", lambda: None)
    await server.start()
    over_socket = GrpcPluginClient(server.socket)
    yield over_socket
    await over_socket.close()
    await server.stop()


async def test_options(client: PluginClient, plugin: Any) -> None:
    assert await client.options() == plugin.options


async def test_every_change_brings_the_full_list(client: PluginClient, plugin: Any) -> None:
    lists = client.list_and_watch()
    assert [device.id for device in await anext(lists)] == ["GPU-1:3g.20gb:0", "GPU-1:3g.20gb:4"]
    changed = (Device(id="a", numa_nodes=(0, 1)), Device(id="b", healthy=False))
    plugin.set_devices(*changed)
    assert await anext(lists) == changed


async def test_several_streams_at_once(client: PluginClient, plugin: Any) -> None:
    one, two = client.list_and_watch(), client.list_and_watch()
    assert await anext(one) == await anext(two)
    plugin.set_devices()
    assert await anext(one) == await anext(two) == ()


async def test_preferences(client: PluginClient) -> None:
    requests = [
        PreferredRequest(available=("a", "b"), must_include=(), size=1),
        PreferredRequest(available=("c",), must_include=("c",), size=1),
    ]
    assert await client.get_preferred_allocation(requests) == [("b",), ("c",)]


async def test_everything_that_an_allocation_can_hold(client: PluginClient, plugin: Any) -> None:
    everything = ContainerAllocateResponse(
        envs={"NVIDIA_VISIBLE_DEVICES": "MIG-1"},
        mounts=(
            Mount(container_path="/c", host_path="/h"),
            Mount(container_path="/w", host_path="/w", read_only=False),
        ),
        device_nodes=(DeviceNode(container_path="/dev/nvidia0", host_path="/dev/nvidia0", permissions="rw"),),
        annotations={"a": "b"},
        cdi_devices=("tessera.dev/mig=GPU-1:3g.20gb:0",),
    )

    async def allocate(_requests: object) -> list[ContainerAllocateResponse]:
        return [everything]

    plugin.allocate = allocate
    assert await client.allocate([("a",)]) == [everything]


async def test_a_refusal_keeps_its_text(client: PluginClient, plugin: Any) -> None:
    plugin.refusal = "promised to another pod"
    with pytest.raises(PluginError, match=r"^promised to another pod$"):
        await client.allocate([("a",)])
    with pytest.raises(PluginError, match=r"^promised to another pod$"):
        await client.pre_start_container(["a"])


async def test_hanging_up_ends_running_calls(client: PluginClient, plugin: Any) -> None:
    plugin.ready.clear()
    starting = asyncio.create_task(client.pre_start_container(["a"]))
    lists = client.list_and_watch()
    await anext(lists)
    await plugin.waiting.wait()
    await client.close()
    with pytest.raises(ConnectionError):
        await starting
    with pytest.raises(ConnectionError):
        await anext(lists)
    with pytest.raises(ConnectionError):
        await client.allocate([("a",)])


async def test_a_caller_that_gives_up_is_cancelled_and_not_told_of_the_connection(
    client: PluginClient, plugin: Any
) -> None:
    plugin.ready.clear()
    starting = asyncio.create_task(client.pre_start_container(["a"]))
    await plugin.waiting.wait()
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    assert await client.options() == plugin.options


@pytest.mark.parametrize("client", ["grpc"], indirect=True)
async def test_an_error_in_the_plugin_reaches_kubelet(client: PluginClient, plugin: Any) -> None:
    async def broken(_requests: object) -> list[ContainerAllocateResponse]:
        raise RuntimeError("no such table")

    plugin.allocate = broken
    with pytest.raises(PluginError, match="no such table"):
        await client.allocate([("a",)])


async def test_nobody_at_the_socket(folder: Path) -> None:
    client = GrpcPluginClient(folder / "gone.sock")
    with pytest.raises(ConnectionError, match=r"gone\.sock does not answer GetDevicePluginOptions"):
        await client.options()
    await client.close()
