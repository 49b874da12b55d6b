"""The Instaslice object reads and writes as in the article."""

import msgspec
import pytest

from tessera.agent.inventory.sliceable_gpus import placements
from tessera.api.instaslice import (
    INSTASLICE_FORMAT,
    AllocationRequest,
    AllocationResult,
    AllocationStatus,
    Instaslice,
    InstasliceStatus,
    NodeResources,
    PodRef,
    Position,
    Slice,
)
from tessera.kube.resources.meta import FORMAT_ANNOTATION
from tessera.mig.geometry import GpuModel
from tessera.mig.models import MODELS

ARTICLE = b"""
{"metadata": {"name": "host-192-168-11-144", "namespace": "instaslice-system"},
 "status": {"podAllocationResults": {"98c08795-2da3-4598-81b7-538c4e37093b": {
  "allocationStatus": {"allocationStatusController": "ungated", "allocationStatusDaemonset": "created"},
  "configMapResourceIdentifier": "a02ae459-0618-4804-83f9-e5ba36af756f",
  "gpuUUID": "GPU-143a66c4-bd69-7559-8898-26f9886a2a56",
  "migPlacement": {"size": 4, "start": 0},
  "nodename": "host-192-168-11-144"}}}}
"""


def test_the_articles_result_is_read_and_written_back_unchanged() -> None:
    found = msgspec.json.decode(ARTICLE, type=Instaslice)
    result = found.status.pod_allocation_results["98c08795-2da3-4598-81b7-538c4e37093b"]
    assert result.mig_placement == Position(size=4, start=0)
    written = msgspec.json.decode(ARTICLE)["status"]["podAllocationResults"]["98c08795-2da3-4598-81b7-538c4e37093b"]
    assert msgspec.to_builtins(result) == written


def test_an_empty_daemonset_state_is_written() -> None:
    status = AllocationStatus(allocation_status_controller="creating")
    assert msgspec.to_builtins(status) == {"allocationStatusController": "creating", "allocationStatusDaemonset": ""}


def test_a_result_of_one_slice_has_exactly_the_five_keys() -> None:
    result = AllocationResult(
        allocation_status=AllocationStatus(),
        config_map_resource_identifier="x",
        gpu_uuid="GPU-1",
        mig_placement=Position(size=1, start=6),
        nodename="n",
    )
    assert sorted(msgspec.to_builtins(result)) == [
        "allocationStatus",
        "configMapResourceIdentifier",
        "gpuUUID",
        "migPlacement",
        "nodename",
    ]


def test_a_request_names_the_pod_and_every_slice() -> None:
    request = AllocationRequest(
        profile="1g.5gb+me",
        pod_ref=PodRef(namespace="ns", name="p", uid="u"),
        slices=(Slice(id="0", profile="1g.5gb+me", gpu_uuid="GPU-1", start=3, size=1),),
    )
    assert msgspec.json.decode(msgspec.json.encode(request)) == {
        "profile": "1g.5gb+me",
        "podRef": {"kind": "Pod", "namespace": "ns", "name": "p", "uid": "u"},
        "slices": [{"id": "0", "profile": "1g.5gb+me", "gpuUUID": "GPU-1", "start": 3, "size": 1}],
    }


@pytest.mark.parametrize("model", [each for each in MODELS if each.table is not None], ids=lambda each: each.short_name)
def test_the_table_of_every_model_is_within_the_bounds_of_the_object(model: GpuModel) -> None:
    table = placements(model.geometry)
    item = Instaslice(status=InstasliceStatus(node_resources=NodeResources(mig_placement=table)))
    assert msgspec.json.decode(msgspec.json.encode(item), type=Instaslice).status.node_resources.mig_placement == table


@pytest.mark.parametrize("annotations", [{}, {FORMAT_ANNOTATION: "1"}])
def test_an_object_of_a_known_format_is_read(annotations: dict[str, str]) -> None:
    text = msgspec.json.encode({"metadata": {"name": "n", "annotations": annotations}})
    assert msgspec.json.decode(text, type=Instaslice).metadata.name == "n"


@pytest.mark.parametrize("value", [str(INSTASLICE_FORMAT + 1), "9" * 5_000, "-1", "v2", "", "²"])
def test_an_object_of_another_format_is_refused_with_what_to_do(value: str) -> None:
    text = msgspec.json.encode({"metadata": {"name": "n", "annotations": {FORMAT_ANNOTATION: value}}})
    with pytest.raises(msgspec.ValidationError, match=r"tessera\.dev/format: .* up to 1: .*Install the newer version"):
        msgspec.json.decode(text, type=Instaslice)
