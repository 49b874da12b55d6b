"""Kubelet's side of the device-plugin protocol: its calls and the calls that it serves, as values and as messages.

The simulated kubelet and tests call plugins through :class:`PluginClient`. :class:`GrpcPluginClient` reaches a plugin
over its unix socket; ``InProcessPluginClient`` (in ``inprocess``) reaches one in the same process. Both return the same
values, so the simulated kubelet has one code path. The socket servers (``grpc_servers``) and the in-process bus
(``inprocess``) call :class:`RegistrationHandler` and :class:`PodResourcesSource`.

Here is kubelet's side of the protobuf messages; :mod:`tessera.kubelet.wire` has a plugin's.
"""

import asyncio
import re
from collections.abc import AsyncIterator, Iterable, Sequence
from pathlib import Path
from typing import Protocol

import grpc
import grpc.aio

from tessera.kubelet.interfaces import (
    PRE_START_TIMEOUT,
    ClaimDevices,
    ContainerAllocateResponse,
    ContainerDevices,
    Device,
    DeviceNode,
    Mount,
    PluginError,
    PluginOptions,
    PodResources,
    PreferredRequest,
)
from tessera.kubelet.proto import deviceplugin_pb2 as dp
from tessera.kubelet.proto import podresources_pb2 as pr
from tessera.kubelet.wire import (
    ALLOCATE,
    GET_OPTIONS,
    GET_PREFERRED,
    HEALTHY,
    LIST_AND_WATCH,
    OPTIONS,
    PRE_START,
    Method,
    Request,
    Response,
)

#: How long kubelet waits for a plugin to answer while it registers, seconds (``dial`` in kubelet's plugin client).
CONNECT_TIMEOUT = 10.0
_QUALIFIED_NAME = re.compile(
    r"(?=.{1,253}/)[a-z0-9]([-a-z0-9.]*[a-z0-9])?/[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?"
)


def options_from_wire(message: dp.DevicePluginOptions) -> PluginOptions:
    """DevicePluginOptions."""
    return PluginOptions(
        pre_start_required=message.pre_start_required,
        get_preferred_allocation_available=message.get_preferred_allocation_available,
    )


def devices_from_wire(message: dp.ListAndWatchResponse) -> tuple[Device, ...]:
    """A full device list. Every health but ``Healthy`` counts as unhealthy, as in kubelet."""
    return tuple(
        Device(
            id=device.ID,
            healthy=device.health == HEALTHY,
            numa_nodes=tuple(node.ID for node in device.topology.nodes),
        )
        for device in message.devices
    )


def preferred_to_wire(requests: Iterable[PreferredRequest]) -> dp.PreferredAllocationRequest:
    """PreferredAllocationRequest."""
    return dp.PreferredAllocationRequest(
        container_requests=[
            dp.ContainerPreferredAllocationRequest(
                available_deviceIDs=request.available,
                must_include_deviceIDs=request.must_include,
                allocation_size=request.size,
            )
            for request in requests
        ]
    )


def allocate_to_wire(requests: Iterable[Sequence[str]]) -> dp.AllocateRequest:
    """AllocateRequest."""
    return dp.AllocateRequest(container_requests=[dp.ContainerAllocateRequest(devices_ids=ids) for ids in requests])


def allocations_from_wire(message: dp.AllocateResponse) -> list[ContainerAllocateResponse]:
    """AllocateResponse."""
    return [
        ContainerAllocateResponse(
            envs=dict(answer.envs),
            mounts=tuple(
                Mount(container_path=mount.container_path, host_path=mount.host_path, read_only=mount.read_only)
                for mount in answer.mounts
            ),
            device_nodes=tuple(
                DeviceNode(container_path=node.container_path, host_path=node.host_path, permissions=node.permissions)
                for node in answer.devices
            ),
            annotations=dict(answer.annotations),
            cdi_devices=tuple(device.name for device in answer.cdi_devices),
        )
        for answer in message.container_responses
    ]


def pod_to_wire(pod: PodResources) -> pr.PodResources:
    """One pod of a pod-resources answer."""
    return pr.PodResources(
        name=pod.name,
        namespace=pod.namespace,
        containers=[
            pr.ContainerResources(
                name=container.name,
                devices=[container_devices_to_wire(held) for held in container.devices],
                dynamic_resources=[_claim_to_wire(claim) for claim in container.claims],
            )
            for container in pod.containers
        ],
    )


def _claim_to_wire(claim: ClaimDevices) -> pr.DynamicResource:
    return pr.DynamicResource(
        claim_name=claim.name,
        claim_namespace=claim.namespace,
        claim_resources=[
            pr.ClaimResource(
                cdi_devices=[pr.CDIDevice(name=name) for name in each.cdi_devices],
                driver_name=driver,
                pool_name=each.pool,
                device_name=each.device,
                share_id=each.share_id or None,
            )
            for driver, each in claim.devices
        ],
    )


def container_devices_to_wire(held: ContainerDevices) -> pr.ContainerDevices:
    """Devices of one resource."""
    return pr.ContainerDevices(resource_name=held.resource_name, device_ids=held.device_ids)


class PluginClient(Protocol):
    """A registered device plugin, as kubelet calls it."""

    async def options(self) -> PluginOptions:
        """GetDevicePluginOptions.

        Raises:
            ConnectionError: the plugin does not answer.
        """
        ...

    def list_and_watch(self) -> AsyncIterator[tuple[Device, ...]]:
        """Yields full device lists until the plugin ends.

        Raises:
            ConnectionError: the connection to the plugin is lost; all its devices count as unhealthy.
        """
        ...

    async def get_preferred_allocation(self, requests: Sequence[PreferredRequest]) -> list[tuple[str, ...]]:
        """Returns one list of device ids per request. Call it only if the plugin's options offer it.

        Raises:
            PluginError: the plugin refused.
            ConnectionError: the plugin does not answer.
        """
        ...

    async def allocate(self, requests: Sequence[Sequence[str]]) -> list[ContainerAllocateResponse]:
        """Returns one answer for each container's device ids.

        Raises:
            PluginError: the plugin refused.
            ConnectionError: the plugin does not answer.
        """
        ...

    async def pre_start_container(self, device_ids: Sequence[str]) -> None:
        """Returns when the container may start, within :data:`~tessera.kubelet.interfaces.PRE_START_TIMEOUT` seconds.

        Raises:
            PluginError: the plugin refused, or did not answer in time.
            ConnectionError: the plugin does not answer.
        """
        ...

    async def close(self) -> None:
        """Closes the connection; running calls end with ConnectionError."""
        ...


class GrpcPluginClient:
    """A plugin behind a unix socket.

    Args:
        socket: the socket's absolute path.
    """

    def __init__(self, socket: Path) -> None:
        self._socket = socket
        self._closed = False
        self._channel = grpc.aio.insecure_channel(f"unix://{socket}", options=OPTIONS)

    async def options(self) -> PluginOptions:
        """See :meth:`PluginClient.options`."""
        return options_from_wire(await self._call(GET_OPTIONS, dp.Empty(), CONNECT_TIMEOUT))

    async def list_and_watch(self) -> AsyncIterator[tuple[Device, ...]]:
        """See :meth:`PluginClient.list_and_watch`."""
        stream = LIST_AND_WATCH.stream(self._channel)(dp.Empty())
        try:
            async for message in stream:
                yield devices_from_wire(message)
        except grpc.aio.AioRpcError as error:
            raise self._make_connection_error(LIST_AND_WATCH.name, error.details()) from error
        except asyncio.CancelledError as error:
            self._unless_hung_up(LIST_AND_WATCH.name, error)
        finally:
            stream.cancel()
        raise self._make_connection_error(LIST_AND_WATCH.name, "the stream ended")

    async def get_preferred_allocation(self, requests: Sequence[PreferredRequest]) -> list[tuple[str, ...]]:
        """See :meth:`PluginClient.get_preferred_allocation`."""
        answer = await self._call(GET_PREFERRED, preferred_to_wire(requests))
        return [tuple(response.deviceIDs) for response in answer.container_responses]

    async def allocate(self, requests: Sequence[Sequence[str]]) -> list[ContainerAllocateResponse]:
        """See :meth:`PluginClient.allocate`."""
        return allocations_from_wire(await self._call(ALLOCATE, allocate_to_wire(requests)))

    async def pre_start_container(self, device_ids: Sequence[str]) -> None:
        """See :meth:`PluginClient.pre_start_container`."""
        await self._call(PRE_START, dp.PreStartContainerRequest(devices_ids=device_ids), PRE_START_TIMEOUT)

    async def close(self) -> None:
        """See :meth:`PluginClient.close`."""
        self._closed = True
        await self._channel.close()

    async def _call(
        self, method: Method[Request, Response], request: Request, seconds: float | None = None
    ) -> Response:
        try:
            return await method.unary(self._channel)(request, timeout=seconds)
        except grpc.aio.AioRpcError as error:
            if error.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED):
                raise self._make_connection_error(method.name, error.details()) from error
            raise PluginError(error.details() or error.code().name) from error
        except (asyncio.CancelledError, grpc.aio.UsageError) as error:
            self._unless_hung_up(method.name, error)
            raise

    def _unless_hung_up(self, call: str, error: BaseException) -> None:
        """Tells a call that ended because the channel closed from one that its caller cancelled."""
        task = asyncio.current_task()
        if self._closed and task is not None and not task.cancelling():
            raise self._make_connection_error(call, "the caller hung up") from error
        raise error

    def _make_connection_error(self, call: str, reason: str | None) -> ConnectionError:
        return ConnectionResetError(f"device plugin at {self._socket} does not answer {call}: {reason}")


class RegistrationError(Exception):
    """Kubelet refuses a registration; the text goes back to the plugin."""


class RegistrationHandler(Protocol):
    """Called for every registration. The newest client of a resource replaces the older one, which it may close."""

    async def __call__(self, resource_name: str, options: PluginOptions, client: PluginClient) -> None:
        """Accepts the plugin; returns before it reads the device list.

        Raises:
            RegistrationError: refused.
        """
        ...


class PodResourcesSource(Protocol):
    """Answers the calls of the pod-resources API."""

    async def list(self) -> Sequence[PodResources]:
        """Every pod of the node with the devices of its containers."""
        ...

    async def allocatable(self) -> Sequence[ContainerDevices]:
        """Every device that can be allocated, free or not."""
        ...

    async def get(self, name: str, namespace: str) -> PodResources | None:
        """Returns one pod; ``None`` if the node has none of that name."""
        ...


def is_extended_resource_name(name: str) -> bool:
    """True if kubelet takes ``name`` as an extended resource: fully qualified and not of ``kubernetes.io``.

    As Kubernetes' ``IsExtendedResourceName``: its quota form ``requests.<name>`` must be a qualified name too.
    """
    if _QUALIFIED_NAME.fullmatch(f"requests.{name}") is None or _QUALIFIED_NAME.fullmatch(name) is None:
        return False
    domain = name.split("/", 1)[0]
    return not (domain == "kubernetes.io" or domain.endswith(".kubernetes.io") or name.startswith("requests."))
