"""Plugins over real sockets: registration, calls, restarts."""

import asyncio
import os
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tessera.clock import SystemClock
from tessera.kubelet.grpc import FIRST_PAUSE, REGISTERED, GrpcKubelet
from tessera.kubelet.interfaces import (
    ContainerAllocateResponse,
    ContainerDevices,
    ContainerResources,
    Device,
    PluginError,
    PluginOptions,
    PodResources,
    PreferredRequest,
)
from tessera.kubelet.sockets import KUBELET_SOCKET
from tessera_lab.kubelet.device_plugins.grpc_servers import PodResourcesServer, RegistrationServer

RESOURCE = "nvidia.com/mig-3g.20gb"


@asynccontextmanager
async def serving(folder: Path, plugin: Any) -> AsyncIterator[GrpcKubelet]:
    kubelet = GrpcKubelet(folder, folder / "pods.sock", clock=SystemClock())
    task = asyncio.create_task(kubelet.serve(plugin))
    try:
        yield kubelet
    finally:
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task


def sockets(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.glob("tessera-*"))


async def test_a_plugin_registers_with_its_options_and_is_asked_over_its_own_socket(
    folder: Path, plugin: Any, manager: Any
) -> None:
    async with RegistrationServer(folder, manager), serving(folder, plugin):
        client = await manager.registered()
        assert manager.options[RESOURCE] == PluginOptions(
            pre_start_required=True, get_preferred_allocation_available=True
        )
        assert await client.options() == plugin.options
        request = PreferredRequest(available=("a", "b", "c"), must_include=("m",), size=2)
        assert await client.get_preferred_allocation([request]) == [("m", "c")]
        assert await client.allocate([("a", "b"), ()]) == [
            ContainerAllocateResponse(cdi_devices=("tessera.dev/mig=a", "tessera.dev/mig=b")),
            ContainerAllocateResponse(),
        ]
        await client.pre_start_container(["a"])


async def test_kubelet_sees_the_full_list_again_after_every_change(folder: Path, plugin: Any, manager: Any) -> None:
    async with RegistrationServer(folder, manager), serving(folder, plugin):
        client = await manager.registered()
        lists = client.list_and_watch()
        assert await anext(lists) == (Device(id="GPU-1:3g.20gb:0"), Device(id="GPU-1:3g.20gb:4", healthy=False))
        plugin.set_devices(Device(id="GPU-2:3g.20gb:0", numa_nodes=(1,)))
        assert await anext(lists) == (Device(id="GPU-2:3g.20gb:0", numa_nodes=(1,)),)
        plugin.set_devices()
        assert await anext(lists) == ()
        await lists.aclose()


async def test_the_next_plugin_of_a_resource_registers_when_the_one_before_has_ended(
    folder: Path, make_plugin: Any, manager: Any
) -> None:
    """The older plugin's end cannot close a running call of the newer one: they are never both registered."""
    async with RegistrationServer(folder, manager), serving(folder, make_plugin(RESOURCE, Device(id="old"))) as kubelet:
        older = await manager.registered(1)
        newer_plugin = make_plugin(RESOURCE, Device(id="new"))
        other_plugin = make_plugin("nvidia.com/gpu", Device(id="other"))
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(kubelet.serve(each)) for each in (newer_plugin, other_plugin)]
            await manager.registered(1, "nvidia.com/gpu")
            assert manager.registrations == [RESOURCE, "nvidia.com/gpu"]
            assert await anext(older.list_and_watch()) == (Device(id="old"),)
            for task in tasks:
                task.cancel()


async def test_a_plugin_takes_its_turn_as_the_one_before_ends(folder: Path, make_plugin: Any, manager: Any) -> None:
    async with RegistrationServer(folder, manager):
        async with serving(folder, make_plugin(RESOURCE, Device(id="old"))) as kubelet:
            await manager.registered(1)
            newer = asyncio.create_task(kubelet.serve(make_plugin(RESOURCE, Device(id="new"))))
        client = await manager.registered(2)
        assert await anext(client.list_and_watch()) == (Device(id="new"),)
        newer.cancel()
        with pytest.raises(asyncio.CancelledError):
            await newer


async def test_a_refusal_carries_its_text(folder: Path, plugin: Any, manager: Any) -> None:
    plugin.refusal = "GPU-1:3g.20gb:0 is promised to another pod"
    async with RegistrationServer(folder, manager), serving(folder, plugin):
        client = await manager.registered()
        with pytest.raises(PluginError, match="promised to another pod"):
            await client.allocate([("GPU-1:3g.20gb:0",)])
        with pytest.raises(PluginError, match="promised to another pod"):
            await client.pre_start_container(["GPU-1:3g.20gb:0"])


async def test_calls_do_not_wait_for_each_other(folder: Path, plugin: Any, manager: Any) -> None:
    plugin.ready.clear()
    async with RegistrationServer(folder, manager), serving(folder, plugin):
        client = await manager.registered()
        waiting = asyncio.create_task(client.pre_start_container(["a"]))
        await plugin.waiting.wait()
        assert len(await client.allocate([("b",)])) == 1
        plugin.ready.set()
        await waiting


async def test_a_restarted_kubelet_gets_the_plugin_again_on_a_new_socket(
    folder: Path, plugin: Any, manager: Any
) -> None:
    async with serving(folder, plugin):
        async with RegistrationServer(folder, manager):
            before = await manager.registered(1)
            first = sockets(folder)
        async with RegistrationServer(folder, manager):
            client = await manager.registered(2)
            assert sockets(folder) != first
            assert len(sockets(folder)) == 1
            assert await client.options() == plugin.options
        await before.close()


async def test_a_plugin_waits_for_a_kubelet_that_is_not_up(folder: Path, plugin: Any, manager: Any) -> None:
    async with serving(folder, plugin) as kubelet:
        await asyncio.sleep(0)
        assert "kubelet is not running" in kubelet.registrations[RESOURCE]
        async with RegistrationServer(folder, manager):
            await manager.registered()


async def test_a_kubelet_that_comes_is_tried_again_at_once_however_long_the_last_one_was_away(
    folder: Path, plugin: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried, path = asyncio.Semaphore(0), folder / KUBELET_SOCKET
    loop, pauses = asyncio.get_running_loop(), list[float]()
    call_at = loop.call_at

    def noted(when: float, *rest: Any, **named: Any) -> asyncio.TimerHandle:
        pauses.append(when - loop.time())
        return call_at(when, *rest, **named)

    monkeypatch.setattr(loop, "call_at", noted)

    async def hang_up(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        tried.release()
        writer.close()

    gone = await asyncio.start_unix_server(hang_up, path)
    async with gone, serving(folder, plugin) as kubelet:
        for _ in range(4):
            await tried.acquire()
        pauses.clear()
        path.unlink()
        with socket.socket(socket.AF_UNIX) as named:
            named.bind(os.fspath(path))
            while "Connection refused" not in kubelet.registrations[RESOURCE]:  # noqa: ASYNC110 - nothing tells when
                await asyncio.sleep(0)
            assert pauses[-1] <= FIRST_PAUSE
            async with await asyncio.start_unix_server(hang_up, sock=named):
                await tried.acquire()


async def test_a_plugin_whose_socket_is_deleted_serves_and_registers_anew(
    folder: Path, plugin: Any, manager: Any
) -> None:
    async with RegistrationServer(folder, manager), serving(folder, plugin):
        await manager.registered(1)
        (folder / sockets(folder)[0]).unlink()
        client = await manager.registered(2)
        await client.allocate([("a",)])


async def test_the_old_server_answers_until_kubelet_has_taken_the_new_one(
    folder: Path, plugin: Any, manager: Any
) -> None:
    plugin.ready.clear()
    async with RegistrationServer(folder, manager), serving(folder, plugin):
        old = await manager.registered(1)
        container = asyncio.create_task(old.pre_start_container(["a"]))
        await plugin.waiting.wait()
        (folder / sockets(folder)[0]).unlink()
        await manager.registered(2)
        plugin.ready.set()
        await container
        await old.close()


async def test_a_plugin_registers_once_more_after_the_server_that_it_replaced_has_gone(
    folder: Path, plugin: Any, manager: Any
) -> None:
    async with RegistrationServer(folder, manager), serving(folder, plugin):
        lists = (await manager.registered(1)).list_and_watch()
        await anext(lists)
        (folder / sockets(folder)[0]).unlink()
        await manager.registered(2)
        with pytest.raises(ConnectionError):
            await anext(lists)
        replaced = sockets(folder)
        client = await manager.registered(3)
        assert sockets(folder) == replaced
        await client.allocate([("a",)])


async def test_a_plugin_registers_once_more_when_that_of_an_older_agent_ends(
    folder: Path, plugin: Any, make_plugin: Any, manager: Any
) -> None:
    async with RegistrationServer(folder, manager):
        async with serving(folder, plugin):
            await manager.registered(1)
            newer = GrpcKubelet(folder, folder / "pods.sock", clock=SystemClock())
            task = asyncio.create_task(newer.serve(make_plugin()))
            await manager.registered(2)
        await (await manager.registered(3)).allocate([("a",)])
        task.cancel()
        await asyncio.wait([task])


async def test_a_plugin_that_kubelet_drops_registers_again(folder: Path, plugin: Any, manager: Any) -> None:
    async with RegistrationServer(folder, manager), serving(folder, plugin):
        client = await manager.registered(1)
        lists = client.list_and_watch()
        await anext(lists)
        await client.close()
        with pytest.raises(ConnectionError):
            await anext(lists)
        await manager.registered(2)


@pytest.fixture
def no_long_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    """A plugin that waits for the long pause before it registers fails the test by its timeout."""
    monkeypatch.setattr("tessera.kubelet.grpc.RENEWAL_PAUSE", 3_600.0)


@pytest.mark.usefixtures("no_long_pause")
@pytest.mark.parametrize("hangs_up", [True, False], ids=["hangs up", "only counts its devices as unhealthy"])
async def test_the_next_agent_registers_again_at_once_with_a_kubelet_that_drops_it_as_the_one_before_ends(
    folder: Path, plugin: Any, make_plugin: Any, manager: Any, hangs_up: bool
) -> None:
    """Kubelets before the repair of kubernetes #121994 know a plugin by its resource; till then, they fail pods."""
    async with RegistrationServer(folder, manager):
        async with serving(folder, plugin):
            await manager.registered(1)
            newer = GrpcKubelet(folder, folder / "pods.sock", clock=SystemClock())
            task = asyncio.create_task(newer.serve(make_plugin()))
            client = await manager.registered(2)
            lists = client.list_and_watch()
            await anext(lists)
        if hangs_up:
            await client.close()
        await (await manager.registered(3)).allocate([("a",)])
        task.cancel()
        await asyncio.wait([task])


@pytest.mark.usefixtures("no_long_pause")
async def test_a_plugin_that_kubelet_drops_again_and_again_pauses(folder: Path, plugin: Any, manager: Any) -> None:
    async with RegistrationServer(folder, manager), serving(folder, plugin):
        for number in (1, 2):
            client = await manager.registered(number)
            lists = client.list_and_watch()
            await anext(lists)
            await client.close()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.5):
                await manager.registered(3)


async def test_a_refused_plugin_says_why_and_tries_again(folder: Path, plugin: Any, manager: Any) -> None:
    manager.refuse = "not today"
    async with RegistrationServer(folder, manager), serving(folder, plugin) as kubelet:
        await manager.attempted(2)
        assert "not today" in kubelet.registrations[RESOURCE]
        manager.refuse = None
        client = await manager.registered()
        await client.options()
        async with asyncio.timeout(60):  # kubelet's answer comes after kubelet has noted the registration
            while kubelet.registrations[RESOURCE] != REGISTERED:  # noqa: ASYNC110 - nothing tells when
                await asyncio.sleep(0)


async def test_plugins_of_one_node_share_the_folder(folder: Path, make_plugin: Any, manager: Any) -> None:
    names = [f"nvidia.com/mig-{n}g.{5 * n}gb" for n in range(1, 8)]
    kubelet = GrpcKubelet(folder, folder / "pods.sock", clock=SystemClock())
    async with RegistrationServer(folder, manager):
        tasks = [asyncio.create_task(kubelet.serve(make_plugin(name))) for name in names]
        for name in names:
            assert await (await manager.registered(1, name)).options() == PluginOptions(
                pre_start_required=True, get_preferred_allocation_available=True
            )
        assert len(sockets(folder)) == len(names)
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
    assert sockets(folder) == []
    assert dict(kubelet.registrations) == {}


async def test_a_plugin_that_ends_hangs_up_on_kubelet_and_leaves_no_socket(
    folder: Path, plugin: Any, manager: Any
) -> None:
    async with RegistrationServer(folder, manager):
        async with serving(folder, plugin):
            client = await manager.registered()
            lists = client.list_and_watch()
            await anext(lists)
        with pytest.raises(ConnectionError):
            await anext(lists)
        with pytest.raises(ConnectionError):
            await client.allocate([("a",)])
    assert sockets(folder) == []


async def test_pod_resources_says_which_container_holds_what(folder: Path, pods: Any) -> None:
    held = ContainerDevices(resource_name=RESOURCE, device_ids=("GPU-1:3g.20gb:0", "GPU-1:3g.20gb:4"))
    pod = PodResources(
        name="vllm",
        namespace="ai",
        containers=(ContainerResources(name="main", devices=(held,)), ContainerResources(name="sidecar")),
    )
    pods.pods = [pod]
    kubelet = GrpcKubelet(folder, folder / "pods.sock", clock=SystemClock())
    async with PodResourcesServer(folder / "pods.sock", pods):
        assert await kubelet.pod_resources() == [pod]
    with pytest.raises(ConnectionError, match=r"pods\.sock"):
        await kubelet.pod_resources()


async def test_those_who_ask_pod_resources_at_once_share_an_answer(folder: Path, pods: Any) -> None:
    kubelet = GrpcKubelet(folder, folder / "pods.sock", clock=SystemClock())
    async with PodResourcesServer(folder / "pods.sock", pods):
        await asyncio.gather(*(kubelet.pod_resources() for _ in range(50)))
    assert pods.lists == 1
