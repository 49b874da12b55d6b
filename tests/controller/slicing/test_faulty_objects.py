"""An Instaslice object that breaks a rule: its node is out, says why, and is in again once the object is mended."""

from dataclasses import replace
from typing import Any

import msgspec
import pytest
from tests.support.slicer_world import SlicerWorld

from tessera.api.instaslice import Instaslice
from tessera.api.names import NodeName
from tessera.controller.slicing.events import (
    InstasliceObserved,
    InstasliceUnreadable,
    InstasliceVersionsReset,
    PodVersionsReset,
)
from tessera.controller.slicing.instructions import ReportNodeCondition
from tessera.kube.client.codec import Codec, Undecodable

CODEC = Codec(Instaslice)


def store(world: SlicerWorld, node: str, **change: Any) -> None:
    """Stores a node's object with something else in its status; the watch shows it."""
    stored = world.objects[node]
    stored["status"] = {**stored["status"], **change}
    world.version += 1
    stored["metadata"]["resourceVersion"] = str(world.version)
    line = CODEC.decode_line(msgspec.json.encode({"type": "MODIFIED", "object": stored}))
    if isinstance(line, Undecodable):
        world.slicer.handle(InstasliceUnreadable(NodeName(node), line.error))
    else:
        world.slicer.handle(InstasliceUnreadable(NodeName(node), None))
        world.slicer.handle(InstasliceObserved(world.read(node)))


def promised(world: SlicerWorld) -> list[str]:
    """The nodes with promises, whatever their objects are otherwise."""
    return [name for name, item in world.objects.items() if item.get("spec", {}).get("podAllocationRequests")]


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
    "count": (
        {"nodeResources": {"foreign": [{"gpuUUID": "GPU-n1-0", "start": 0, "size": 1}] * 513}},
        "status.nodeResources.foreign is of 513 entries: Expected `array` of length <= 512",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_the_node_is_out_until_its_object_is_mended(world: SlicerWorld, fault: str) -> None:
    change, text = FAULTS[fault]
    world.node("n1", count=2)
    world.node("n2")
    world.settle()
    before = world.objects["n1"]["status"]
    store(world, "n1", **change)
    (report,) = [write for write in world.run() if isinstance(write, ReportNodeCondition)]
    assert report.node == "n1"
    assert report.text.startswith(f"instaslice instaslice-system/n1: {text}")
    assert "kubectl edit instaslice -n instaslice-system n1" in report.text
    for number in range(2):
        world.pod(f"p{number}", "7g.40gb")
    world.run()
    assert promised(world) == ["n2"]
    world.objects["n1"]["status"] = before
    store(world, "n1")
    assert [write.text for write in world.run() if isinstance(write, ReportNodeCondition)] == [""]
    world.settle()
    assert promised(world) == ["n1", "n2"]


def test_a_pod_that_was_promised_slices_there_goes_elsewhere(world: SlicerWorld) -> None:
    world.node("n1")
    pod = world.pod("a", "7g.40gb")
    world.slicer.decide()
    (request,) = world.slicer.pop_writes()
    world.answer(request)
    store(world, "n1", **FAULTS["end"][0])
    world.node("n2")
    world.run()
    world.agents()
    world.settle()
    assert world.states(pod) == ("ungated", "created")
    assert "n2" in [node for node, _, _ in world.where(pod)]


def test_what_runs_there_is_left_as_it_is_and_given_back_after(world: SlicerWorld) -> None:
    world.node("n1")
    pod = world.pod("a", "7g.40gb")
    world.settle()
    good = world.objects["n1"]["status"]
    store(world, "n1", **FAULTS["table"][0])
    world.run()
    world.remove(pod)
    assert world.run() == []
    world.objects["n1"]["status"] = good
    store(world, "n1")
    world.settle()
    assert world.empty()


def test_a_node_says_it_once_and_another_process_does_not_say_it_again(world: SlicerWorld) -> None:
    world.node("n1")
    store(world, "n1", **FAULTS["end"][0])
    (report,) = [write for write in world.run() if isinstance(write, ReportNodeCondition)]
    store(world, "n1", **FAULTS["end"][0])
    assert world.run() == []
    world.node_says("n1", report.text)
    world.restart()
    assert world.run() == []


def test_a_record_without_positions_is_removed_and_its_pod_placed(world: SlicerWorld) -> None:
    world.node("n1")
    pod = world.pod("a", "1g.5gb", gates=(), node="n1")
    ref = {"kind": "Pod", "namespace": "default", "name": "a", "uid": pod.uid}
    world.patch("n1", {"spec": {"podAllocationRequests": {pod.uid: {"profile": "1g.5gb", "podRef": ref}}}})
    world.settle()
    assert world.states(pod) == ("ungated", "created")
    assert len(world.where(pod)) == 1


def test_a_record_that_contradicts_another_and_is_dropped_ends_nothing(world: SlicerWorld) -> None:
    world.node("n1")
    one = world.pod("a", "7g.40gb")
    world.settle()
    other = world.pod("b", "7g.40gb", gates=(), hostname="n1")
    request = world.objects["n1"]["spec"]["podAllocationRequests"][one.uid]
    ref = {**request["podRef"], "uid": other.uid, "name": "b"}
    both = {other.uid: {**request, "podRef": ref}, one.uid: None}
    world.patch("n1", {"spec": {"podAllocationRequests": both}})
    world.remove(one)
    world.settle()
    assert world.overlaps() == []
    assert world.states(other) == ("ungated", "created")


def test_versions_that_went_back_do_not_hide_what_is_stored(world: SlicerWorld) -> None:
    """An etcd that was restored from a backup."""
    world.node("n1")
    pod = world.pod("a", "7g.40gb", version=90)
    world.settle()
    world.version = 1
    world.objects["n1"]["spec"], world.objects["n1"]["status"]["podAllocationResults"] = {}, {}
    world.slicer.handle(PodVersionsReset())
    world.slicer.handle(InstasliceVersionsReset())
    store(world, "n1")
    world.put(replace(world.pods[pod.uid], version=2))
    world.settle()
    assert world.states(pod) == ("ungated", "created")
    assert world.slicer.state.cluster.pods[pod.uid].version == 2
