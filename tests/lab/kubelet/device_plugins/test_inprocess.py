"""Agent and kubelet in one process: the same registrations, restarts and answers as over sockets."""

import asyncio
from typing import Any

import pytest

from tessera.kubelet.interfaces import Kubelet, PluginError, PodResources
from tessera_lab.kubelet.device_plugins.inprocess import InProcessKubelet

RESOURCE = "nvidia.com/mig-3g.20gb"


async def ended(task: "asyncio.Task[None]") -> None:
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_a_plugin_registers_as_soon_as_kubelet_is_up(plugin: Any, manager: Any, pods: Any) -> None:
    bus = InProcessKubelet()
    kubelet: Kubelet = bus
    serving = asyncio.create_task(kubelet.serve(plugin))
    with pytest.raises(ConnectionError, match="kubelet is down"):
        await kubelet.pod_resources()
    bus.start(manager, pods)
    client = await manager.registered()
    assert manager.options[RESOURCE] == plugin.options
    assert len(await client.allocate([("a",)])) == 1
    pods.pods = [PodResources(name="p", namespace="n")]
    assert await kubelet.pod_resources() == pods.pods
    await ended(serving)


async def test_a_restarted_kubelet_gets_every_plugin_again(make_plugin: Any, manager: Any, pods: Any) -> None:
    bus = InProcessKubelet()
    names = [RESOURCE, "nvidia.com/mig-1g.5gb"]
    tasks = [asyncio.create_task(bus.serve(make_plugin(name))) for name in names]
    bus.start(manager, pods)
    old = [await manager.registered(1, name) for name in names]
    bus.stop()
    bus.start(manager, pods)
    for name, before in zip(names, old, strict=True):
        client = await manager.registered(2, name)
        assert client is not before
        await client.allocate([("a",)])
        with pytest.raises(ConnectionError):
            await before.allocate([("a",)])
    for task in tasks:
        await ended(task)


async def test_a_plugin_that_ends_hangs_up(plugin: Any, manager: Any, pods: Any) -> None:
    bus = InProcessKubelet()
    bus.start(manager, pods)
    serving = asyncio.create_task(bus.serve(plugin))
    client = await manager.registered()
    lists = client.list_and_watch()
    await anext(lists)
    await ended(serving)
    with pytest.raises(ConnectionError, match="it ended"):
        await anext(lists)


async def test_a_refused_plugin_is_told(plugin: Any, manager: Any, pods: Any) -> None:
    bus = InProcessKubelet()
    manager.refuse = "not today"
    bus.start(manager, pods)
    with pytest.raises(PluginError, match=r"kubelet refused nvidia\.com/mig-3g\.20gb: not today"):
        await bus.serve(plugin)


async def test_a_plugin_has_kubelets_thirty_seconds(
    plugin: Any, manager: Any, pods: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tessera_lab.kubelet.device_plugins.inprocess.PRE_START_TIMEOUT", 0.01)
    plugin.ready.clear()
    bus = InProcessKubelet()
    bus.start(manager, pods)
    serving = asyncio.create_task(bus.serve(plugin))
    client = await manager.registered()
    with pytest.raises(PluginError, match="not done after"):
        await client.pre_start_container(["a"])
    await ended(serving)
