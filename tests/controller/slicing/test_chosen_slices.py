"""Slices by claims whose selectors choose single cards, or places on them."""

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.claim_cluster import ClaimCluster, request, selecting

from tessera.api.names import PodUid
from tessera.cel.evaluator import Program
from tessera.dra.claims import DeviceClass
from tessera.dra.devices import Holdings
from tessera.dra.matching import NoMatch, match_claims
from tessera.dra.requests import read_demand
from tessera.dra.resource_slices import ResourceSlice, read_pools
from tessera.dra.selectors import DeviceSelectors

SMALL, ANY = "mig-1g.5gb.tessera.dev", "mig.tessera.dev"
OWN = "device.attributes['gpu.tessera.dev']"
INDEX, START, PARENT = f"{OWN}.index", f"{OWN}.start", f"{OWN}.parentUUID"


def small(*places: tuple[int, int]) -> set[str]:
    return {f"gpu-{card}-mig-1g5gb-19-{start}" for card, start in places}


def given_devices(cluster: ClaimCluster, keys: Sequence[str]) -> list[str]:
    return sorted(device for key in keys for _, device in cluster.devices(key))


def ask(cluster: ClaimCluster, name: str, *requests: dict[str, Any], **more: Any) -> str:
    key = cluster.claim(name, *requests, **more)
    cluster.user(f"p-{name}", key)
    return key


def fault(cluster: ClaimCluster, name: str) -> str:
    found: str = cluster.slicer.state.cluster.pods[PodUid(f"uid-p-{name}")].fault
    return found


@pytest.mark.parametrize(
    ("expression", "chosen"),
    [
        (f"{INDEX} == 1", small(*((1, start) for start in range(7)))),
        (f"{PARENT} == 'GPU-n1-0'", small(*((0, start) for start in range(7)))),
        (f"{OWN}.minor == 1 && {START} < 2", small((1, 0), (1, 1))),
        ("device.attributes['resource.kubernetes.io'].pciBusID == '0000:01:00.0'", small(*((1, n) for n in range(7)))),
        (f"{START} == 4", small((0, 4), (1, 4))),
        (f"{INDEX} == 0 && {START} in [2, 3]", small((0, 2), (0, 3))),
        (f"({INDEX} == 0 && {START} == 0) || ({INDEX} == 1 && {START} == 2)", small((0, 0), (1, 2))),
        (f"device.attributes.exists(name, name != '') && {INDEX} == 0 && {START} == 6", small((0, 6))),
    ],
)
def test_a_selector_chooses_cards_and_places(expression: str, chosen: set[str]) -> None:
    cluster = ClaimCluster()
    cluster.claim_node("n1", count=2)
    keys = [ask(cluster, f"c{n}", request("gpu", SMALL, **selecting(expression))) for n in range(len(chosen) + 1)]
    cluster.settle()
    assert given_devices(cluster, keys) == sorted(chosen)
    assert not any(pod.fault for pod in cluster.slicer.state.cluster.pods.values())


def test_chosen_places_stay_free_for_nobody_and_go_to_the_next_who_chooses_them() -> None:
    cluster = ClaimCluster()
    cluster.claim_node("n1")
    first = ask(cluster, "first", request("gpu", SMALL, **selecting(f"{START} == 3")))
    cluster.settle()
    second = ask(cluster, "second", request("gpu", SMALL, **selecting(f"{START} == 3")))
    others = [ask(cluster, f"o{n}", request("gpu", SMALL)) for n in range(6)]
    cluster.settle()
    assert given_devices(cluster, [first]) == sorted(small((0, 3)))
    assert given_devices(cluster, others) == sorted(small(*((0, start) for start in range(7) if start != 3)))
    assert cluster.devices(second) == []
    cluster.remove(cluster.slicer.state.cluster.pods["uid-p-first"])
    cluster.settle()
    assert given_devices(cluster, [second]) == sorted(small((0, 3)))


def test_a_batch_keeps_chosen_places_apart_from_those_of_others() -> None:
    cluster = ClaimCluster()
    cluster.claim_node("n1")
    others = [ask(cluster, f"o{n}", request("gpu", SMALL)) for n in range(6)]
    chosen = ask(cluster, "chosen", request("gpu", SMALL, **selecting(f"{START} == 0")))
    cluster.settle()
    assert given_devices(cluster, [chosen]) == sorted(small((0, 0)))
    assert len(given_devices(cluster, others)) == 6


def test_one_claim_has_slices_of_chosen_cards_and_of_any() -> None:
    cluster = ClaimCluster()
    cluster.claim_node("n1", count=3)
    requests = [
        request("left", ANY, **selecting(f"{OWN}.profile == '3g.20gb' && {INDEX} == 2")),
        request("pair", SMALL, count=2, **selecting(f"{INDEX} == 1 && {START} >= 4")),
        request("any", SMALL),
    ]
    key = ask(cluster, "c", *requests)
    cluster.settle()
    found = given_devices(cluster, [key])
    assert len(found) == 4
    assert sum(each.startswith("gpu-2-mig-3g20gb") for each in found) == 1
    assert len(small((1, 4), (1, 5), (1, 6)) & {*found}) >= 2


def test_the_smallest_profile_with_a_chosen_place_is_given() -> None:
    cluster = ClaimCluster()
    cluster.claim_node("n1")
    key = ask(cluster, "c", request("gpu", ANY, **selecting(f"{START} == 4 && {OWN}.size >= 2")))
    cluster.settle()
    assert "mig-1g10gb" in cluster.devices(key)[0][1]


def test_all_gives_the_slices_of_one_card() -> None:
    cluster = ClaimCluster()
    cluster.claim_node("n1", count=2)
    key = ask(cluster, "c", request("gpu", SMALL, allocationMode="All", **selecting(f"{INDEX} == 1")))
    cluster.settle()
    assert given_devices(cluster, [key]) == sorted(small(*((1, start) for start in range(7))))


def test_what_no_node_has_is_a_reason_until_a_node_has_it() -> None:
    cluster = ClaimCluster()
    cluster.claim_node("n1")
    key = ask(cluster, "c", request("gpu", SMALL, **selecting(f"{PARENT} == 'GPU-n2-1'")))
    cluster.settle()
    assert fault(cluster, "c") == (
        "claim default/c: request gpu: no node publishes a device for it: its class and selectors choose none; see"
        " kubectl get resourceslices"
    )
    cluster.claim_node("n2", count=2)
    cluster.settle()
    assert [node for node, _ in cluster.devices(key)] == ["n2"]
    assert cluster.devices(key)[0][1].startswith("gpu-1-")


def test_a_restart_keeps_what_was_chosen() -> None:
    cluster = ClaimCluster()
    cluster.claim_node("n1", count=2)
    key = ask(cluster, "c", request("gpu", SMALL, **selecting(f"{INDEX} == 1 && {START} == 0")))
    cluster.settle()
    waiting = ask(cluster, "w", request("gpu", SMALL, **selecting(f"{INDEX} == 1 && {START} == 0")))
    cluster.settle()
    cluster.resume()
    assert given_devices(cluster, [key]) == sorted(small((1, 0)))
    assert cluster.devices(waiting) == []


_ATOMS = st.one_of(
    st.builds("{} == {}".format, st.just(INDEX), st.integers(0, 2)),
    st.builds("{} {} {}".format, st.just(START), st.sampled_from(["==", "<", ">="]), st.integers(0, 6)),
    st.builds("{} == 'GPU-n{}-{}'".format, st.just(PARENT), st.integers(1, 2), st.integers(0, 1)),
    st.just(f"{OWN}.lacking == 1"),
)
_EXPRESSIONS = st.one_of(
    _ATOMS, st.builds("({}) && ({})".format, _ATOMS, _ATOMS), st.builds("({}) || ({})".format, _ATOMS, _ATOMS)
)


@given(
    st.lists(
        st.tuples(st.sampled_from([SMALL, "mig-3g.20gb.tessera.dev"]), _EXPRESSIONS, st.integers(1, 2)), max_size=5
    )
)
def test_a_claim_gets_what_the_allocator_of_kube_scheduler_could_give(asked: list[tuple[str, str, int]]) -> None:
    cluster = ClaimCluster()
    cluster.claim_node("n1", count=2)
    cluster.claim_node("n2")
    pools = read_pools(msgspec.convert(each, ResourceSlice) for each in cluster.slices.values())
    bare = [msgspec.structs.replace(each, devices=tuple(map(_untainted, each.devices))) for each in pools]
    classes = {each["metadata"]["name"]: msgspec.convert(each, DeviceClass) for each in cluster.classes}
    held = {pool.name: Holdings() for pool in bare}
    for number, (name, expression, count) in enumerate(asked):
        key = ask(cluster, f"c{number}", request("gpu", name, count=count, **selecting(expression)))
        cluster.settle()
        demand = read_demand(key, cluster.read_claim(key).spec, classes)
        answers = {pool.name: match_claims([demand], (pool,), held[pool.name], DeviceSelectors()) for pool in bare}
        possible = {node for node, answer in answers.items() if not isinstance(answer, NoMatch)}
        found = cluster.devices(key)
        assert bool(found) == bool(possible), (expression, answers)
        for node, device in found:
            (pool,) = (each for each in bare if each.name == node)
            (chosen,) = (each for each in pool.devices if each.id.device == device)
            assert all(DeviceSelectors().matches(text, chosen).matches for _, text in demand.requests[0][0].selectors)
            held[node].take(chosen, {})


def _untainted(device: Any) -> Any:
    return msgspec.structs.replace(device, taints=())


def test_selectors_of_cards_cost_little_on_a_large_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = ClaimCluster()
    for number in range(30):
        cluster.claim_node(f"n{number}", count=2)
    evaluated: list[object] = []
    evaluate = Program.is_true

    def count(*args: Any) -> bool:
        evaluated.append(args)
        return evaluate(*args)

    monkeypatch.setattr(Program, "is_true", count)
    for number in range(20):
        ask(cluster, f"c{number}", request("gpu", SMALL, **selecting(f"{PARENT} == 'GPU-n{number}-1'")))
    cluster.settle()
    assert all(cluster.devices(f"default/c{number}")[0][0] == f"n{number}" for number in range(20))
    assert len(evaluated) < 100, "of 840 devices only the seven chosen ones of each selector are evaluated"
    evaluated.clear()
    cluster.withdraw("n29")
    cluster.settle()
    assert not evaluated


def test_selectors_that_cost_their_budget_are_refused_and_others_are_not() -> None:
    cluster = ClaimCluster()
    cluster.claim_node("n1", count=2)
    loop = "[1,2,3,4,5,6,7,8,9].all(a, [1,2,3,4,5,6,7,8,9].all(b, [1,2,3,4,5,6,7,8,9].all(c, a + b + c > {})))"
    for number in range(200):
        ask(cluster, f"c{number}", request("gpu", SMALL, **selecting(f"{INDEX} >= 0 && {loop.format(-number)}")))
    faults = [fault(cluster, f"c{number}") for number in range(200)]
    assert "cost more than 3,000,000 units" in faults[-1] or "in 64 ways in a namespace" in faults[-1]
    other = cluster.claim("c", request("gpu", SMALL, **selecting(f"{INDEX} == 1")), namespace="team-b")
    cluster.user("q", other, namespace="team-b")
    cluster.settle()
    assert cluster.devices(other)[0][1].startswith("gpu-1-")
