"""Constraints over cards, slices and shares of a node, and requests for all of its devices."""

from collections.abc import Iterable
from typing import Any

import pytest
from tests.support.claim_cluster import ClaimCluster, request, selecting

from tessera.dra.limits import CLAIM_ENTRIES

CARD, SHARE, SLICE, THREE = (f"{name}.tessera.dev" for name in ("gpu", "gpu-shares", "mig-1g.5gb", "mig-3g.20gb"))
ROOT, NUMA = (f"resource.kubernetes.io/{name}" for name in ("pcieRoot", "numaNode"))
INDEX, PARENT = (f"gpu.tessera.dev/{name}" for name in ("index", "parentUUID"))


MEDIA = "device.attributes['gpu.tessera.dev'].profile == '1g.5gb+me'"


def rule(kind: str, attribute: str, *requests: str) -> dict[str, Any]:
    return {f"{kind}Attribute": attribute, "requests": list(requests)}


def indexes(cluster: ClaimCluster, key: str) -> list[int]:
    """The cards of a claim's devices, by index."""
    return [int(device.split("-")[1]) for _, device in cluster.devices(key)]


def shares(amount: int) -> dict[str, Any]:
    return {"capacity": {"requests": {"shares": str(amount)}}}


def check(kind: str, values: Iterable[int]) -> bool:
    found = list(values)
    return not found or len(set(found)) == (1 if kind == "match" else len(found))


@pytest.fixture
def cluster() -> ClaimCluster:
    return ClaimCluster()


@pytest.mark.parametrize("kind", ["match", "distinct"])
@pytest.mark.parametrize(("attribute", "group"), [(ROOT, 2), (NUMA, 3)])
@pytest.mark.parametrize(
    ("kinds", "requests"),
    [
        ("wcwc", (request("a", CARD), request("b", SLICE))),
        ("swsw", (request("a", CARD), request("b", SHARE))),
        ("scsc", (request("a", THREE), request("b", SHARE, **shares(3)))),
        ("cwcscw", (request("b", SLICE), request("a", CARD))),
        ("wwww", (request("a", CARD, count=2),)),
        ("cccc", (request("a", THREE, count=2),)),
        ("ssss", (request("a", SHARE, count=2, **shares(2)),)),
    ],
)
def test_devices_of_all_kinds_are_compared_alike(
    cluster: ClaimCluster, kind: str, attribute: str, group: int, *, kinds: str, requests: tuple[dict[str, Any], ...]
) -> None:
    """Two pods at a time, so the second one gets what the first one has left."""
    cluster.claim_node("n1", kinds=kinds)
    keys = [cluster.claim(f"c{n}", *requests, constraints=[rule(kind, attribute)]) for n in range(2)]
    for number, key in enumerate(keys):
        cluster.user(f"p{number}", key)
    cluster.settle()
    given = [indexes(cluster, key) for key in keys]
    assert given[0]
    assert all(check(kind, (each // group for each in found)) for found in given)


def test_a_value_that_is_free_is_taken_whichever_others_are_used(cluster: ClaimCluster) -> None:
    cluster.claim_node("n1", kinds="wcwcwc")
    for number in range(2):
        cluster.user(f"w{number}", cluster.claim(f"w{number}", request("gpu", CARD)))
    cluster.settle()
    key = cluster.claim("c", request("a", CARD), request("b", SLICE), constraints=[rule("match", ROOT)])
    cluster.user("p", key)
    cluster.settle()
    assert len({each // 2 for each in indexes(cluster, key)}) == 1
    assert len(cluster.devices(key)) == 2


def test_constraints_of_some_requests_and_several_at_once_hold(cluster: ClaimCluster) -> None:
    cluster.claim_node("n1", kinds="wcwcccss")
    requests = [request("a", CARD), request("b", SLICE, count=2), request("c", SHARE)]
    rules = [rule("match", ROOT, "a", "b"), rule("distinct", NUMA, "a", "c"), rule("match", PARENT, "b")]
    key = cluster.claim("c", *requests, constraints=rules)
    cluster.user("p", key)
    cluster.settle()
    found: dict[str, list[int]] = {each["name"]: [] for each in requests}
    for each in cluster._results(key):
        found[each["request"]].append(int(each["device"].split("-")[1]))
    (card,), slices, (share,) = found["a"], found["b"], found["c"]
    assert {each // 2 for each in slices} == {card // 2}
    assert len(set(slices)) == 1
    assert share // 3 != card // 3


def test_claims_of_one_pod_have_constraints_of_their_own(cluster: ClaimCluster) -> None:
    cluster.claim_node("n1", count=2)
    together = cluster.claim("c1", request("a", SLICE, count=2), constraints=[rule("match", PARENT)])
    apart = cluster.claim("c2", request("a", SLICE, count=2), constraints=[rule("distinct", PARENT)])
    cluster.user("p", together, apart)
    cluster.settle()
    assert len(set(indexes(cluster, together))) == 1
    assert sorted(indexes(cluster, apart)) == [0, 1]


def test_slices_of_different_starts_are_of_one_card(cluster: ClaimCluster) -> None:
    cluster.claim_node("n1", count=2)
    key = cluster.claim("c", request("a", THREE, count=2), constraints=[rule("distinct", "gpu.tessera.dev/start")])
    cluster.user("p", key)
    cluster.settle()
    assert len({device.rpartition("-")[2] for _, device in cluster.devices(key)}) == 2


@pytest.mark.parametrize(
    ("kinds", "requests", "attribute", "text"),
    [
        ("wcwc", [request("a", CARD, count=2), request("b", SLICE)], ROOT, "leaves too few cards on every node"),
        ("wwcc", [request("a", CARD), request("b", SLICE)], ROOT, "leaves too few cards on every node"),
        ("wcwc", [request("a", CARD), request("b", SLICE)], INDEX, "wants several devices of one card"),
        ("wcwc", [request("a", CARD), request("b", SLICE)], "example.com/index", "compares what no device has"),
    ],
)
def test_what_the_cards_of_no_node_keep_is_refused_with_the_field(
    cluster: ClaimCluster, kinds: str, requests: list[dict[str, Any]], attribute: str, text: str
) -> None:
    cluster.claim_node("n1", kinds=kinds)
    pod = cluster.user("p", cluster.claim("c", *requests, constraints=[rule("match", attribute)]))
    cluster.settle()
    fault = cluster.slicer.state.cluster.pods[pod.uid].fault
    assert f"claim default/c: spec.devices.constraints[0].matchAttribute {text}" in fault


def test_a_node_that_comes_later_keeps_a_refused_constraint(cluster: ClaimCluster) -> None:
    cluster.claim_node("n1", kinds="wwcc")
    key = cluster.claim("c", request("a", CARD), request("b", SLICE), constraints=[rule("match", ROOT)])
    cluster.user("p", key)
    cluster.settle()
    assert not cluster.devices(key)
    cluster.claim_node("n2", kinds="wc")
    cluster.settle()
    assert cluster.node_of(key) == "n2"
    cluster.resume()
    assert cluster.node_of(key) == "n2"


# allocationMode All --------------------------------------------------------------------------------------------------


def everything(device_class: str, **more: Any) -> dict[str, Any]:
    return request("gpu", device_class, allocationMode="All", **more)


@pytest.mark.parametrize(
    ("kinds", "wanted", "devices"),
    [
        ("cc", everything(SLICE), 14),
        ("cc", everything(THREE), 4),
        ("cc", everything("mig.tessera.dev", **selecting("device.attributes['gpu.tessera.dev'].size == 8")), 2),
        ("sss", everything(SHARE), 3),
        ("sss", everything(SHARE, **shares(2)), 3),
        ("wsc", everything("any", **selecting("device.attributes['gpu.tessera.dev'].type == 'gpu'")), 2),
    ],
)
def test_all_gives_every_device_that_the_selectors_choose(
    cluster: ClaimCluster, kinds: str, wanted: dict[str, Any], devices: int
) -> None:
    expression = "device.driver == 'gpu.tessera.dev'"
    cluster.classes.append({"metadata": {"name": "any"}, "spec": {"selectors": [{"cel": {"expression": expression}}]}})
    cluster.tell_claims()
    cluster.claim_node("n1", kinds=kinds)
    key = cluster.claim("c", wanted)
    cluster.user("p", key)
    cluster.settle()
    assert len(set(cluster.devices(key))) == devices
    cluster.resume()
    assert len(set(cluster.devices(key))) == devices


def test_all_waits_until_the_last_device_is_free(cluster: ClaimCluster) -> None:
    cluster.claim_node("n1", count=2)
    small = cluster.user("small", cluster.claim("s", request("x", SLICE)))
    cluster.settle()
    key = cluster.claim("c", everything(THREE))
    pod = cluster.user("p", key)
    cluster.settle()
    assert not cluster.devices(key)
    assert not cluster.slicer.state.cluster.pods[pod.uid].fault
    cluster.remove(small)
    cluster.settle()
    assert len(cluster.devices(key)) == 4


def test_all_means_what_most_nodes_give(cluster: ClaimCluster) -> None:
    for name, count in (("n1", 1), ("n2", 2), ("n3", 2)):
        cluster.claim_node(name, count=count)
    keys = [cluster.claim(f"c{n}", everything(THREE)) for n in range(3)]
    for number, key in enumerate(keys):
        cluster.user(f"p{number}", key)
    cluster.settle()
    assert sorted(len(cluster.devices(key)) for key in keys) == [0, 4, 4]


@pytest.mark.parametrize(
    ("count", "wanted", "text"),
    [
        (1, everything("mig.tessera.dev"), "which exclude one another: kube-scheduler's allocator, too"),
        (5, everything(SLICE), f"chooses 35 devices of a node; a claim has {int(CLAIM_ENTRIES)}"),
        (
            1,
            everything("mig.tessera.dev", **selecting("device.attributes['gpu.tessera.dev'].profile == '1g.5gb+me'")),
            "1",
        ),
    ],
)
def test_all_of_what_cannot_be_had_at_once_is_refused(
    cluster: ClaimCluster, count: int, wanted: dict[str, Any], text: str
) -> None:
    cluster.claim_node("n1", count=count)
    pod = cluster.user("p", cluster.claim("c", wanted))
    cluster.settle()
    fault = cluster.slicer.state.cluster.pods[pod.uid].fault
    assert "claim default/c: request gpu: allocationMode All chooses " in fault
    assert text in fault
