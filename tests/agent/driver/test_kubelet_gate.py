"""The lists that kubelet gets from plugins whose driver is about to go."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest

from tessera.agent.base.wake_ups import ChangeNotifier
from tessera.agent.driver.kubelet_gate import EMPTY_LISTS_TIMEOUT, GatedKubelet
from tessera.clock import Clock, LoopClock, SystemClock
from tessera.kubelet.grpc import GrpcKubelet
from tessera.kubelet.interfaces import (
    ContainerAllocateResponse,
    Device,
    Kubelet,
    PluginError,
    PluginOptions,
    PreferredRequest,
)
from tessera_lab.kubelet.device_plugins.grpc_servers import RegistrationServer
from tessera_lab.kubelet.device_plugins.inprocess import InProcessKubelet
from tessera_lab.kubelet.devices.checkpoint import MemoryCheckpoint
from tessera_lab.kubelet.devices.device_manager import DeviceManager
from tessera_lab.simulation.virtual_time import run_virtual

RESOURCE = "nvidia.com/gpu"


class Plugin:
    """Lists as many devices as it is told, and knows when its list was taken."""

    resource_name = RESOURCE
    options = PluginOptions(pre_start_required=True)

    def __init__(self, count: int = 2) -> None:
        self.changes = ChangeNotifier()
        self.count = count
        self.taken: list[int] = []
        self.closed = False

    def show(self, count: int) -> None:
        self.count = count
        self.changes.notify()

    async def list_and_watch(self) -> AsyncIterator[Sequence[Device]]:
        try:
            while True:
                seen, count = self.changes.count, self.count
                yield [Device(id=str(number)) for number in range(count)]
                self.taken.append(count)
                await self.changes.wait(seen)
        finally:
            self.closed = True

    async def get_preferred_allocation(self, requests: Sequence[PreferredRequest]) -> Sequence[Sequence[str]]:
        return [request.available[: request.size] for request in requests]

    async def allocate(self, requests: Sequence[Sequence[str]]) -> Sequence[ContainerAllocateResponse]:
        return [ContainerAllocateResponse(envs={"IDS": ",".join(ids)}) for ids in requests]

    async def pre_start_container(self, device_ids: Sequence[str]) -> None:
        assert device_ids


class Node:
    """Kubelet's device manager, and an offer that can be closed."""

    def __init__(self, kubelet: Kubelet, clock: Clock) -> None:
        self.clock = clock
        self.changes = ChangeNotifier()
        self.manager = DeviceManager(
            clock=clock, checkpoint=MemoryCheckpoint(), on_change=self.changes.notify, running_pods=list
        )
        self.advertising = GatedKubelet(kubelet, self.changes, clock)
        self.plugin = Plugin()
        self._task: asyncio.Task[None] | None = None

    @property
    def capacity(self) -> int | None:
        return self.manager.ledger.counts()[0].get(RESOURCE)

    def start(self) -> None:
        self._task = asyncio.create_task(self.advertising.serve(self.plugin))

    async def counts(self, count: int | None) -> None:
        assert await self.changes.wait_until(lambda: self.capacity == count, 30.0), self.capacity

    async def rest(self) -> None:
        """Lets everything go on that can: some simulated time later nothing is under way."""
        await self.clock.sleep(0.1)

    @property
    def allocatable(self) -> int | None:
        return self.manager.ledger.counts()[1].get(RESOURCE)

    async def end_owner(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def end(self) -> None:
        await self.end_owner()
        await self.manager.stop()


def test_lists_pass_and_their_plugin_knows_when_they_are_taken() -> None:
    async def story() -> None:
        bus = InProcessKubelet()
        node = Node(bus, LoopClock(0.0))
        bus.start(node.manager.add_plugin, node.manager)
        assert node.advertising.is_accepted
        node.start()
        await node.counts(2)
        node.plugin.show(5)
        await node.counts(5)
        await node.rest()
        assert node.plugin.taken == [2, 5]
        assert node.advertising.is_accepted
        assert node.advertising.devices == 5
        await node.end()
        assert node.plugin.closed
        assert node.advertising.devices == 0

    run_virtual(story())


def test_nothing_is_taken_before_kubelet_listens() -> None:
    async def story() -> None:
        node = Node(InProcessKubelet(), LoopClock(0.0))
        node.start()
        await asyncio.sleep(1.0)
        assert not node.advertising.is_accepted
        began = asyncio.get_running_loop().time()
        await node.advertising.close()
        assert asyncio.get_running_loop().time() - began < EMPTY_LISTS_TIMEOUT
        await node.end()

    run_virtual(story())


def test_a_closed_gate_lists_and_allocates_nothing_whatever_its_plugin_lists() -> None:
    async def story() -> None:
        bus = InProcessKubelet()
        node = Node(bus, LoopClock(0.0))
        bus.start(node.manager.add_plugin, node.manager)
        node.start()
        await node.counts(2)
        await node.advertising.close()
        assert node.capacity == 0
        node.plugin.show(7)
        await asyncio.sleep(60.0)
        assert node.capacity == 0
        served = node.advertising._served[0]
        with pytest.raises(PluginError, match="no device is allocated while the node's driver is replaced"):
            await served.allocate([["0"]])
        with pytest.raises(PluginError, match=r"nvidia\.com/gpu: no container starts"):
            await served.pre_start_container(["0"])
        await node.end()
        assert node.plugin.closed

    run_virtual(story())


async def test_over_kubelet_s_own_sockets_the_capacity_is_zero_at_once(sockets: Path) -> None:
    clock = SystemClock()
    node = Node(GrpcKubelet(sockets, sockets / "pods.sock", clock=clock), clock)
    async with contextlib.AsyncExitStack() as stack:
        await stack.enter_async_context(RegistrationServer(sockets, node.manager.add_plugin))
        node.start()
        await node.counts(2)
        began = clock.monotonic()
        await node.advertising.close()
        await node.counts(0)
        assert clock.monotonic() - began < EMPTY_LISTS_TIMEOUT
        await node.end()


def test_a_gate_that_holds_serves_the_last_list_on_after_its_owner_has_ended() -> None:
    async def story() -> None:
        bus = InProcessKubelet()
        node = Node(bus, LoopClock(0.0))
        bus.start(node.manager.add_plugin, node.manager)
        node.start()
        await node.counts(2)
        served = node.advertising._served[0]
        await node.advertising.hold()
        await node.end_owner()
        node.plugin.show(7)
        await asyncio.sleep(60.0)
        assert node.allocatable == 2
        assert [answer.envs for answer in await served.allocate([["0"]])] == [{"IDS": "0"}]
        with pytest.raises(PluginError, match="while the node's agent is replaced; kubelet starts it again"):
            await served.pre_start_container(["0"])
        await node.advertising.end()
        await node.rest()
        assert (node.allocatable, node.plugin.closed) == (0, True)
        await node.end()

    run_virtual(story())


def test_a_gate_that_holds_while_it_closes_allocates_on_for_its_successor() -> None:
    """The agent is replaced while it empties its lists for another driver."""

    async def story() -> None:
        bus = InProcessKubelet()
        node = Node(bus, LoopClock(0.0))
        bus.start(node.manager.add_plugin, node.manager)
        node.start()
        await node.counts(2)
        served = node.advertising._served[0]
        closing = asyncio.create_task(node.advertising.close())
        await asyncio.sleep(0)
        with pytest.raises(PluginError, match="no device is allocated"):
            await served.allocate([["0"]])
        closing.cancel()
        await node.advertising.hold()
        assert [answer.envs for answer in await served.allocate([["0"]])] == [{"IDS": "0"}]
        with pytest.raises(PluginError, match="while the node's agent is replaced"):
            await served.pre_start_container(["0"])
        await node.end_owner()
        await node.advertising.end()
        await node.end()

    run_virtual(story())
