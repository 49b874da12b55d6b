"""An Instaslice object that breaks a rule: its node is out, says why, and is in again once the object is mended."""

from dataclasses import replace
from typing import Any

import msgspec
import pytest
from tests.support.slicer_cluster import SlicerCluster

from tessera.api.instaslice import Instaslice
from tessera.api.names import NodeName
from tessera.controller.slicing.state.events import (
    InstasliceObserved,
    InstasliceUnreadable,
    InstasliceVersionsReset,
    PodVersionsReset,
)
from tessera.controller.slicing.state.instructions import ReportNodeCondition
from tessera.kube.codec import Codec, Undecodable

CODEC = Codec(Instaslice)


def store(cluster: SlicerCluster, node: str, **change: Any) -> None:
    """Stores a node's object with something else in its status; the watch shows it."""
    stored = cluster.objects[node]
    stored["status"] = {**stored["status"], **change}
    cluster.version += 1
    stored["metadata"]["resourceVersion"] = str(cluster.version)
    line = CODEC.decode_line(msgspec.json.encode({"type": "MODIFIED", "object": stored}))
    if isinstance(line, Undecodable):
        cluster.slicer.handle(InstasliceUnreadable(NodeName(node), line.error))
    else:
        cluster.slicer.handle(InstasliceUnreadable(NodeName(node), None))
        cluster.slicer.handle(InstasliceObserved(cluster.read(node)))


def promised(cluster: SlicerCluster) -> list[str]:
    """The nodes with promises, whatever their objects are otherwise."""
    return [name for name, item in cluster.objects.items() if item.get("spec", {}).get("podAllocationRequests")]


def result(**change: Any) -> dict[str, Any]:
    return {
        "allocationStatus": {"allocationStatusController": "ungated", "allocationStatusDaemonset": "created"},
        "configMapResourceIdentifier": "x",
        "gpuUUID": "GPU-n1-0",
        "migPlacement": {"size": 1, "start": 0},
        "nodename": "n1",
        **change,
    }


FAULTS: dict[str, tuple[dict[str, Any], str]] = {
    "start": (
        {"podAllocationResults": {"u": result(migPlacement={"size": 1, "start": 2_000_000_000})}},
        "status.podAllocationResults.u.migPlacement.start is 2000000000: Expected `int` <= 31",
    ),
    "size": (
        {"podAllocationResults": {"u": result(migPlacement={"size": 0, "start": 0})}},
        "status.podAllocationResults.u.migPlacement.size is 0: Expected `int` >= 1",
    ),
    "end": (
        {"podAllocationResults": {"u": result(migPlacement={"size": 4, "start": 30})}},
        "status.podAllocationResults.u.migPlacement covers the memory slots 30 to 33: a card's slots are 0 to 31",
    ),
    "table": (
        {"nodeResources": {"nodeGpus": [{"gpuUuid": "GPU-n1-0", "gpuName": "A100", "gpuMemory": "1"}]}},
        "status.nodeResources.migPlacement: geometry A100: no profiles",
    ),
    "id of a whole card": (
        {"nodeResources": {"nodeGpus": [{"gpuUuid": "nvidia.com/gpu/0", "gpuName": "A100", "gpuMemory": "1"}]}},
        "status.nodeResources.nodeGpus[0].gpuUuid is \"nvidia.com/gpu/0\": Expected `str` matching regex '^[^/]*$'",
    ),
    "count": (
        {"nodeResources": {"foreign": [{"gpuUUID": "GPU-n1-0", "start": 0, "size": 1}] * 513}},
        "status.nodeResources.foreign is of 513 entries: Expected `array` of length <= 512",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_the_node_is_out_until_its_object_is_mended(cluster: SlicerCluster, fault: str) -> None:
    change, text = FAULTS[fault]
    cluster.node("n1", count=2)
    cluster.node("n2")
    cluster.settle()
    before = cluster.objects["n1"]["status"]
    store(cluster, "n1", **change)
    (report,) = [write for write in cluster.run() if isinstance(write, ReportNodeCondition)]
    assert report.node == "n1"
    assert report.text.startswith(f"instaslice instaslice-system/n1: {text}")
    assert "kubectl edit instaslice -n instaslice-system n1" in report.text
    for number in range(2):
        cluster.pod(f"p{number}", "7g.40gb")
    cluster.run()
    assert promised(cluster) == ["n2"]
    cluster.objects["n1"]["status"] = before
    store(cluster, "n1")
    assert [write.text for write in cluster.run() if isinstance(write, ReportNodeCondition)] == [""]
    cluster.settle()
    assert promised(cluster) == ["n1", "n2"]


def test_a_pod_that_was_promised_slices_there_goes_elsewhere(cluster: SlicerCluster) -> None:
    cluster.node("n1")
    pod = cluster.pod("a", "7g.40gb")
    cluster.slicer.decide()
    (request,) = cluster.slicer.pop_writes()
    cluster.answer(request)
    store(cluster, "n1", **FAULTS["end"][0])
    cluster.node("n2")
    cluster.run()
    cluster.agents()
    cluster.settle()
    assert cluster.states(pod) == ("ungated", "created")
    assert "n2" in [node for node, _, _ in cluster.where(pod)]


def test_what_runs_there_is_left_as_it_is_and_given_back_after(cluster: SlicerCluster) -> None:
    cluster.node("n1")
    pod = cluster.pod("a", "7g.40gb")
    cluster.settle()
    good = cluster.objects["n1"]["status"]
    store(cluster, "n1", **FAULTS["table"][0])
    cluster.run()
    cluster.remove(pod)
    assert cluster.run() == []
    cluster.objects["n1"]["status"] = good
    store(cluster, "n1")
    cluster.settle()
    assert cluster.empty()


def test_a_node_says_it_once_and_another_process_does_not_say_it_again(cluster: SlicerCluster) -> None:
    cluster.node("n1")
    store(cluster, "n1", **FAULTS["end"][0])
    (report,) = [write for write in cluster.run() if isinstance(write, ReportNodeCondition)]
    store(cluster, "n1", **FAULTS["end"][0])
    assert cluster.run() == []
    cluster.node_says("n1", report.text)
    cluster.restart()
    assert cluster.run() == []


def test_a_record_without_positions_is_removed_and_its_pod_placed(cluster: SlicerCluster) -> None:
    cluster.node("n1")
    pod = cluster.pod("a", "1g.5gb", gates=(), node="n1")
    ref = {"kind": "Pod", "namespace": "default", "name": "a", "uid": pod.uid}
    cluster.patch("n1", {"spec": {"podAllocationRequests": {pod.uid: {"profile": "1g.5gb", "podRef": ref}}}})
    cluster.settle()
    assert cluster.states(pod) == ("ungated", "created")
    assert len(cluster.where(pod)) == 1


def test_a_record_that_contradicts_another_and_is_dropped_ends_nothing(cluster: SlicerCluster) -> None:
    cluster.node("n1")
    one = cluster.pod("a", "7g.40gb")
    cluster.settle()
    other = cluster.pod("b", "7g.40gb", gates=(), hostname="n1")
    request = cluster.objects["n1"]["spec"]["podAllocationRequests"][one.uid]
    ref = {**request["podRef"], "uid": other.uid, "name": "b"}
    both = {other.uid: {**request, "podRef": ref}, one.uid: None}
    cluster.patch("n1", {"spec": {"podAllocationRequests": both}})
    cluster.remove(one)
    cluster.settle()
    assert cluster.overlaps() == []
    assert cluster.states(other) == ("ungated", "created")


def test_versions_that_went_back_do_not_hide_what_is_stored(cluster: SlicerCluster) -> None:
    """An etcd that was restored from a backup."""
    cluster.node("n1")
    pod = cluster.pod("a", "7g.40gb", version=90)
    cluster.settle()
    cluster.version = 1
    cluster.objects["n1"]["spec"], cluster.objects["n1"]["status"]["podAllocationResults"] = {}, {}
    cluster.slicer.handle(PodVersionsReset())
    cluster.slicer.handle(InstasliceVersionsReset())
    store(cluster, "n1")
    cluster.put(replace(cluster.pods[pod.uid], version=2))
    cluster.settle()
    assert cluster.states(pod) == ("ungated", "created")
    assert cluster.slicer.state.cluster.pods[pod.uid].version == 2
