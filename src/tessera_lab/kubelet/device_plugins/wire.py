"""Kubelet's side of its protobuf messages; :mod:`tessera.kubelet.wire` has a plugin's. Pure."""

from collections.abc import Iterable, Sequence

from tessera.kubelet.interfaces import (
    ClaimDevices,
    ContainerAllocateResponse,
    ContainerDevices,
    Device,
    DeviceNode,
    Mount,
    PluginOptions,
    PodResources,
    PreferredRequest,
)
from tessera.kubelet.proto import deviceplugin_pb2 as dp
from tessera.kubelet.proto import podresources_pb2 as pr
from tessera.kubelet.wire import HEALTHY


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
