"""Kubelet's side of the API for drivers of ResourceClaims, over a socket and in this process.

:class:`ClaimRegistry` finds drivers by the sockets in kubelet's folder ``plugins_registry``, as kubelet's plugin
watcher does, and notices when a socket is removed or its driver no longer answers. The bus of :mod:`inprocess`
registers those of the same process.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import Any, Protocol

import grpc
import grpc.aio

from tessera.clock import Clock
from tessera.kubelet.inotify import watch_folder
from tessera.kubelet.interfaces import (
    ClaimDeviceHealth,
    ClaimPlugin,
    ClaimRef,
    HandedOverError,
    PluginError,
    PreparedDevice,
)
from tessera.kubelet.proto import dra_pb2 as dra
from tessera.kubelet.proto import drahealth_pb2 as health
from tessera.kubelet.proto import pluginregistration_pb2 as registration
from tessera.kubelet.wire import (
    CLAIM_SERVICES,
    GET_INFO,
    NOTIFY_STATUS,
    OPTIONS,
    PREPARE,
    UNPREPARE,
    WATCH_HEALTH,
)

_log = logging.getLogger(__name__)

#: Seconds that kubelet gives a call of a driver.
CALL_TIMEOUT = 45.0
#: Seconds that kubelet gives a call of the registration.
REGISTRATION_TIMEOUT = 10.0
#: Seconds until kubelet tries a failed registration again: the first time, and the most after doubling
#: (``pkg/util/goroutinemap/exponentialbackoff``).
FIRST_PAUSE, LONGEST_PAUSE = 0.5, 122.0
_DEADLINE = "rpc error: code = DeadlineExceeded desc = context deadline exceeded"

#: By claim's UID, its devices or why it is not prepared.
Prepared = Mapping[str, Sequence[PreparedDevice] | PluginError]


class ClaimPluginClient(Protocol):
    """A registered driver, as kubelet calls it."""

    async def prepare(self, claims: Sequence[ClaimRef]) -> Prepared:
        """NodePrepareResources.

        Raises:
            PluginError: the call failed or took longer than :data:`CALL_TIMEOUT`.
            ConnectionError: the driver does not answer.
        """
        ...

    async def unprepare(self, claims: Sequence[ClaimRef]) -> Mapping[str, PluginError | None]:
        """NodeUnprepareResources.

        Raises:
            PluginError: as above.
            ConnectionError: as above.
        """
        ...

    def watch_health(self) -> AsyncIterator[Sequence[ClaimDeviceHealth]]:
        """Yields the health of all devices until the driver ends.

        Raises:
            PluginError: the driver does not report health.
            ConnectionError: the connection is lost.
        """
        ...

    async def close(self) -> None:
        """Closes the connection."""
        ...


class ClaimDrivers(Protocol):
    """Told of drivers that come and go. Several instances of one driver may be registered; the newest is called."""

    def add_driver(self, name: str, client: ClaimPluginClient) -> None:
        """A driver registered, or answers again."""
        ...

    def remove_driver(self, name: str, client: ClaimPluginClient) -> None:
        """An instance of a driver is gone or no longer answers."""
        ...


class GrpcClaimClient:
    """Calls a driver over its socket.

    Args:
        endpoint: its socket.
        version: the version of the API to call, one of ``CLAIM_SERVICES``.
    """

    def __init__(self, endpoint: Path, version: str) -> None:
        self._version = version
        self.channel = grpc.aio.insecure_channel(f"unix:{endpoint}", options=OPTIONS)

    async def prepare(self, claims: Sequence[ClaimRef]) -> Prepared:
        """See :class:`ClaimPluginClient`."""
        request = dra.NodePrepareResourcesRequest(claims=[_claim(each) for each in claims])
        answer = await self._call(PREPARE[self._version].unary(self.channel)(request, timeout=CALL_TIMEOUT))
        return {
            uid: PluginError(each.error) if each.error else tuple(_device(device) for device in each.devices)
            for uid, each in answer.claims.items()
        }

    async def unprepare(self, claims: Sequence[ClaimRef]) -> Mapping[str, PluginError | None]:
        """See :class:`ClaimPluginClient`."""
        request = dra.NodeUnprepareResourcesRequest(claims=[_claim(each) for each in claims])
        answer = await self._call(UNPREPARE[self._version].unary(self.channel)(request, timeout=CALL_TIMEOUT))
        return {uid: PluginError(each.error) if each.error else None for uid, each in answer.claims.items()}

    async def watch_health(self) -> AsyncIterator[Sequence[ClaimDeviceHealth]]:
        """See :class:`ClaimPluginClient`."""
        stream = WATCH_HEALTH.stream(self.channel)(health.NodeWatchResourcesRequest())
        try:
            async for answer in stream:
                yield tuple(_health(each) for each in answer.devices)
        except grpc.aio.AioRpcError as error:
            raise _error(error) from error
        finally:
            stream.cancel()

    async def close(self) -> None:
        """See :class:`ClaimPluginClient`."""
        await self.channel.close()

    async def _call(self, call: Any) -> Any:
        try:
            return await call
        except grpc.aio.AioRpcError as error:
            raise _error(error) from error
        except grpc.aio.UsageError as error:
            raise ConnectionResetError(f"the driver does not answer: {error}") from error


def _error(error: grpc.aio.AioRpcError) -> PluginError | ConnectionError:
    if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
        return PluginError(_DEADLINE)
    text = f"rpc error: code = {error.code().name.title().replace('_', '')} desc = {error.details()}"
    lost = error.code() in {grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED}
    return ConnectionResetError(text) if lost else PluginError(text)


def _claim(claim: ClaimRef) -> dra.Claim:
    return dra.Claim(namespace=claim.namespace, name=claim.name, uid=claim.uid)


def _device(device: dra.Device) -> PreparedDevice:
    return PreparedDevice(
        requests=tuple(device.request_names),
        pool=device.pool_name,
        device=device.device_name,
        cdi_devices=tuple(device.cdi_device_ids),
        share_id=device.share_id,
    )


def _health(device: health.DeviceHealth) -> ClaimDeviceHealth:
    states = {health.HEALTHY: True, health.UNHEALTHY: False}
    return ClaimDeviceHealth(
        pool=device.device.pool_name,
        device=device.device.device_name,
        healthy=states.get(device.health),
        message=device.message,
        since=device.last_updated_time,
    )


class InProcessClaimClient:
    """Calls a driver in the same process.

    Args:
        plugin: the driver.
        successor: waits for the driver that answers the calls that a driver has handed over.
    """

    def __init__(self, plugin: ClaimPlugin, successor: Callable[[ClaimPlugin], Awaitable[ClaimPlugin]]) -> None:
        self._plugin = plugin
        self._successor = successor
        #: True once a call was handed over.
        self._hands_on = False
        self._calls: set[asyncio.Future[Any]] = set()
        self._closed = False

    async def prepare(self, claims: Sequence[ClaimRef]) -> Prepared:
        """See :class:`ClaimPluginClient`."""
        return await self._for_each(claims, lambda plugin, claim: plugin.prepare(claim))

    async def unprepare(self, claims: Sequence[ClaimRef]) -> Mapping[str, PluginError | None]:
        """See :class:`ClaimPluginClient`."""
        return await self._for_each(claims, lambda plugin, claim: plugin.unprepare(claim))

    def watch_health(self) -> AsyncIterator[Sequence[ClaimDeviceHealth]]:
        """See :class:`ClaimPluginClient`."""
        return self._plugin.watch_health()

    async def finish_handed_on(self) -> None:
        """Waits for running calls if the driver has handed them over."""
        if self._hands_on and self._calls:
            await asyncio.wait(set(self._calls))

    async def close(self) -> None:
        """Ends running calls with ConnectionError."""
        self._closed = True
        for call in self._calls:
            call.cancel()

    async def _for_each(
        self, claims: Sequence[ClaimRef], call: Callable[[ClaimPlugin, ClaimRef], Coroutine[Any, Any, Any]]
    ) -> Mapping[str, Any]:
        if self._closed:
            raise ConnectionResetError("the driver has ended")
        work = asyncio.ensure_future(asyncio.gather(*(self._one(call, each) for each in claims)))
        self._calls.add(work)
        try:
            async with asyncio.timeout(CALL_TIMEOUT):
                answers = await work
        except TimeoutError:
            raise PluginError(_DEADLINE) from None
        except asyncio.CancelledError:
            current = asyncio.current_task()
            if current is None or current.cancelling() or not self._closed:
                raise
            raise ConnectionResetError("the driver has ended") from None
        finally:
            self._calls.discard(work)
            work.cancel()
        return {claim.uid: answer for claim, answer in zip(claims, answers, strict=True)}

    async def _one(self, call: Callable[[ClaimPlugin, ClaimRef], Coroutine[Any, Any, Any]], claim: ClaimRef) -> Any:
        plugin = self._plugin
        while True:
            try:
                return await call(plugin, claim)
            except HandedOverError:
                self._hands_on = True
                plugin = await self._successor(plugin)
            except PluginError as error:
                return error


class ClaimRegistry:
    """Registers the drivers whose sockets are in kubelet's folder.

    Args:
        folder: ``plugins_registry``.
        drivers: told of them.
        clock: for the pauses after a failed registration.
    """

    def __init__(self, folder: Path, drivers: ClaimDrivers, clock: Clock) -> None:
        self._folder = folder
        self._drivers = drivers
        self._clock = clock
        self._known: dict[Path, asyncio.Task[None]] = {}

    async def run(self) -> None:
        """Watches the folder until cancelled; then all drivers are gone for this kubelet."""
        try:
            async with aclosing(watch_folder(self._folder)) as changes:
                async for _ in changes:
                    found = set(self._folder.glob("*.sock"))
                    for path in self._known.keys() - found:
                        self._known.pop(path).cancel()
                    for path in found - self._known.keys():
                        self._known[path] = asyncio.create_task(self._follow(path))
        finally:
            for task in self._known.values():
                task.cancel()
            await asyncio.gather(*self._known.values(), return_exceptions=True)
            self._known.clear()

    async def _follow(self, path: Path) -> None:
        """Registers one driver, as often as that fails, and says whenever it stops to answer and answers again."""
        pause = FIRST_PAUSE
        while True:
            try:
                name, client = await self._register(path)
                break
            except (grpc.aio.AioRpcError, ValueError) as error:
                _log.warning("%s: %s", path, error)
            await self._clock.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE)
        try:
            await self._watch_connection(name, client)
        finally:
            self._drivers.remove_driver(name, client)
            await client.close()

    async def _register(self, path: Path) -> tuple[str, GrpcClaimClient]:
        async with grpc.aio.insecure_channel(f"unix:{path}", options=OPTIONS) as channel:
            # Kubelet dials for as long: the socket's file is there a moment before its server listens.
            ask = GET_INFO.unary(channel)
            info = await ask(registration.InfoRequest(), timeout=REGISTRATION_TIMEOUT, wait_for_ready=True)
            error = ""
            version = next((each for each in CLAIM_SERVICES if each in info.supported_versions), "")
            if info.type != "DRAPlugin":
                error = f"plugin type {info.type!r} is not served by the lab's kubelet"
            elif not version:
                listed = ", ".join(info.supported_versions)
                error = f"failed to validate DRA plugin {info.name}: none of the versions {listed} is supported"
            status = registration.RegistrationStatus(plugin_registered=not error, error=error)
            await NOTIFY_STATUS.unary(channel)(status, timeout=REGISTRATION_TIMEOUT)
        if error:
            raise ValueError(error)
        return info.name, GrpcClaimClient(Path(info.endpoint), version)

    async def _watch_connection(self, name: str, client: GrpcClaimClient) -> None:
        registered = False
        state = client.channel.get_state(try_to_connect=True)
        while True:
            answers = state is grpc.ChannelConnectivity.READY
            if answers and not registered:
                self._drivers.add_driver(name, client)
            elif registered and not answers:
                self._drivers.remove_driver(name, client)
            registered = answers
            await client.channel.wait_for_state_change(state)
            state = client.channel.get_state(try_to_connect=True)
