"""A device plugin whose devices and answers a story decides."""

import asyncio
from collections.abc import AsyncIterator, Sequence

import pytest

from tessera.kubelet.interfaces import ContainerAllocateResponse, Device, PluginError, PluginOptions, PreferredRequest

RESOURCE = "nvidia.com/mig-1g.5gb"


class Slices:
    """A plugin of whole slices; counts the calls."""

    def __init__(self, *ids: str) -> None:
        self.resource_name = RESOURCE
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
def slices() -> type[Slices]:
    return Slices
