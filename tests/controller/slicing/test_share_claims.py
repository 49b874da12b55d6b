"""Shares of cards by claims: how many a claim takes, of which card, and why it gets none."""

from typing import Any

import msgspec
import pytest
from tests.support.claim_cluster import ClaimCluster, request, selecting

from tessera.controller.slicing.state.events import RecordObserved
from tessera.dra.node_devices import share_id
from tessera.dra.resource_slices import ResourceSlice

DOMAIN = "gpu.tessera.dev"
SHARES, SLICE = f"gpu-shares.{DOMAIN.removeprefix('gpu.')}", "mig-1g.5gb.tessera.dev"


@pytest.fixture
def cluster() -> ClaimCluster:
    """One card of 40 GiB in four shares, and two of 15 GiB in three."""
    found = ClaimCluster()
    found.claim_node("n1", count=1, shares=4)
    found.claim_node("n2", "T4", count=2, shares=3)
    return found


def amounts(**requests: str) -> dict[str, Any]:
    return {"capacity": {"requests": requests}}


def results(cluster: ClaimCluster, key: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = cluster.allocation(cluster.claims[key]).get("devices", {}).get("results", [])
    return found


def ask(cluster: ClaimCluster, count: int, *requests: dict[str, Any], **devices: Any) -> list[str]:
    """Pods with alike claims; returns the claims."""
    keys = [cluster.claim(f"c{number}", *requests, **devices) for number in range(count)]
    for number, key in enumerate(keys):
        cluster.user(f"p{number}", key)
    cluster.settle()
    return keys


def faults(cluster: ClaimCluster) -> set[str]:
    return {pod.fault for pod in cluster.slicer.state.cluster.pods.values()}


@pytest.mark.parametrize(
    ("wanted", "most", "node"),
    [
        ({}, 10, ""),  # 4 + 3 + 3
        (amounts(shares="1"), 10, ""),
        (amounts(shares="2"), 4, ""),  # 2 + 1 + 1
        (amounts(shares="4"), 1, "n1"),
        (amounts(memory="5Gi"), 10, ""),  # one share of either card
        (amounts(memory="6Gi"), 4, "n1"),  # one share of 10 GiB; the other cards' have 5
        (amounts(memory="21Gi"), 1, "n1"),  # three of four shares
        (selecting("device.attributes['gpu.tessera.dev'].index == 1"), 3, "n2"),
        ({**selecting("device.attributes['gpu.tessera.dev'].index == 1"), **amounts(memory="8Gi")}, 1, "n2"),
        ({"count": 2}, 5, ""),  # of one card or of two
    ],
)
def test_claims_get_as_many_shares_as_the_cards_have(
    cluster: ClaimCluster, wanted: dict[str, Any], most: int, node: str
) -> None:
    keys = ask(cluster, most + 3, request("gpu", SHARES, **wanted))
    given = [each for key in keys for each in results(cluster, key)]
    assert len(given) == most * wanted.get("count", 1)
    assert faults(cluster) == {""}
    assert not node or {each["pool"] for each in given} == {f"{node}/shares"}
    assert all(each["device"].endswith("-shares") and each["consumedCapacity"] for each in given)
    ids = [(each["pool"], each["shareID"]) for each in given]
    assert len(set(ids)) == len(ids)


def test_the_id_of_a_share_names_its_place(cluster: ClaimCluster) -> None:
    (key,) = ask(cluster, 1, request("gpu", SHARES, **amounts(shares="3", memory="1Gi")))
    (result,) = results(cluster, key)
    assert result["shareID"] in {share_id("GPU-n1-0", start) for start in range(4)}
    assert result["consumedCapacity"] == {"shares": "3", "memory": "1Gi"}
    cluster.resume()
    assert results(cluster, key) == [result]


def test_a_class_of_both_gives_whole_cards_first(cluster: ClaimCluster) -> None:
    cluster.claim_node("n3", "T4", count=1, whole=True)
    cluster.classes.append(
        {
            "metadata": {"name": "any"},
            "spec": {"selectors": [{"cel": {"expression": "device.driver == 'gpu.tessera.dev'"}}]},
        }
    )
    cluster.tell_claims()
    (key,) = ask(cluster, 1, request("gpu", "any"))
    assert cluster.devices(key) == [("n3", "gpu-0")]


MPS = {
    "opaque": {
        "driver": "gpu.tessera.dev",
        "parameters": {
            "apiVersion": "resource.nvidia.com/v1beta1",
            "kind": "GpuConfig",
            "sharing": {"strategy": "MPS"},
        },
    }
}


@pytest.mark.parametrize(
    ("requests", "devices", "reason"),
    [
        ([request("gpu", SHARES, **amounts(shares="5"))], {}, "capacity.requests.shares"),
        ([request("gpu", SHARES, **amounts(memory="50Gi"))], {}, "capacity.requests.memory"),
        ([request("gpu", SHARES, **amounts(cores="1"))], {}, "capacity.requests.cores"),
        ([request("gpu", SHARES)], {"config": [MPS]}, "a share has the strategy of its card"),
    ],
)
def test_what_no_card_can_share_is_refused_with_the_field(
    cluster: ClaimCluster, requests: list[dict[str, Any]], devices: dict[str, Any], reason: str
) -> None:
    cluster.claim_node("n3", "T4", count=1, whole=True)
    ask(cluster, 1, *requests, **devices)
    (fault,) = faults(cluster)
    assert reason in fault


def test_shares_of_one_claim_lie_on_one_card_where_it_says_so(cluster: ClaimCluster) -> None:
    same = {"constraints": [{"matchAttribute": "gpu.tessera.dev/uuid"}]}
    keys = ask(cluster, 4, request("gpu", SHARES, count=3), **same)
    given = [{(each["pool"], each["device"]) for each in results(cluster, key)} for key in keys]
    assert sorted(len(each) for each in given) == [0, 1, 1, 1]


@pytest.mark.parametrize(
    "capacity",
    [
        {},
        {"memory": {"value": "15Gi"}},
        {"shares": {"value": "0"}, "memory": {"value": "15Gi"}},
        {"shares": {"value": "1E18"}, "memory": {"value": "15Gi"}},
        {"shares": {"value": "4"}, "memory": {"value": "0"}},
        {
            name: {"value": value, "requestPolicy": {"default": "0"}}
            for name, value in (("shares", "3"), ("memory", "15Gi"))
        },
    ],
)
def test_a_forged_card_harms_no_other(capacity: dict[str, Any]) -> None:
    """The node with the forged devices has three places on each card; others are given as ever."""
    cluster = ClaimCluster()
    cluster.claim_node("n2", "T4", count=2, shares=3)
    (item,) = [each for each in cluster.slices.values() if each["spec"]["pool"]["name"] == "n2/shares"]
    for device in item["spec"]["devices"]:
        device["capacity"] = capacity
    cluster.slicer.handle(RecordObserved("claims", msgspec.convert(item, ResourceSlice)))
    cluster.claim_node("n1", count=1, shares=4)
    keys = ask(cluster, 11, request("gpu", SHARES, count=2))
    given = [each for key in keys for each in results(cluster, key)]
    assert len([each for each in given if each["pool"] == "n1/shares"]) == 4
    assert len(given) == (10 if "requestPolicy" in capacity.get("shares", {}) else 4)


@pytest.mark.parametrize(
    ("devices", "placed"),
    [
        ({"requests": [request("x", SHARES, count=2)], "constraints": [{"distinctAttribute": f"{DOMAIN}/uuid"}]}, 2),
        ({"requests": [request("x", SHARES, count=3)], "constraints": [{"distinctAttribute": f"{DOMAIN}/index"}]}, 0),
        (
            {
                "requests": [request("x", SLICE, count=3)],
                "constraints": [{"distinctAttribute": f"{DOMAIN}/parentUUID"}],
            },
            3,
        ),
        ({"requests": [request("x", SLICE, count=4)], "constraints": [{"distinctAttribute": f"{DOMAIN}/minor"}]}, 0),
        (
            {
                "requests": [request("x", SLICE, count=9)],
                "constraints": [{"matchAttribute": f"{DOMAIN}/driverVersion"}],
            },
            9,
        ),
    ],
)
def test_devices_lie_on_different_cards_where_a_constraint_says_so(
    cluster: ClaimCluster, devices: dict[str, Any], placed: int
) -> None:
    cluster.claim_node("n3", count=3)
    (key,) = ask(cluster, 1, *devices["requests"], constraints=devices["constraints"])
    given = results(cluster, key)
    assert len(given) == placed
    cards = {(each["pool"], each["device"].split("-")[1]) for each in given}
    assert "driverVersion" in str(devices) or len(cards) == placed
    assert faults(cluster) == {""}


@pytest.mark.parametrize(
    ("requests", "constraints", "reason"),
    [
        ([request("x", SLICE, count=2)], ["distinct uuid"], "compares uuid, which only whole cards and shares have"),
        ([request("x", SHARES, count=2)], ["distinct parentUUID"], "compares parentUUID, which only slices have"),
        ([request("x", SLICE, count=2)], ["match start"], "compares start, which is chosen by the room"),
        ([request("x", SLICE, count=2)], ["distinct index", "match index"], "compare index, and exclude one another"),
        ([request("x", SLICE, count=2)], ["distinct driverVersion"], "of which all cards of a node have the same"),
        ([request("x", SLICE), request("y", SHARES)], ["match type"], "compares devices that have mig, gpu"),
        ([request("x", SLICE, count=2)], ["distinct profile"], "compares devices that have 1g.5gb: ask for other"),
        ([request("x", SLICE), request("y", SHARES)], ["match index"], "wants several devices of one card"),
        ([request("x", SLICE), request("y", SHARES)], ["match parentUUID"], "compares parentUUID, which only slices"),
    ],
)
def test_a_constraint_that_cannot_be_kept_is_refused(
    cluster: ClaimCluster, requests: list[dict[str, Any]], constraints: list[str], reason: str
) -> None:
    cluster.claim_node("n3", count=3)
    rules = [{f"{kind}Attribute": f"{DOMAIN}/{name}"} for kind, name in map(str.split, constraints)]
    ask(cluster, 1, *requests, constraints=rules)
    (fault,) = faults(cluster)
    assert reason in fault
