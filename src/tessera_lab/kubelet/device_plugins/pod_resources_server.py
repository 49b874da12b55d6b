"""Kubelet's pod-resources socket, for the simulated kubelet and tests."""

from pathlib import Path
from typing import Any, Self

import grpc
import grpc.aio

from tessera.kubelet.methods import GET, GET_ALLOCATABLE, LIST, OPTIONS, POD_RESOURCES, service
from tessera.kubelet.proto import podresources_pb2 as pr
from tessera.kubelet.wire import held_to_wire, pod_to_wire
from tessera_lab.kubelet.device_plugins.registration import PodResourcesSource

Context = grpc.aio.ServicerContext[Any, Any]


class PodResourcesServer:
    """Serves ``v1.PodResourcesLister`` on ``socket`` inside ``async with``.

    Args:
        socket: where to listen; a leftover there is replaced.
        source: knows the node's pods.
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
        await self._server.start()
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
            devices=[held_to_wire(held) for held in await self._source.allocatable()]
        )

    async def _get(self, request: pr.GetPodResourcesRequest, context: Context) -> pr.GetPodResourcesResponse:
        pod = await self._source.get(request.pod_name, request.pod_namespace)
        if pod is None:
            await context.abort(
                grpc.StatusCode.NOT_FOUND, f"pod {request.pod_namespace}/{request.pod_name} is not on this node"
            )
            raise AssertionError("abort raises")
        return pr.GetPodResourcesResponse(pod_resources=pod_to_wire(pod))
