"""Serves one :class:`~tessera.kubelet.interfaces.DevicePlugin` to kubelet on one unix socket.

:mod:`tessera.kubelet.grpc` decides when a server is replaced by another.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

import grpc
import grpc.aio

from tessera.kubelet.interfaces import DevicePlugin, PluginError
from tessera.kubelet.proto import deviceplugin_pb2 as dp
from tessera.kubelet.wire import (
    ALLOCATE,
    DEVICE_PLUGIN,
    GET_OPTIONS,
    GET_PREFERRED,
    LIST_AND_WATCH,
    OPTIONS,
    PRE_START,
    allocations_to_wire,
    devices_to_wire,
    options_to_wire,
    preferences_to_wire,
    preferred_from_wire,
    service,
)

T = TypeVar("T")
Context = grpc.aio.ServicerContext[Any, Any]


class PluginServer:
    """A device plugin, served on ``socket`` from :meth:`start` to :meth:`stop`.

    Args:
        plugin: the plugin to serve.
        socket: a path that does not exist yet.
        on_abandoned: called when kubelet has ended the last device stream and so no longer counts the devices.

    Attributes:
        abandoned: True if that has happened and no stream was opened since.
    """

    def __init__(self, plugin: DevicePlugin, socket: Path, on_abandoned: Callable[[], None]) -> None:
        self.socket = socket
        self.abandoned = False
        self._on_abandoned = on_abandoned
        self._plugin = plugin
        self._streams = 0
        self._closing = asyncio.Event()
        self._server = grpc.aio.server(options=OPTIONS)
        handler = service(
            DEVICE_PLUGIN,
            GET_OPTIONS.handle_unary(self._get_options),
            LIST_AND_WATCH.handle_stream(self._list_and_watch),
            GET_PREFERRED.handle_unary(self._get_preferred),
            ALLOCATE.handle_unary(self._allocate),
            PRE_START.handle_unary(self._pre_start),
        )
        self._server.add_generic_rpc_handlers((handler,))

    @property
    def is_streaming(self) -> bool:
        """True if kubelet listens to the device list now."""
        return self._streams > 0

    async def start(self) -> None:
        """Listens.

        Raises:
            RuntimeError: the socket cannot be bound.
        """
        self._server.add_insecure_port(f"unix:{self.socket}")
        await start_grpc(self._server)

    async def stop(self, grace: float | None = None) -> None:
        """Takes no more calls, ends the device streams, and gives other calls ``grace`` seconds to finish.

        Without ``grace``, or when cancelled, running calls end at once. The socket is removed.
        """
        self._closing.set()
        try:
            await self._server.stop(grace)
        except asyncio.CancelledError:
            await self._server.stop(None)
            raise
        finally:
            self.socket.unlink(missing_ok=True)

    async def _get_options(self, _request: dp.Empty, _context: Context) -> dp.DevicePluginOptions:
        return options_to_wire(self._plugin.options)

    async def _list_and_watch(self, _request: dp.Empty, _context: Context) -> AsyncIterator[dp.ListAndWatchResponse]:
        self._streams += 1
        self.abandoned = False
        try:
            async for devices in iterate_until(self._closing, self._plugin.list_and_watch()):
                yield devices_to_wire(devices)
        except asyncio.CancelledError:
            if not self._closing.is_set():
                raise
            # gRPC cancels running calls when the server stops, and logs an error for a call that ends as cancelled.
        finally:
            self._streams -= 1
            if not self._streams:
                self.abandoned = True
                self._on_abandoned()

    async def _get_preferred(
        self, request: dp.PreferredAllocationRequest, context: Context
    ) -> dp.PreferredAllocationResponse:
        call = self._plugin.get_preferred_allocation(preferred_from_wire(request))
        return preferences_to_wire(await _abort_on_refusal(call, context))

    async def _allocate(self, request: dp.AllocateRequest, context: Context) -> dp.AllocateResponse:
        call = self._plugin.allocate([tuple(one.devices_ids) for one in request.container_requests])
        return allocations_to_wire(await _abort_on_refusal(call, context))

    async def _pre_start(self, request: dp.PreStartContainerRequest, context: Context) -> dp.PreStartContainerResponse:
        await _abort_on_refusal(self._plugin.pre_start_container(tuple(request.devices_ids)), context)
        return dp.PreStartContainerResponse()


async def start_grpc(server: grpc.aio.Server) -> None:
    """Starts a server, and stops it if the caller is cancelled meanwhile.

    A start that is cancelled half-way leaves a server that runs. When that is collected as garbage after its loop, gRPC
    waits for its end for ever (seen with grpcio 1.85). So the start goes on to its end, and then the server is stopped.
    """
    started = asyncio.create_task(server.start())
    try:
        await asyncio.shield(started)
    except asyncio.CancelledError:
        await _wait_until_done(started)
        if started.exception() is None:
            await _wait_until_done(asyncio.create_task(server.stop(None)))
        raise


async def _wait_until_done(task: "asyncio.Task[None]") -> None:
    """Waits for the end of a task that takes no time, also if the caller is cancelled once more."""
    while not task.done():
        with suppress(asyncio.CancelledError):
            await asyncio.wait({task})


async def iterate_until(closing: asyncio.Event, lists: AsyncIterator[T]) -> AsyncIterator[T]:
    """The items of ``lists`` until ``closing`` is set, also in the middle of waiting for the next one."""
    closed = asyncio.ensure_future(closing.wait())
    try:
        while True:
            item = asyncio.ensure_future(_next_or_none(lists))
            try:
                await asyncio.wait({item, closed}, return_when=asyncio.FIRST_COMPLETED)
            finally:
                await _cancel_and_wait(item)
            if closed.done() or item.cancelled() or (found := item.result()) is None:
                return
            yield found
    finally:
        closed.cancel()
        if close := getattr(lists, "aclose", None):
            await close()


async def _cancel_and_wait(item: asyncio.Future[Any]) -> None:
    """Cancels and waits for the end, also when the caller is cancelled meanwhile: gRPC does so when a server stops.

    An iterator cannot be closed while it still runs.
    """
    interrupted: asyncio.CancelledError | None = None
    item.cancel()
    while not item.done():
        try:
            await asyncio.wait({item})
        except asyncio.CancelledError as error:
            interrupted = error
    if interrupted is not None:
        raise interrupted


async def _next_or_none(lists: AsyncIterator[T]) -> T | None:
    return await anext(lists, None)


async def _abort_on_refusal(call: Awaitable[T], context: Context) -> T:
    """The call's answer; a refusal becomes a gRPC status, whose text kubelet puts into the pod's status."""
    try:
        return await call
    except PluginError as error:
        await context.abort(grpc.StatusCode.FAILED_PRECONDITION, str(error))
        raise AssertionError("abort raises") from error
