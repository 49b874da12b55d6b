"""Translates between the values of :mod:`tessera.kubelet.interfaces` and kubelet's protobuf messages. Pure.

Only what a plugin answers and reads is here; the simulated kubelet has the other side.
"""

from collections.abc import Iterable, Sequence

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
