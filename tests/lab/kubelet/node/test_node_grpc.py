"""The same device manager behind kubelet's real sockets."""

import asyncio
import random
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tessera.clock import SystemClock
from tessera.kube.client import Client
from tessera.kube.resources import NODES, PODS
from tessera.kubelet.grpc import GrpcKubelet
from tessera_lab.apiserver.interfaces import UserInfo
from tessera_lab.apiserver.main.inprocess_transport import InProcessTransport
from tessera_lab.apiserver.main.server import ApiServer
from tessera_lab.kubelet.context import GrpcPlugins, NodeDirectories
from tessera_lab.kubelet.node.node import SimulatedNode

RESOURCE = "nvidia.com/mig-1g.5gb"


async def until(happens: Callable[[], Any]) -> None:
    async with asyncio.timeout(60):
        while not await happens():  # noqa: ASYNC110 - real sockets and real time: nothing tells when
            await asyncio.sleep(0.01)


async def test_a_plugin_joins_over_unix_sockets_and_survives_a_restart_of_kubelet(slices: Callable[..., Any]) -> None:
    clock = SystemClock()
    server = ApiServer(clock)
    user = UserInfo(name="n1", groups=("system:masters",))
    client = Client(InProcessTransport(server, user), field_manager="n1", clock=clock)

    async def allocatable() -> str | None:
        node = await client.get(NODES.as_dicts(), "n1")
        found: str | None = node["status"]["allocatable"].get(RESOURCE)
        return found

    async def running(name: str) -> bool:
        pod = await client.get(PODS.as_dicts(), name, "default")
        return bool(pod["status"]["phase"] == "Running")

    async def create(name: str) -> None:
        container = {"name": "c", "image": "app", "resources": {"limits": {RESOURCE: "1"}}}
        body = {"metadata": {"name": name}, "spec": {"nodeName": "n1", "containers": [container]}}
        await client.create(PODS.as_dicts(), body, "default")

    with TemporaryDirectory(prefix="k") as folder:
        directories = NodeDirectories.under(Path(folder))
        plugin = slices("a", "b")
        node = SimulatedNode(
            "n1", client, plugins=GrpcPlugins(directories=directories), clock=clock, rng=random.Random(1)
        )
        kubelet = GrpcKubelet(directories.plugins, directories.pod_resources / "kubelet.sock", clock=clock)
        tasks = [asyncio.create_task(node.run())]
        await until(lambda: _registered(client))
        tasks.append(asyncio.create_task(kubelet.serve(plugin)))
        try:
            await until(lambda: _equals(allocatable, "2"))
            await create("p")
            await until(lambda: running("p"))
            assert (directories.plugins / "kubelet_internal_checkpoint").exists()
            (listed,) = await kubelet.pod_resources()
            assert listed.containers[0].devices[0].device_ids == plugin.allocated[0]
            await node.restart_kubelet()
            await until(lambda: _equals(allocatable, "2"))
            await create("q")
            await until(lambda: running("q"))
            assert sorted(plugin.allocated) == [("a",), ("b",)]
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


async def _equals(read: Callable[[], Any], value: object) -> bool:
    return bool(await read() == value)


async def _registered(client: Client) -> bool:
    return bool((await client.list(NODES)).items)
