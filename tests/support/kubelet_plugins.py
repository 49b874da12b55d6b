"""A device plugin and a kubelet of plain values, joined over real unix sockets in a short-named folder."""

import asyncio
import tempfile
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path

import pytest

from tessera.kubelet.interfaces import (
    ContainerAllocateResponse,
    ContainerDevices,
    Device,
    PluginError,
    PluginOptions,
    PodResources,
    PreferredRequest,
)
from tessera_lab.kubelet.device_plugins.plugin_client import PluginClient, RegistrationError

RESOURCE = "nvidia.com/mig-3g.20gb"
SLICE_RESOURCE = "nvidia.com/mig-1g.5gb"


class Plugin:
    """Devices that a test changes at will; each allocation names its devices by CDI."""

    def __init__(self, resource_name: str = RESOURCE, *devices: Device) -> None:
        self.resource_name = resource_name
        self.options = PluginOptions(pre_start_required=True, get_preferred_allocation_available=True)
        self.refusal: str | None = None
        self.ready = asyncio.Event()
        self.ready.set()
        self.waiting = asyncio.Event()
        self._devices = devices or (Device(id="GPU-1:3g.20gb:0"), Device(id="GPU-1:3g.20gb:4", healthy=False))
        self._changed = asyncio.Event()

    def set_devices(self, *devices: Device) -> None:
        self._devices = devices
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    async def list_and_watch(self) -> AsyncIterator[Sequence[Device]]:
        while True:
            changed = self._changed
            yield self._devices
            await changed.wait()

    async def get_preferred_allocation(self, requests: Sequence[PreferredRequest]) -> Sequence[Sequence[str]]:
        return [(*one.must_include, *sorted(one.available, reverse=True))[: one.size] for one in requests]

    async def allocate(self, requests: Sequence[Sequence[str]]) -> Sequence[ContainerAllocateResponse]:
        if self.refusal:
            raise PluginError(self.refusal)
        return [
            ContainerAllocateResponse(cdi_devices=tuple(f"tessera.dev/mig={one}" for one in ids)) for ids in requests
        ]

    async def pre_start_container(self, device_ids: Sequence[str]) -> None:
        self.waiting.set()
        await self.ready.wait()
        if self.refusal:
            raise PluginError(self.refusal)


class Manager:
    """Kubelet's device manager as far as a plugin sees it: the newest client of a resource counts."""

    def __init__(self) -> None:
        self.registrations: list[str] = []
        self.clients: dict[str, PluginClient] = {}
        self.options: dict[str, PluginOptions] = {}
        self.refuse: str | None = None
        self.attempts = 0
        self._news = asyncio.Condition()

    async def __call__(self, resource_name: str, options: PluginOptions, client: PluginClient) -> None:
        async with self._news:
            self.attempts += 1
            self._news.notify_all()
        if self.refuse:
            raise RegistrationError(self.refuse)
        async with self._news:
            self.registrations.append(resource_name)
            self.clients[resource_name] = client
            self.options[resource_name] = options
            self._news.notify_all()

    async def registered(self, count: int = 1, resource_name: str = RESOURCE) -> PluginClient:
        """The newest client of the resource once it has registered ``count`` times."""
        async with asyncio.timeout(60), self._news:
            await self._news.wait_for(lambda: self.registrations.count(resource_name) >= count)
        return self.clients[resource_name]

    async def attempted(self, count: int) -> None:
        """Returns once plugins have tried to register ``count`` times."""
        async with asyncio.timeout(60), self._news:
            await self._news.wait_for(lambda: self.attempts >= count)

    async def close(self) -> None:
        for client in self.clients.values():
            await client.close()


class Pods:
    """The pods in the answer of pod-resources."""

    def __init__(self, *pods: PodResources) -> None:
        self.pods = list(pods)
        self.devices: list[ContainerDevices] = []
        self.lists = 0

    async def list(self) -> Sequence[PodResources]:
        self.lists += 1
        return list(self.pods)

    async def allocatable(self) -> Sequence[ContainerDevices]:
        return self.devices

    async def get(self, name: str, namespace: str) -> PodResources | None:
        return next((pod for pod in self.pods if (pod.name, pod.namespace) == (name, namespace)), None)


class SlicePlugin:
    """A device plugin of slices whose devices and answers a test decides; it records the calls."""

    def __init__(self, *ids: str) -> None:
        self.resource_name = SLICE_RESOURCE
        self.options = PluginOptions(pre_start_required=True, get_preferred_allocation_available=True)
        self.prefers: tuple[str, ...] = ()
        self.refuses = ""
        self.start_seconds = 0.0
        self.start_refuses = ""
        self.started: list[tuple[str, ...]] = []
        self.allocated: list[tuple[str, ...]] = []
        self._ids = ids
        self._changed = asyncio.Event()

    def set(self, *ids: str) -> None:
        self._ids = ids
        self._changed.set()

    async def list_and_watch(self) -> AsyncIterator[Sequence[Device]]:
        while True:
            self._changed.clear()
            yield [Device(id=each) for each in self._ids]
            await self._changed.wait()

    async def get_preferred_allocation(self, requests: Sequence[PreferredRequest]) -> Sequence[Sequence[str]]:
        return [(*request.must_include, *self.prefers)[: request.size] for request in requests]

    async def allocate(self, requests: Sequence[Sequence[str]]) -> Sequence[ContainerAllocateResponse]:
        if self.refuses:
            raise PluginError(self.refuses)
        self.allocated += [tuple(ids) for ids in requests]
        return [ContainerAllocateResponse(envs={"SLICES": ",".join(ids)}) for ids in requests]

    async def pre_start_container(self, device_ids: Sequence[str]) -> None:
        self.started.append(tuple(device_ids))
        await asyncio.sleep(self.start_seconds)
        if self.start_refuses:
            raise PluginError(self.start_refuses)


@pytest.fixture
def plugin() -> Plugin:
    return Plugin()


@pytest.fixture
async def manager() -> AsyncIterator[Manager]:
    manager = Manager()
    yield manager
    await manager.close()


@pytest.fixture
def make_plugin() -> type[Plugin]:
    return Plugin


@pytest.fixture
def pods() -> Pods:
    return Pods()


@pytest.fixture
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="tk", dir="/tmp") as path:
        yield Path(path)
