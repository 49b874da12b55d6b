"""Plugins that come and go: kubelet's device manager over clients of plain values."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any

from tessera.clock import SystemClock
from tessera.kubelet.interfaces import ContainerAllocateResponse, Device, PluginOptions, PreferredRequest
from tessera_lab.kubelet.devices.checkpoint import MemoryCheckpoint
from tessera_lab.kubelet.devices.device_manager import DeviceManager

RESOURCE = "nvidia.com/mig-3g.20gb"
POD: Any = {
    "metadata": {"namespace": "default", "name": "slice", "uid": "uid-1"},
    "spec": {"containers": [{"name": "c0", "resources": {"limits": {RESOURCE: "1"}}}]},
}


class Client:
    """A plugin with one device, whose Allocate ends when the test says so."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()
        self.answered = asyncio.Event()
        self.ended = asyncio.Event()
        self.closed = asyncio.Event()

    async def options(self) -> PluginOptions:
        return PluginOptions()

    async def list_and_watch(self) -> AsyncIterator[tuple[Device, ...]]:
        yield (Device(id="GPU-1:3g.20gb:0"),)
        await self.ended.wait()

    async def get_preferred_allocation(self, requests: Sequence[PreferredRequest]) -> list[tuple[str, ...]]:
        raise AssertionError("not offered")

    async def allocate(self, requests: Sequence[Sequence[str]]) -> list[ContainerAllocateResponse]:
        self.asked.set()
        await self.answered.wait()
        if self.closed.is_set():
            raise ConnectionResetError("closed")
        return [ContainerAllocateResponse(envs={"FROM": "older"}) for _ in requests]

    async def pre_start_container(self, device_ids: Sequence[str]) -> None:
        pass

    async def close(self) -> None:
        self.closed.set()


async def test_a_running_allocate_is_answered_although_the_plugin_registers_again() -> None:
    listed = asyncio.Event()
    manager = DeviceManager(
        clock=SystemClock(), checkpoint=MemoryCheckpoint(), on_change=listed.set, running_pods=lambda: ()
    )
    older, newer = Client(), Client()
    await manager.add_plugin(RESOURCE, PluginOptions(), older)
    await listed.wait()
    call = asyncio.create_task(manager.allocate(POD, POD["metadata"]["uid"]))
    await older.asked.wait()
    await manager.add_plugin(RESOURCE, PluginOptions(), newer)
    older.answered.set()
    await call
    assert manager.allocations(POD["metadata"]["uid"], "c0")[0].envs == {"FROM": "older"}

    older.ended.set()
    await older.closed.wait()
    assert not newer.closed.is_set()
    assert manager.ledger.registered_resources() == {RESOURCE: ("GPU-1:3g.20gb:0",)}
    await manager.stop()
    assert newer.closed.is_set()
