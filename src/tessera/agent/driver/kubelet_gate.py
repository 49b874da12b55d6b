"""Kubelet as the agent's parts see it while a driver is there; all its device lists can be emptied at once.

The devices of a plugin that ends stay in the node's capacity for minutes, since kubelet waits for its return. An empty
list counts at once. So before the driver goes, the gate makes every list empty, whatever its plugin lists, and gives
out no further device.

Before another agent takes the node over, the gate holds the lists instead: the plugins go on with their last lists
until the successor has registered its own, although the parts of the agent that made them have ended. So kubelet counts
the devices all the time. Kubelet may still ask for a device; the answer rests on the last reading of the cards. A
container's start is refused, since nobody makes its slice now: kubelet starts it again. A call for a claim is handed
on to the successor instead, since kubelet repeats a failed one only after a minute.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Mapping, Sequence
from contextlib import aclosing
from typing import Any, TypeVar

from tessera.agent.base.wake_ups import ChangeNotifier, Fact
from tessera.clock import Clock
from tessera.kube.quantity import count_or_zero
from tessera.kubelet.interfaces import (
    ClaimDeviceHealth,
    ClaimPlugin,
    ClaimRef,
    ContainerAllocateResponse,
    Device,
    DevicePlugin,
    HandedOverError,
    Kubelet,
    PluginError,
    PluginOptions,
    PreparedDevice,
)

T = TypeVar("T")

#: Seconds that kubelet has to read the empty lists; a silent kubelet must not delay the driver.
EMPTY_LISTS_TIMEOUT = 5.0
#: Seconds between kubelet's reading of a list and its new count.
HANDOVER = 0.1


class GatedKubelet:
    """A :class:`~tessera.kubelet.interfaces.Kubelet` whose lists can be emptied all at once.

    Args:
        kubelet: the node's kubelet.
        changes: notified when kubelet has read a list.
        clock: for timeouts.
    """

    def __init__(self, kubelet: Kubelet, changes: ChangeNotifier, clock: Clock) -> None:
        self._kubelet = kubelet
        self.pod_resources = kubelet.pod_resources
        self._changes = changes.about(Fact.LISTS)
        self._clock = clock
        self._served: list[_GatedPlugin] = []
        self._gate = _Gate()
        #: Plugins that are served on, although their owners have ended.
        self._held: list[asyncio.Task[None]] = []

    async def serve(self, plugin: DevicePlugin) -> None:
        """See :meth:`.Kubelet.serve`."""
        served = _GatedPlugin(plugin, self._gate, self._changes)
        self._served.append(served)
        try:
            await self._serve_unless_held(self._kubelet.serve(served))
        finally:
            if not self._gate.holds:
                self._served.remove(served)
                self._changes.notify(Fact.LISTS)  # kubelet has to read one list less

    async def serve_claims(self, plugin: ClaimPlugin, on_registered: Callable[[], None] = lambda: None) -> None:
        """See :meth:`.Kubelet.serve_claims`."""
        await self._serve_unless_held(self._kubelet.serve_claims(_GatedClaims(plugin, self._gate), on_registered))

    async def _serve_unless_held(self, serving: Coroutine[Any, Any, None]) -> None:
        """Serves until cancelled; while the gate holds, until :meth:`end`."""
        task = asyncio.create_task(serving)
        try:
            await asyncio.shield(task)
        finally:
            if self._gate.holds:
                self._held.append(task)
            else:
                task.cancel()
                await asyncio.wait({task})

    @property
    def is_accepted(self) -> bool:
        """True if kubelet has read a list of every plugin that is served."""
        return all(served.count is not None for served in self._served)

    @property
    def devices(self) -> int:
        """The number of devices in the lists that kubelet has read."""
        return sum(served.count or 0 for served in self._served)

    @property
    def resources(self) -> frozenset[str]:
        """Resources of which kubelet has read a list with devices."""
        return frozenset(served.resource_name for served in self._served if served.count)

    def is_published(self, allocatable: Mapping[str, str]) -> bool:
        """True if a node's allocatable covers the healthy devices of every list that kubelet has read."""
        return all(count_or_zero(allocatable.get(each.resource_name, "0")) >= each.healthy for each in self._served)

    async def close(self) -> None:
        """Empties all lists, also held ones; returns when kubelet has them, or after :data:`EMPTY_LISTS_TIMEOUT`."""
        self._shut()
        self._gate.empty.set()
        if await self._changes.wait_until(lambda: not self.devices, EMPTY_LISTS_TIMEOUT):
            await self._clock.sleep(HANDOVER)

    async def hold(self) -> None:
        """Keeps the lists as they are; from now on the plugins are served until :meth:`end`.

        Returns once no call for a claim changes anything on the node any more.
        """
        self._gate.holds = True
        self._shut()
        for call in self._gate.calls:
            call.cancel()
        await asyncio.gather(*self._gate.calls, return_exceptions=True)

    def _shut(self) -> None:
        self._gate.closed.set()
        for served in self._served:
            served.shut()

    async def end(self) -> None:
        """Ends the plugins that are served on."""
        held, self._held = self._held, []
        for task in held:
            task.cancel()
        await asyncio.gather(*held, return_exceptions=True)


class _Gate:
    """The state of the gate.

    Attributes:
        closed: set once the plugins' own lists count no more.
        holds: true if the last lists stay after that.
        empty: set once kubelet has to get empty lists, whatever was held.
        calls: the calls for claims that run now.
    """

    def __init__(self) -> None:
        self.closed = asyncio.Event()
        self.empty = asyncio.Event()
        self.holds = False
        self.calls: set[asyncio.Future[Any]] = set()


class _GatedClaims:
    """A driver of claims, as kubelet sees it; once the gate holds, all its calls are the successor's."""

    def __init__(self, plugin: ClaimPlugin, gate: _Gate) -> None:
        self._plugin = plugin
        self._gate = gate

    @property
    def driver_name(self) -> str:
        """See :attr:`.ClaimPlugin.driver_name`."""
        return self._plugin.driver_name

    async def prepare(self, claim: ClaimRef) -> Sequence[PreparedDevice]:
        """See :meth:`.ClaimPlugin.prepare`."""
        return await self._unless_held(lambda: self._plugin.prepare(claim))

    async def unprepare(self, claim: ClaimRef) -> None:
        """See :meth:`.ClaimPlugin.unprepare`."""
        await self._unless_held(lambda: self._plugin.unprepare(claim))

    def watch_health(self) -> AsyncIterator[Sequence[ClaimDeviceHealth]]:
        """See :meth:`.ClaimPlugin.watch_health`."""
        return self._plugin.watch_health()

    async def _unless_held(self, make_call: Callable[[], Coroutine[Any, Any, T]]) -> T:
        if self._gate.holds:
            raise HandedOverError
        call = asyncio.ensure_future(make_call())
        self._gate.calls.add(call)
        try:
            return await call
        except asyncio.CancelledError:
            caller = asyncio.current_task()
            if self._gate.holds and caller is not None and not caller.cancelling():
                raise HandedOverError from None
            raise
        finally:
            self._gate.calls.discard(call)


class _GatedPlugin:
    """One plugin, as kubelet sees it.

    Attributes:
        count: devices in the last list that kubelet read; ``None`` while it reads none.
        healthy: how many of them are healthy.
    """

    def __init__(self, plugin: DevicePlugin, gate: _Gate, changes: ChangeNotifier) -> None:
        self._plugin = plugin
        self._gate = gate
        self._changes = changes
        self.count: int | None = None
        self.healthy = 0
        # The plugin's own calls, until the gate is shut.
        self.get_preferred_allocation = plugin.get_preferred_allocation
        self.allocate = plugin.allocate
        self.pre_start_container = plugin.pre_start_container
        if gate.closed.is_set():
            self.shut()

    def shut(self) -> None:
        """Refuses starts from now on, and allocations unless the gate holds."""
        self.pre_start_container = self._refuse_start
        self.allocate = self._plugin.allocate if self._gate.holds else self._refuse_allocation

    @property
    def resource_name(self) -> str:
        """See :attr:`.DevicePlugin.resource_name`."""
        return self._plugin.resource_name

    @property
    def options(self) -> PluginOptions:
        """See :attr:`.DevicePlugin.options`."""
        return self._plugin.options

    async def list_and_watch(self) -> AsyncIterator[Sequence[Device]]:
        """The plugin's lists; once the gate is closed, an empty one or none, and no other."""
        try:
            async with aclosing(_until(self._plugin.list_and_watch(), self._gate.closed)) as lists:
                async for devices in lists:
                    yield devices
                    self._set_count(len(devices), sum(each.healthy for each in devices))
            await self._gate.empty.wait()
            yield ()
            self._set_count(0)
            await asyncio.Event().wait()
        finally:
            self._set_count(None)

    async def _refuse_allocation(self, requests: Sequence[Sequence[str]]) -> Sequence[ContainerAllocateResponse]:  # noqa: ARG002 - see DevicePlugin
        raise PluginError(f"{self.resource_name}: no device is allocated while the node's driver is replaced")

    async def _refuse_start(self, device_ids: Sequence[str]) -> None:  # noqa: ARG002 - see DevicePlugin
        what = "agent" if self._gate.holds else "driver"
        text = f"no container starts while the node's {what} is replaced; kubelet starts it again"
        raise PluginError(f"{self.resource_name}: {text}")

    def _set_count(self, count: int | None, healthy: int = 0) -> None:
        # Kubelet asks for the next list once it has read this one.
        if (count, healthy) != (self.count, self.healthy):
            self.count, self.healthy = count, healthy
            self._changes.notify(Fact.LISTS)


async def _until(
    lists: AsyncIterator[Sequence[Device]], closed: asyncio.Event
) -> AsyncGenerator[Sequence[Device], None]:
    """Yields an iterator's items until the event is set."""
    ends = asyncio.ensure_future(closed.wait())
    coming: asyncio.Future[Sequence[Device]] | None = None
    try:
        while True:
            coming = asyncio.ensure_future(_next(lists))
            await asyncio.wait({ends, coming}, return_when=asyncio.FIRST_COMPLETED)
            if ends.done():
                return
            yield coming.result()
    finally:
        ends.cancel()
        if coming is not None:
            coming.cancel()
            await asyncio.wait({coming})
        close = getattr(lists, "aclose", None)
        if close is not None:
            await close()


async def _next(lists: AsyncIterator[Sequence[Device]]) -> Sequence[Device]:
    return await anext(lists)
