"""Serves one :class:`~tessera.kubelet.interfaces.ClaimPlugin` to kubelet.

Kubelet finds the plugin by a socket in its folder ``plugins_registry`` and asks it there for the socket that serves the
claims. It keeps both over its own restart, so nothing has to be registered again. Each instance has sockets of its own:
during an upgrade two agents are registered and kubelet may call either (kubelet 1.33 and newer). Kubelet removes a
node's ResourceSlices 30 s after the last instance of their driver has gone (``defaultWipingDelay``).
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import grpc
import grpc.aio

from tessera.kubelet.inotify import FolderWatch
from tessera.kubelet.interfaces import ClaimDeviceHealth, ClaimPlugin, ClaimRef, PluginError, PreparedDevice
from tessera.kubelet.methods import (
    CLAIM_HEALTH,
    CLAIM_SERVICES,
    GET_INFO,
    NOTIFY_STATUS,
    OPTIONS,
    PLUGIN_REGISTRATION,
    PREPARE,
    UNPREPARE,
    WATCH_HEALTH,
    service,
)
from tessera.kubelet.plugin_server import iterate_until
from tessera.kubelet.proto import dra_pb2 as dra
from tessera.kubelet.proto import drahealth_pb2 as health
from tessera.kubelet.proto import pluginregistration_pb2 as registration
from tessera.kubelet.sockets import claim_sockets, remove_leftovers

#: ``type`` of a driver of claims in kubelet's registry.
TYPE = "DRAPlugin"

_log = logging.getLogger(__name__)

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
        with FolderWatch(self._registry).changes() as in_registry, FolderWatch(self._folder).changes() as in_folder:
            try:
                for server, socket in zip(servers, (self.claims, self.registration), strict=True):
                    server.add_insecure_port(f"unix:{socket}")
                    await _start(server)
                await self._wait_until_removed(in_registry, in_folder)
            finally:
                await self._stop(servers)

    async def _wait_until_removed(self, *changes: asyncio.Event) -> None:
        while self.registration.exists() and self.claims.exists():
            for change in changes:
                change.clear()
            waits = [asyncio.ensure_future(change.wait()) for change in changes]
            try:
                await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for wait in waits:
                    wait.cancel()

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
        self, request: dra.NodePrepareResourcesRequest, _context: Context
    ) -> dra.NodePrepareResourcesResponse:
        answers = await _for_each(request.claims, self._plugin.prepare)
        return dra.NodePrepareResourcesResponse(claims={uid: _prepared(answer) for uid, answer in answers.items()})

    async def _unprepare(
        self, request: dra.NodeUnprepareResourcesRequest, _context: Context
    ) -> dra.NodeUnprepareResourcesResponse:
        answers = await _for_each(request.claims, self._plugin.unprepare)
        return dra.NodeUnprepareResourcesResponse(
            claims={
                uid: dra.NodeUnprepareResourceResponse(error=str(answer) if isinstance(answer, PluginError) else "")
                for uid, answer in answers.items()
            }
        )

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


async def _start(server: grpc.aio.Server) -> None:
    """Starts a server, to the end also when the caller is cancelled: gRPC does not stop one that has half started."""
    started = asyncio.create_task(server.start())
    try:
        await asyncio.shield(started)
    except asyncio.CancelledError:
        await started
        raise


async def _for_each(claims: Sequence[dra.Claim], call: Callable[[ClaimRef], Awaitable[Any]]) -> Mapping[str, Any]:
    """By claim's UID the answer, or the refusal, of a call for each claim, all at once."""

    async def answer(claim: dra.Claim) -> Any:
        try:
            return await call(ClaimRef(claim.namespace, claim.name, claim.uid))
        except PluginError as error:
            return error

    return dict(zip((claim.uid for claim in claims), await asyncio.gather(*map(answer, claims)), strict=True))


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
