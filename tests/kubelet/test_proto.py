"""The wire formats are kubelet's, field by field (k8s.io/kubelet/pkg/apis), and the generated code is up to date."""

from pathlib import Path
from typing import Any

import pytest
from google.protobuf import descriptor_pb2
from grpc_tools import protoc  # type: ignore[import-untyped]

import tessera.kubelet.proto
from tessera.kubelet.proto import deviceplugin_pb2, dra_pb2, drahealth_pb2, pluginregistration_pb2, podresources_pb2

MODULES = deviceplugin_pb2, podresources_pb2, dra_pb2, drahealth_pb2, pluginregistration_pb2
DRA = "k8s.io.kubelet.pkg.apis.dra.v1."

FIELDS: dict[str, dict[str, int]] = {
    "v1beta1.RegisterRequest": {"version": 1, "endpoint": 2, "resource_name": 3, "options": 4},
    "v1beta1.DevicePluginOptions": {"pre_start_required": 1, "get_preferred_allocation_available": 2},
    "v1beta1.ListAndWatchResponse": {"devices": 1},
    "v1beta1.Device": {"ID": 1, "health": 2, "topology": 3},
    "v1beta1.TopologyInfo": {"nodes": 1},
    "v1beta1.NUMANode": {"ID": 1},
    "v1beta1.PreferredAllocationRequest": {"container_requests": 1},
    "v1beta1.ContainerPreferredAllocationRequest": {
        "available_deviceIDs": 1,
        "must_include_deviceIDs": 2,
        "allocation_size": 3,
    },
    "v1beta1.PreferredAllocationResponse": {"container_responses": 1},
    "v1beta1.ContainerPreferredAllocationResponse": {"deviceIDs": 1},
    "v1beta1.AllocateRequest": {"container_requests": 1},
    "v1beta1.ContainerAllocateRequest": {"devices_ids": 1},
    "v1beta1.AllocateResponse": {"container_responses": 1},
    "v1beta1.ContainerAllocateResponse": {"envs": 1, "mounts": 2, "devices": 3, "annotations": 4, "cdi_devices": 5},
    "v1beta1.Mount": {"container_path": 1, "host_path": 2, "read_only": 3},
    "v1beta1.DeviceSpec": {"container_path": 1, "host_path": 2, "permissions": 3},
    "v1beta1.CDIDevice": {"name": 1},
    "v1beta1.PreStartContainerRequest": {"devices_ids": 1},
    "v1.ListPodResourcesResponse": {"pod_resources": 1},
    "v1.AllocatableResourcesResponse": {"devices": 1},
    "v1.GetPodResourcesRequest": {"pod_name": 1, "pod_namespace": 2},
    "v1.GetPodResourcesResponse": {"pod_resources": 1},
    "v1.PodResources": {"name": 1, "namespace": 2, "containers": 3},
    "v1.ContainerResources": {"name": 1, "devices": 2, "dynamic_resources": 5},
    "v1.DynamicResource": {"claim_name": 2, "claim_namespace": 3, "claim_resources": 4},
    "v1.ClaimResource": {"cdi_devices": 1, "driver_name": 2, "pool_name": 3, "device_name": 4, "share_id": 5},
    "v1.CDIDevice": {"name": 1},
    "v1.ContainerDevices": {"resource_name": 1, "device_ids": 2, "topology": 3},
    "v1.TopologyInfo": {"nodes": 1},
    "v1.NUMANode": {"ID": 1},
    DRA + "Claim": {"namespace": 1, "uid": 2, "name": 3},
    DRA + "NodePrepareResourcesRequest": {"claims": 1},
    DRA + "NodePrepareResourcesResponse": {"claims": 1},
    DRA + "NodePrepareResourceResponse": {"devices": 1, "error": 2},
    DRA + "Device": {"request_names": 1, "pool_name": 2, "device_name": 3, "cdi_device_ids": 4, "share_id": 5},
    DRA + "NodeUnprepareResourcesRequest": {"claims": 1},
    DRA + "NodeUnprepareResourcesResponse": {"claims": 1},
    DRA + "NodeUnprepareResourceResponse": {"error": 1},
    "v1alpha1.NodeWatchResourcesResponse": {"devices": 1},
    "v1alpha1.DeviceIdentifier": {"pool_name": 1, "device_name": 2},
    "v1alpha1.DeviceHealth": {
        "device": 1,
        "health": 2,
        "last_updated_time": 3,
        "health_check_timeout_seconds": 4,
        "message": 5,
    },
    "pluginregistration.PluginInfo": {"type": 1, "name": 2, "endpoint": 3, "supported_versions": 4},
    "pluginregistration.RegistrationStatus": {"plugin_registered": 1, "error": 2},
}


def without_json_names(message: descriptor_pb2.DescriptorProto) -> None:
    """The compiler writes them into a set and leaves them out of the code."""
    for field in message.field:
        field.ClearField("json_name")
    for nested in message.nested_type:
        without_json_names(nested)


def test_fields_have_kubelets_names_and_numbers() -> None:
    messages: list[Any] = []
    for module in MODULES:
        messages += module.DESCRIPTOR.message_types_by_name.values()
    assert {
        one.full_name: {field.name: field.number for field in one.fields} for one in messages if one.fields
    } == FIELDS


@pytest.mark.parametrize("module", MODULES)
def test_the_generated_code_is_that_of_the_proto_file(module: Any, tmp_path: Path) -> None:
    root = Path(tessera.kubelet.proto.__file__).parents[3]
    out = tmp_path / "set"
    assert protoc.main(["protoc", f"-I{root}", f"--descriptor_set_out={out}", str(root / module.DESCRIPTOR.name)]) == 0
    compiled = descriptor_pb2.FileDescriptorSet.FromString(out.read_bytes()).file[0]
    checked_in = descriptor_pb2.FileDescriptorProto()
    module.DESCRIPTOR.CopyToProto(checked_in)
    for one in (compiled, checked_in):
        for message in one.message_type:
            without_json_names(message)
    assert compiled == checked_in
