"""Kubelet's two sockets, for the simulated kubelet and for tests: registration of device plugins, and pod-resources."""

import asyncio
from pathlib import Path
from typing import Any, Self

import grpc
import grpc.aio

from tessera.kubelet.plugin_server import start_grpc
from tessera.kubelet.proto import deviceplugin_pb2 as dp
from tessera.kubelet.proto import podresources_pb2 as pr
from tessera.kubelet.sockets import KUBELET_SOCKET
from tessera.kubelet.wire import (
    GET,
    GET_ALLOCATABLE,
    LIST,
    OPTIONS,
    POD_RESOURCES,
    REGISTER,
    REGISTRATION,
    VERSION,
    service,
)
from tessera_lab.kubelet.device_plugins.plugin_client import (
    GrpcPluginClient,
    PodResourcesSource,
    RegistrationError,
    RegistrationHandler,
    container_devices_to_wire,
    is_extended_resource_name,
    pod_to_wire,
)

Context = grpc.aio.ServicerContext[Any, Any]

#: File in the plugin folder that kubelet does not delete at its start.
CHECKPOINT = "kubelet_internal_checkpoint"


class RegistrationServer:
    """Serves ``Registration.Register`` on ``kubelet.sock`` inside ``async with``.

    As kubelet does, it deletes every other file of the folder but its checkpoint before it listens, checks version and
    resource name, and asks a new plugin for its options before it accepts it.

    Args:
        plugin_dir: kubelet's plugin folder.
        registered: called with each plugin.
    """

    def __init__(self, plugin_dir: Path, registered: RegistrationHandler) -> None:
        self._folder = plugin_dir.absolute()
        self._registered = registered
        self._server = grpc.aio.server(options=OPTIONS)
        self._server.add_generic_rpc_handlers((service(REGISTRATION, REGISTER.handle_unary(self._register)),))

    async def __aenter__(self) -> Self:
        for path in self._folder.iterdir():
            if path.name != CHECKPOINT and not path.is_dir():
                path.unlink(missing_ok=True)
        self._server.add_insecure_port(f"unix:{self._folder / KUBELET_SOCKET}")
        await start_grpc(self._server)
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self._server.stop(None)

    async def _register(self, request: dp.RegisterRequest, context: Context) -> dp.Empty:
        client = GrpcPluginClient(self._folder / request.endpoint)
        try:
            _check(request)
            options = await client.options()
            await self._registered(request.resource_name, options, client)
        except (RegistrationError, ConnectionError) as error:
            await client.close()
            await context.abort(grpc.StatusCode.UNKNOWN, str(error))
        except asyncio.CancelledError:
            await client.close()
            raise
        return dp.Empty()


def _check(request: dp.RegisterRequest) -> None:
    """Kubelet's checks of a registration.

    Raises:
        RegistrationError: a check failed; the text says which.
    """
    if request.version != VERSION:
        raise RegistrationError(
            f'device plugin API version "{request.version}" is not supported; kubelet has {VERSION}'
        )
    if not is_extended_resource_name(request.resource_name):
        raise RegistrationError(f'resource name "{request.resource_name}" is not a fully qualified extended resource')


class PodResourcesServer:
    """Serves ``v1.PodResourcesLister`` on ``socket`` inside ``async with``.

    Args:
        socket: where to listen; a leftover there is replaced.
        source: returns the node's pods and their devices.
    """

    def __init__(self, socket: Path, source: PodResourcesSource) -> None:
        self._socket = socket.absolute()
        self._source = source
        self._server = grpc.aio.server(options=OPTIONS)
        handler = service(
            POD_RESOURCES,
            LIST.handle_unary(self._list),
            GET_ALLOCATABLE.handle_unary(self._allocatable),
            GET.handle_unary(self._get),
        )
        self._server.add_generic_rpc_handlers((handler,))

    async def __aenter__(self) -> Self:
        self._socket.unlink(missing_ok=True)
        self._server.add_insecure_port(f"unix:{self._socket}")
        await start_grpc(self._server)
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self._server.stop(None)
        self._socket.unlink(missing_ok=True)

    async def _list(self, _request: pr.ListPodResourcesRequest, _context: Context) -> pr.ListPodResourcesResponse:
        return pr.ListPodResourcesResponse(pod_resources=[pod_to_wire(pod) for pod in await self._source.list()])

    async def _allocatable(
        self, _request: pr.AllocatableResourcesRequest, _context: Context
    ) -> pr.AllocatableResourcesResponse:
        return pr.AllocatableResourcesResponse(
            devices=[container_devices_to_wire(held) for held in await self._source.allocatable()]
        )

    async def _get(self, request: pr.GetPodResourcesRequest, context: Context) -> pr.GetPodResourcesResponse:
        pod = await self._source.get(request.pod_name, request.pod_namespace)
        if pod is None:
            await context.abort(
                grpc.StatusCode.NOT_FOUND, f"pod {request.pod_namespace}/{request.pod_name} is not on this node"
            )
            raise AssertionError("abort raises")
        return pr.GetPodResourcesResponse(pod_resources=pod_to_wire(pod))
