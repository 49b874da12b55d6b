"""Kubelet's gRPC APIs: the methods, a constant each, and messages as values of :mod:`tessera.kubelet.interfaces`.

A :class:`Method` has the content of generated service stubs: the path and the two message types. The same constant
makes the caller's stub and the server's handler, so that both ends cannot differ. Of the messages, only what a plugin
answers and reads is translated here; the simulated kubelet has the other side.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, Generic, TypeVar

import grpc
import grpc.aio
import msgspec
from google.protobuf.message import Message

from tessera.kubelet.interfaces import (
    ClaimDevices,
    ContainerAllocateResponse,
    ContainerDevices,
    ContainerResources,
    Device,
    PluginOptions,
    PodResources,
    PreferredRequest,
    PreparedDevice,
)
from tessera.kubelet.proto import deviceplugin_pb2 as dp
from tessera.kubelet.proto import dra_pb2 as dra
from tessera.kubelet.proto import drahealth_pb2 as health
from tessera.kubelet.proto import pluginregistration_pb2 as registration
from tessera.kubelet.proto import podresources_pb2 as pr

#: ``Version`` of kubelet's device plugin API.
VERSION = "v1beta1"
HEALTHY = "Healthy"
UNHEALTHY = "Unhealthy"


def options_to_wire(options: PluginOptions) -> dp.DevicePluginOptions:
    """DevicePluginOptions."""
    return dp.DevicePluginOptions(
        pre_start_required=options.pre_start_required,
        get_preferred_allocation_available=options.get_preferred_allocation_available,
    )


def devices_to_wire(devices: Iterable[Device]) -> dp.ListAndWatchResponse:
    """A full device list. A device without NUMA nodes has no topology at all, as kubelet expects."""
    return dp.ListAndWatchResponse(devices=[_device_to_wire(device) for device in devices])


def _device_to_wire(device: Device) -> dp.Device:
    message = dp.Device(ID=device.id, health=HEALTHY if device.healthy else UNHEALTHY)
    message.topology.nodes.extend(dp.NUMANode(ID=node) for node in device.numa_nodes) if device.numa_nodes else None
    return message


def preferred_from_wire(message: dp.PreferredAllocationRequest) -> list[PreferredRequest]:
    """PreferredAllocationRequest."""
    return [
        PreferredRequest(
            available=tuple(request.available_deviceIDs),
            must_include=tuple(request.must_include_deviceIDs),
            size=request.allocation_size,
        )
        for request in message.container_requests
    ]


def preferences_to_wire(preferences: Iterable[Sequence[str]]) -> dp.PreferredAllocationResponse:
    """PreferredAllocationResponse."""
    return dp.PreferredAllocationResponse(
        container_responses=[dp.ContainerPreferredAllocationResponse(deviceIDs=ids) for ids in preferences]
    )


def allocations_to_wire(allocations: Iterable[ContainerAllocateResponse]) -> dp.AllocateResponse:
    """AllocateResponse."""
    return dp.AllocateResponse(container_responses=[_allocation_to_wire(allocation) for allocation in allocations])


def _allocation_to_wire(allocation: ContainerAllocateResponse) -> dp.ContainerAllocateResponse:
    return dp.ContainerAllocateResponse(
        envs=allocation.envs,
        mounts=[
            dp.Mount(container_path=mount.container_path, host_path=mount.host_path, read_only=mount.read_only)
            for mount in allocation.mounts
        ],
        devices=[
            dp.DeviceSpec(container_path=node.container_path, host_path=node.host_path, permissions=node.permissions)
            for node in allocation.device_nodes
        ],
        annotations=allocation.annotations,
        cdi_devices=[dp.CDIDevice(name=name) for name in allocation.cdi_devices],
    )


def _claim_from_wire(message: pr.DynamicResource) -> ClaimDevices:
    """Devices of a claim; this API does not say which of its requests they answer."""
    return ClaimDevices(
        namespace=message.claim_namespace,
        name=message.claim_name,
        devices=tuple(
            (
                each.driver_name,
                PreparedDevice(
                    requests=(),
                    pool=each.pool_name,
                    device=each.device_name,
                    cdi_devices=tuple(device.name for device in each.cdi_devices),
                    share_id=each.share_id,
                ),
            )
            for each in message.claim_resources
        ),
    )


def pod_from_wire(message: pr.PodResources) -> PodResources:
    """One pod of a pod-resources answer.

    Kubelet may list one resource several times in a container, once for each NUMA node; these stay apart here.
    """
    return PodResources(
        name=message.name,
        namespace=message.namespace,
        containers=tuple(
            ContainerResources(
                name=container.name,
                devices=tuple(
                    ContainerDevices(resource_name=held.resource_name, device_ids=tuple(held.device_ids))
                    for held in container.devices
                ),
                claims=tuple(_claim_from_wire(claim) for claim in container.dynamic_resources),
            )
            for container in message.containers
        ),
    )


#: Most bytes: a message between an agent and kubelet. Kubelet's own server of pod resources allows as many.
KUBELET_MESSAGE = 16 * 2**20

Request = TypeVar("Request", bound=Message)
Response = TypeVar("Response", bound=Message)

#: Options of channels and servers.
OPTIONS: Sequence[tuple[str, Any]] = (
    ("grpc.max_receive_message_length", KUBELET_MESSAGE),
    ("grpc.max_send_message_length", KUBELET_MESSAGE),
    # Every socket has its own connection: a replaced plugin must not be reached through an old one.
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.enable_http_proxy", 0),
    # Option of channels: a socket's path, which gRPC would send, is no valid authority for strict servers.
    ("grpc.default_authority", "localhost"),
)


class Method(msgspec.Struct, Generic[Request, Response], frozen=True):
    """One method of a gRPC service."""

    service: str
    name: str
    request: type[Request]
    response: type[Response]

    @property
    def path(self) -> str:
        """``/package.Service/Method``."""
        return f"/{self.service}/{self.name}"

    def unary(self, channel: grpc.aio.Channel) -> "grpc.aio.UnaryUnaryMultiCallable[Request, Response]":
        """The caller's side of a plain method."""
        return channel.unary_unary(
            self.path,
            request_serializer=self.request.SerializeToString,
            response_deserializer=self.response.FromString,
        )

    def stream(self, channel: grpc.aio.Channel) -> "grpc.aio.UnaryStreamMultiCallable[Request, Response]":
        """The caller's side of a method that answers with a stream."""
        return channel.unary_stream(
            self.path,
            request_serializer=self.request.SerializeToString,
            response_deserializer=self.response.FromString,
        )

    def handle_unary(
        self, answer: "Callable[[Request, grpc.aio.ServicerContext[Request, Response]], Awaitable[Response]]"
    ) -> "tuple[str, grpc.RpcMethodHandler[Request, Response]]":
        """The server's side of a plain method."""
        return self.name, grpc.unary_unary_rpc_method_handler(
            answer,
            request_deserializer=self.request.FromString,
            response_serializer=self.response.SerializeToString,
        )

    def handle_stream(
        self, answer: "Callable[[Request, grpc.aio.ServicerContext[Request, Response]], AsyncIterator[Response]]"
    ) -> "tuple[str, grpc.RpcMethodHandler[Request, Response]]":
        """The server's side of a method that answers with a stream."""
        return self.name, grpc.unary_stream_rpc_method_handler(
            answer,
            request_deserializer=self.request.FromString,
            response_serializer=self.response.SerializeToString,
        )


def service(name: str, *handlers: "tuple[str, grpc.RpcMethodHandler[Any, Any]]") -> grpc.GenericRpcHandler:
    """The handler of one gRPC service."""
    return grpc.method_handlers_generic_handler(name, dict(handlers))


REGISTRATION = "v1beta1.Registration"
REGISTER = Method(REGISTRATION, "Register", dp.RegisterRequest, dp.Empty)

DEVICE_PLUGIN = "v1beta1.DevicePlugin"
GET_OPTIONS = Method(DEVICE_PLUGIN, "GetDevicePluginOptions", dp.Empty, dp.DevicePluginOptions)
LIST_AND_WATCH = Method(DEVICE_PLUGIN, "ListAndWatch", dp.Empty, dp.ListAndWatchResponse)
GET_PREFERRED = Method(
    DEVICE_PLUGIN, "GetPreferredAllocation", dp.PreferredAllocationRequest, dp.PreferredAllocationResponse
)
ALLOCATE = Method(DEVICE_PLUGIN, "Allocate", dp.AllocateRequest, dp.AllocateResponse)
PRE_START = Method(DEVICE_PLUGIN, "PreStartContainer", dp.PreStartContainerRequest, dp.PreStartContainerResponse)

POD_RESOURCES = "v1.PodResourcesLister"
LIST = Method(POD_RESOURCES, "List", pr.ListPodResourcesRequest, pr.ListPodResourcesResponse)
GET_ALLOCATABLE = Method(
    POD_RESOURCES, "GetAllocatableResources", pr.AllocatableResourcesRequest, pr.AllocatableResourcesResponse
)
GET = Method(POD_RESOURCES, "Get", pr.GetPodResourcesRequest, pr.GetPodResourcesResponse)

PLUGIN_REGISTRATION = "pluginregistration.Registration"
GET_INFO = Method(PLUGIN_REGISTRATION, "GetInfo", registration.InfoRequest, registration.PluginInfo)
NOTIFY_STATUS = Method(
    PLUGIN_REGISTRATION,
    "NotifyRegistrationStatus",
    registration.RegistrationStatus,
    registration.RegistrationStatusResponse,
)

#: By the version that a driver of claims registers, the service. The messages of both are the same.
CLAIM_SERVICES: Mapping[str, str] = {
    "v1.DRAPlugin": "k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin",
    "v1beta1.DRAPlugin": "k8s.io.kubelet.pkg.apis.dra.v1beta1.DRAPlugin",
}
#: By that version, the methods.
PREPARE = {
    version: Method(path, "NodePrepareResources", dra.NodePrepareResourcesRequest, dra.NodePrepareResourcesResponse)
    for version, path in CLAIM_SERVICES.items()
}
UNPREPARE = {
    version: Method(
        path, "NodeUnprepareResources", dra.NodeUnprepareResourcesRequest, dra.NodeUnprepareResourcesResponse
    )
    for version, path in CLAIM_SERVICES.items()
}
#: The service, and what a driver registers for it.
CLAIM_HEALTH = "v1alpha1.DRAResourceHealth"
WATCH_HEALTH = Method(
    CLAIM_HEALTH, "NodeWatchResources", health.NodeWatchResourcesRequest, health.NodeWatchResourcesResponse
)
