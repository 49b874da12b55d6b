"""Serves one :class:`~tessera.kubelet.interfaces.ClaimPlugin` to kubelet.

Kubelet finds the plugin by a socket in its folder ``plugins_registry`` and asks it there for the socket that serves the
claims. It keeps both over its own restart, so nothing has to be registered again. Each instance has sockets of its own:
during an upgrade two agents are registered and kubelet calls the newest that it is connected to (kubelet 1.33 and
newer). An instance that has handed its node over answers with what the next instance says. It stays registered until
it has, since kubelet ends the calls of an instance whose registration goes. Kubelet removes a node's ResourceSlices
30 s after the last instance of their driver has gone (``defaultWipingDelay``).
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

import grpc
import grpc.aio
from google.protobuf.message import Message

from tessera.kubelet.inotify import FolderWatch
from tessera.kubelet.interfaces import (
    ClaimDeviceHealth,
    ClaimPlugin,
    ClaimRef,
    HandedOverError,
    PluginError,
    PreparedDevice,
)
from tessera.kubelet.plugin_server import iterate_until, start_grpc
from tessera.kubelet.proto import dra_pb2 as dra
from tessera.kubelet.proto import drahealth_pb2 as health
from tessera.kubelet.proto import pluginregistration_pb2 as registration
from tessera.kubelet.sockets import claim_sockets, is_listening, make_newest, remove_leftovers
from tessera.kubelet.wire import (
    CLAIM_HEALTH,
    CLAIM_SERVICES,
    GET_INFO,
    NOTIFY_STATUS,
    OPTIONS,
    PLUGIN_REGISTRATION,
    PREPARE,
    UNPREPARE,
    WATCH_HEALTH,
    Method,
    service,
)

#: ``type`` of a driver of claims in kubelet's registry.
TYPE = "DRAPlugin"
#: Seconds that kubelet gives a call (``DefaultPluginClientTimeout``).
CALL_TIMEOUT = 45.0
#: Most seconds until the answers of calls that were handed on have left.
ANSWER_TIMEOUT = 1.0
_VERSION = next(iter(CLAIM_SERVICES))
#: How gRPC says that a server has ended.
_ENDED = grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED

_log = logging.getLogger(__name__)

T = TypeVar("T", bound=Message)
Context = grpc.aio.ServicerContext[Any, Any]


class ClaimServer:
    """A claim plugin, served from :meth:`run` until that is cancelled; its sockets are removed then.

    Args:
        plugin: the plugin to serve.
        registry: kubelet's folder ``plugins_registry``.
        plugins: kubelet's folder ``plugins``, in which the driver gets a folder.
        on_status: told what kubelet said about the registration: the error; empty for none.
    """

    def __init__(self, plugin: ClaimPlugin, *, registry: Path, plugins: Path, on_status: Callable[[str], None]) -> None:
        self._plugin = plugin
        self._on_status = on_status
        self._registry = registry
        self._folder = plugins / plugin.driver_name
        self._closing = asyncio.Event()
        #: Calls that the next instance answers.
        self._handed_on: set[asyncio.Future[Any]] = set()
        #: Of the two folders.
        self._watches: tuple[FolderWatch, FolderWatch]
        #: When the socket for claims was bound, as its file says, in ns since 1970.
        self._bound_ns = 0
        self._has_handed_on = False
        #: Socket that kubelet finds, and the one that serves claims.
        self.registration, self.claims = claim_sockets(plugin.driver_name, registry, self._folder)

    async def run(self) -> None:
        """Serves until cancelled, on the same sockets again if somebody removes them or the driver's folder.

        Raises:
            OSError: the folders cannot be written.
            RuntimeError: a socket cannot be bound.
        """
        self._folder.mkdir(mode=0o750, exist_ok=True)
        self._remove_leftovers()
        while True:
            await self._serve_until_removed()
            self._folder.mkdir(mode=0o750, exist_ok=True)

    def _remove_leftovers(self) -> None:
        driver = f"{self._plugin.driver_name}-"
        for socket in (*remove_leftovers(self._registry, driver), *remove_leftovers(self._folder, "")):
            _log.info("removed %s: nothing listens on it", socket)

    async def _serve_until_removed(self) -> None:
        servers = [self._claim_server(), self._registration_server()]
        self._watches = FolderWatch(self._registry), FolderWatch(self._folder)
        with self._watches[0].changes() as in_registry, self._watches[1].changes() as in_folder:
            try:
                for server, socket in zip(servers, (self.claims, self.registration), strict=True):
                    server.add_insecure_port(f"unix:{socket}")
                    if socket == self.claims:
                        self._bound_ns = make_newest(socket)
                    await start_grpc(server)
                await self._wait_until_removed(in_registry, in_folder)
            except asyncio.CancelledError:
                await self._finish_handed_on(servers[0])
                raise
            finally:
                await self._stop(servers)

    async def _wait_until_removed(self, *changes: asyncio.Event) -> None:
        while self.registration.exists() and self.claims.exists():
            await _wait_for_any(*changes)

    async def _stop(self, servers: Sequence[grpc.aio.Server]) -> None:
        """The registration goes first, so that kubelet begins no further call."""
        self._closing.set()
        self.registration.unlink(missing_ok=True)
        for server in reversed(servers):
            await server.stop(None)
        self.claims.unlink(missing_ok=True)
        self._closing = asyncio.Event()

    # What kubelet calls ---------------------------------------------------------------------------------------------

    def _registration_server(self) -> grpc.aio.Server:
        server = grpc.aio.server(options=OPTIONS)
        handlers = GET_INFO.handle_unary(self._get_info), NOTIFY_STATUS.handle_unary(self._notify_status)
        server.add_generic_rpc_handlers((service(PLUGIN_REGISTRATION, *handlers),))
        return server

    def _claim_server(self) -> grpc.aio.Server:
        server = grpc.aio.server(options=OPTIONS)
        for version, name in CLAIM_SERVICES.items():
            handlers = PREPARE[version].handle_unary(self._prepare), UNPREPARE[version].handle_unary(self._unprepare)
            server.add_generic_rpc_handlers((service(name, *handlers),))
        server.add_generic_rpc_handlers((service(CLAIM_HEALTH, WATCH_HEALTH.handle_stream(self._watch_health)),))
        return server

    async def _get_info(self, _request: registration.InfoRequest, _context: Context) -> registration.PluginInfo:
        return registration.PluginInfo(
            type=TYPE,
            name=self._plugin.driver_name,
            endpoint=str(self.claims),
            supported_versions=[*CLAIM_SERVICES, CLAIM_HEALTH],
        )

    async def _notify_status(
        self, request: registration.RegistrationStatus, _context: Context
    ) -> registration.RegistrationStatusResponse:
        self._on_status("" if request.plugin_registered else request.error or "kubelet gives no reason")
        return registration.RegistrationStatusResponse()

    async def _prepare(
        self, request: dra.NodePrepareResourcesRequest, context: Context
    ) -> dra.NodePrepareResourcesResponse:
        try:
            answers = await _for_each(request.claims, self._plugin.prepare)
        except HandedOverError:
            return await self._hand_on(PREPARE[_VERSION], request, context)
        return dra.NodePrepareResourcesResponse(claims={uid: _prepared(answer) for uid, answer in answers.items()})

    async def _unprepare(
        self, request: dra.NodeUnprepareResourcesRequest, context: Context
    ) -> dra.NodeUnprepareResourcesResponse:
        try:
            answers = await _for_each(request.claims, self._plugin.unprepare)
        except HandedOverError:
            return await self._hand_on(UNPREPARE[_VERSION], request, context)
        return dra.NodeUnprepareResourcesResponse(
            claims={
                uid: dra.NodeUnprepareResourceResponse(error=str(answer) if isinstance(answer, PluginError) else "")
                for uid, answer in answers.items()
            }
        )

    async def _hand_on(self, method: Method[Any, T], request: Any, context: Context) -> T:
        """What the next instance answers, as soon as there is one."""
        until = context.time_remaining()
        call = asyncio.ensure_future(self._call_successor(method, request))
        self._handed_on.add(call)
        self._has_handed_on = True
        try:
            return await asyncio.wait_for(call, CALL_TIMEOUT if until is None else min(until, CALL_TIMEOUT))
        except grpc.aio.AioRpcError as error:
            return await context.abort(error.code(), error.details() or "")
        except TimeoutError:
            return await context.abort(grpc.StatusCode.DEADLINE_EXCEEDED, "no agent has taken this node over yet")
        finally:
            self._handed_on.discard(call)

    async def _call_successor(self, method: Method[Any, T], request: Any) -> T:
        tried: set[Path] = set()
        with self._watches[0].changes() as in_registry, self._watches[1].changes() as in_folder:
            while True:
                for socket in self._successors() - tried:
                    tried.add(socket)
                    async with grpc.aio.insecure_channel(f"unix:{socket}", options=OPTIONS) as channel:
                        try:
                            return await method.unary(channel)(request, timeout=CALL_TIMEOUT)
                        except grpc.aio.AioRpcError as error:
                            if error.code() not in _ENDED:
                                raise
                await _wait_for_any(in_registry, in_folder)

    def _successors(self) -> set[Path]:
        """The sockets of instances that began after this one: calls are never handed back."""
        found = set()
        for each in self._folder.glob("*.sock"):
            with suppress(FileNotFoundError):
                if each.stat().st_mtime_ns > self._bound_ns and is_listening(each):
                    found.add(each)
        return found

    async def _finish_handed_on(self, server: grpc.aio.Server) -> None:
        """Waits for the answers of the next instance; kubelet has given up each call after its timeout."""
        if not self._has_handed_on:
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(CALL_TIMEOUT):
                while self._handed_on:
                    await asyncio.wait(set(self._handed_on))
        self._closing.set()
        await server.stop(ANSWER_TIMEOUT)

    async def _watch_health(
        self, _request: health.NodeWatchResourcesRequest, _context: Context
    ) -> AsyncIterator[health.NodeWatchResourcesResponse]:
        closing = self._closing
        try:
            async for devices in iterate_until(closing, self._plugin.watch_health()):
                yield health.NodeWatchResourcesResponse(devices=[_health(device) for device in devices])
        except asyncio.CancelledError:
            if not closing.is_set():  # else the server stops, and gRPC would log an error for it
                raise


async def serve_claims(plugin: ClaimPlugin, registry: Path, plugins: Path, on_status: Callable[[str], None]) -> None:
    """See :data:`tessera.kubelet.grpc.ServeClaims`.

    Raises:
        OSError: the folders cannot be written.
        ValueError: a folder's path is too long for a socket.
    """
    await ClaimServer(plugin, registry=registry, plugins=plugins, on_status=on_status).run()


async def _wait_for_any(*changes: asyncio.Event) -> None:
    """Returns at the next change of any folder."""
    waits = [asyncio.ensure_future(change.wait()) for change in changes]
    try:
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for wait in waits:
            wait.cancel()
        for change in changes:
            change.clear()


async def _for_each(claims: Sequence[dra.Claim], call: Callable[[ClaimRef], Awaitable[Any]]) -> Mapping[str, Any]:
    """By claim's UID the answer, or the refusal, of a call for each claim, all at once.

    Raises:
        HandedOverError: the next instance answers; what was done is in its files.
    """

    async def answer(claim: dra.Claim) -> Any:
        try:
            return await call(ClaimRef(claim.namespace, claim.name, claim.uid))
        except PluginError as error:
            return error

    answers = await asyncio.gather(*map(answer, claims))
    if any(isinstance(each, HandedOverError) for each in answers):
        raise HandedOverError
    return dict(zip((claim.uid for claim in claims), answers, strict=True))


def _prepared(answer: Sequence[PreparedDevice] | PluginError) -> dra.NodePrepareResourceResponse:
    if isinstance(answer, PluginError):
        return dra.NodePrepareResourceResponse(error=str(answer))
    return dra.NodePrepareResourceResponse(
        devices=[
            dra.Device(
                request_names=each.requests,
                pool_name=each.pool,
                device_name=each.device,
                cdi_device_ids=each.cdi_devices,
                share_id=each.share_id or None,
            )
            for each in answer
        ]
    )


def _health(device: ClaimDeviceHealth) -> health.DeviceHealth:
    states = {None: health.UNKNOWN, True: health.HEALTHY, False: health.UNHEALTHY}
    return health.DeviceHealth(
        device=health.DeviceIdentifier(pool_name=device.pool, device_name=device.device),
        health=states[device.healthy],
        last_updated_time=device.since,
        message=device.message,
    )
