"""Objects of Kubernetes 1.37: what it added to ``resource.k8s.io/v1`` changes nothing of how ours are read."""

import copy
from typing import Any

import msgspec
import pytest
from tests.support.claim_cluster import ClaimCluster, request

from tessera.controller.slicing.state.events import RecordObserved
from tessera.dra.claims import DeviceClass, ResourceClaim
from tessera.dra.resource_slices import ResourceSlice

ONE = "mig-1g.5gb.tessera.dev"
#: Of KEPs 5517, 5941, 5945, 5963 and 6080, and one that nobody has.
DEVICE = {
    "nodeAllocatableResourceMappings": {"cpu": {"quantityPerDevice": "2"}},
    "skipNodeOperations": ["Prepare"],
    "compatibilityGroups": ["mig"],
    "later": {"x": [1]},
}


def test_devices_with_newer_fields_are_given() -> None:
    cluster = ClaimCluster()
    cluster.claim_node("n1")
    for item in cluster.slices.values():
        item["spec"]["later"] = {"a": None}
        for device in item["spec"].get("devices", ()):
            device.update(copy.deepcopy(DEVICE))
            for each in device.get("consumesCounters", ()):
                each["compatibilityGroups"] = ["mig"]
        cluster.slicer.handle(RecordObserved("claims", msgspec.convert(item, ResourceSlice)))
    key = cluster.claim("c", {**request("x", ONE), "later": 1}, later=[1])
    cluster.patch_claim(key, {"status": {"later": {}, "devices": [{"driver": "other.example", "later": True}]}})
    pod = cluster.user("p", key)
    cluster.settle()
    assert cluster.where(pod)
    assert cluster.devices(key)


def test_an_allocation_with_newer_fields_is_taken_for_ours_and_goes_back() -> None:
    cluster = ClaimCluster()
    cluster.claim_node("n1")
    key = cluster.claim("c", request("x", ONE))
    pod = cluster.user("p", key)
    cluster.settle()
    allocation: dict[str, Any] = cluster.claims[key]["status"]["allocation"]
    allocation["nodeAllocatableResources"] = {"cpu": "2"}
    allocation["devices"]["results"][0]["later"] = ["x"]
    cluster.restart()
    cluster.settle()
    assert cluster.where(pod)
    cluster.remove(pod)
    cluster.settle()
    assert cluster.empty()


@pytest.mark.parametrize("group", ["scheduling.k8s.io", ""])
def test_a_claim_that_is_reserved_for_a_group_of_pods_stays_theirs(group: str) -> None:
    """KEP 5729: ``reservedFor`` may name a PodGroup. A claim that somebody has reserved is never cleared by us."""
    cluster = ClaimCluster()
    cluster.claim_node("n1")
    key = cluster.claim("c", request("x", ONE))
    pod = cluster.user("p", key)
    cluster.settle()
    user = {"resource": "podgroups", "name": "g", "uid": "uid-of-g", **({"apiGroup": group} if group else {})}
    cluster.patch_claim(key, {"status": {"reservedFor": [user]}})
    cluster.pods.pop(pod.uid)
    cluster.restart()
    for _ in range(3):
        cluster.agents()
        cluster.run()
    assert cluster.devices(key)
    late = [cluster.user(f"q{n}", cluster.claim(f"d{n}", request("x", ONE))) for n in range(7)]
    for _ in range(3):
        cluster.agents()
        cluster.run()
    assert sum(bool(cluster.where(each)) for each in late) == 6
    given = [each for name in cluster.claims for each in cluster.devices(name)]
    assert len(given) == len(set(given)) == 7


def test_a_class_with_newer_fields_is_read() -> None:
    made = msgspec.convert({"metadata": {"name": "c"}, "spec": {"selectors": [], "later": {"x": 1}}}, DeviceClass)
    assert made.spec.selectors == ()
    assert msgspec.convert(
        {"metadata": {"name": "c"}, "spec": {"devices": {"requests": [], "later": 1}}}, ResourceClaim
    )
