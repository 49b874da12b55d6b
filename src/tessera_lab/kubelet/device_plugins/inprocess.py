"""Joins the agent and a simulated kubelet in one process, without sockets.

:class:`InProcessKubelet` is the node's plugin folder in memory. The agent uses it as a
:class:`~tessera.kubelet.interfaces.Kubelet`; the simulated kubelet gets each registration from it with a
:class:`InProcessPluginClient`. It copies and encodes nothing and needs nothing from the operating system, so it
runs on virtual time and thousands of nodes fit into a process.

Rules, as over the sockets: a kubelet that starts again gets every registration again; a plugin that ends, or a kubelet
that stops, ends the running calls with ConnectionError.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from typing import Any, TypeVar

from tessera.kubelet.interfaces import (
    PRE_START_TIMEOUT,
    ClaimPlugin,
    ContainerAllocateResponse,
    Device,
    DevicePlugin,
    PluginError,
    PluginOptions,
    PodResources,
    PreferredRequest,
)
from tessera_lab.kubelet.device_plugins.claim_client import ClaimDrivers, InProcessClaimClient
from tessera_lab.kubelet.device_plugins.plugin_client import PodResourcesSource, RegistrationError, RegistrationHandler

T = TypeVar("T")


class InProcessPluginClient:
    """Calls a plugin in the same process, as ``GrpcPluginClient`` does over a socket."""

    def __init__(self, plugin: DevicePlugin) -> None:
        self._plugin = plugin
        self._calls: set[asyncio.Task[Any]] = set()
        self._closed = asyncio.Event()

    async def options(self) -> PluginOptions:
        """Returns the plugin's options."""
        self._check_open("GetDevicePluginOptions")
        return self._plugin.options

    async def list_and_watch(self) -> AsyncIterator[tuple[Device, ...]]:
        """Yields full device lists until the plugin ends; then raises ConnectionError."""
        devices = aiter(self._plugin.list_and_watch())
        try:
            while True:
                yield tuple(await self._call("ListAndWatch", _next(devices)))
        finally:
            close = getattr(devices, "aclose", None)
            if close is not None:
                await close()

    async def get_preferred_allocation(self, requests: Sequence[PreferredRequest]) -> list[tuple[str, ...]]:
        """Returns one list of device ids per request."""
        answer = await self._call("GetPreferredAllocation", self._plugin.get_preferred_allocation(requests))
        return [tuple(ids) for ids in answer]

    async def allocate(self, requests: Sequence[Sequence[str]]) -> list[ContainerAllocateResponse]:
        """Returns one answer for each container's device ids."""
        return list(await self._call("Allocate", self._plugin.allocate(requests)))

    async def pre_start_container(self, device_ids: Sequence[str]) -> None:
        """Returns when the container may start; PluginError after kubelet's 30 seconds."""
        try:
            async with asyncio.timeout(PRE_START_TIMEOUT):
                await self._call("PreStartContainer", self._plugin.pre_start_container(device_ids))
        except TimeoutError:
            raise PluginError(f"PreStartContainer: not done after {PRE_START_TIMEOUT:g} s") from None

    async def close(self) -> None:
        """Closes the connection; running calls end with ConnectionError."""
        self._closed.set()
        for call in self._calls:
            call.cancel()

    async def _call(self, name: str, call: Coroutine[Any, Any, T]) -> T:
        if self._closed.is_set():
            call.close()
        self._check_open(name)
        task = asyncio.ensure_future(call)
        self._calls.add(task)
        try:
            return await task
        except asyncio.CancelledError:
            current = asyncio.current_task()
            if current is None or current.cancelling():
                raise
            raise self._connection_error(name) from None
        except (PluginError, ConnectionError, TimeoutError):
            raise
        except Exception as error:
            # Over a socket the server answers UNKNOWN with this text, and kubelet goes on.
            raise PluginError(f"{name}: unexpected {type(error).__name__}: {error}") from error
        finally:
            self._calls.discard(task)
            task.cancel()

    def _check_open(self, name: str) -> None:
        if self._closed.is_set():
            raise self._connection_error(name)

    def _connection_error(self, call: str) -> ConnectionError:
        return ConnectionResetError(f"device plugin of {self._plugin.resource_name} does not answer {call}: it ended")


async def _next(devices: AsyncIterator[Sequence[Device]]) -> Sequence[Device]:
    try:
        return await anext(devices)
    except StopAsyncIteration:
        raise ConnectionResetError("the device plugin's list ended") from None


class InProcessKubelet:
    """Connects the device plugins of one node with its kubelet, in memory."""

    def __init__(self) -> None:
        self._registered: RegistrationHandler | None = None
        self._source: PodResourcesSource | None = None
        self._drivers: ClaimDrivers | None = None
        #: The drivers of claims that are served, oldest first.
        self._served: list[ClaimPlugin] = []
        self._news = asyncio.Event()
        self._changed = asyncio.Event()

    def start(
        self, registered: RegistrationHandler, source: PodResourcesSource, drivers: ClaimDrivers | None = None
    ) -> None:
        """Kubelet has started: every plugin registers with ``registered``, now or as soon as it is served.

        A second call means that kubelet was restarted. ``drivers`` is told of drivers of ResourceClaims.
        """
        self._registered, self._source, self._drivers = registered, source, drivers
        self._wake()

    def stop(self) -> None:
        """Kubelet has stopped: its plugin connections end."""
        self._registered = self._source = self._drivers = None
        self._wake()

    async def serve(self, plugin: DevicePlugin) -> None:
        """Registers the plugin, and again whenever kubelet starts, until cancelled.

        Raises:
            PluginError: kubelet refuses the plugin.
        """
        while True:
            changed = self._changed
            if self._registered is not None:
                await self._serve_registration(plugin, self._registered, changed)
            else:
                await changed.wait()

    async def serve_claims(self, plugin: ClaimPlugin, on_registered: Callable[[], None] = lambda: None) -> None:
        """Registers a driver of ResourceClaims, and again whenever kubelet starts, until cancelled."""
        self._served.append(plugin)
        news, self._news = self._news, asyncio.Event()
        news.set()
        try:
            await self._serve_claims(plugin, on_registered)
        finally:
            self._served.remove(plugin)

    async def _serve_claims(self, plugin: ClaimPlugin, on_registered: Callable[[], None]) -> None:
        while True:
            changed, drivers = self._changed, self._drivers
            if drivers is None:
                await changed.wait()
                continue
            client = InProcessClaimClient(plugin, self._successor)
            try:
                drivers.add_driver(plugin.driver_name, client)
                on_registered()
                await changed.wait()
            finally:
                await client.finish_handed_on()
                drivers.remove_driver(plugin.driver_name, client)
                await client.close()

    async def _successor(self, plugin: ClaimPlugin) -> ClaimPlugin:
        """The newest driver of claims, once it is another one."""
        while not self._served or self._served[-1] is plugin:
            await self._news.wait()
        return self._served[-1]

    async def pod_resources(self) -> Sequence[PodResources]:
        """Returns the devices that each container holds now.

        Raises:
            ConnectionError: kubelet is down.
        """
        if self._source is None:
            raise ConnectionRefusedError("pod-resources: kubelet is down")
        return await self._source.list()

    async def _serve_registration(
        self, plugin: DevicePlugin, registered: RegistrationHandler, changed: asyncio.Event
    ) -> None:
        client = InProcessPluginClient(plugin)
        try:
            await registered(plugin.resource_name, plugin.options, client)
            await changed.wait()
        except RegistrationError as error:
            raise PluginError(f"kubelet refused {plugin.resource_name}: {error}") from error
        finally:
            await client.close()

    def _wake(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()
