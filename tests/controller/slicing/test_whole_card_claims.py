"""Whole cards by claims: which cards a claim gets, card by card."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from tests.support.claim_cluster import ClaimCluster, request, selecting

from tessera.api.names import NodeName
from tessera.claims.controller import claim_profiles
from tessera.claims.controller.chosen_devices import ChosenDevices
from tessera.controller.objects.pod_info import PodInfo
from tessera.dra.driver_objects import device_classes
from tessera.dra.limits import NAMESPACE_CARD_CHOICES
from tessera.dra.node_devices import DRIVER
from tessera.limits import Limit

WHOLE = "gpu.tessera.dev"
INDEX = "device.attributes['gpu.tessera.dev'].index"
ROOT = "resource.kubernetes.io/pcieRoot"


@pytest.fixture
def cluster() -> ClaimCluster:
    found = ClaimCluster()
    found.claim_node("n1", count=4, whole=True)
    return found


def remove(cluster: ClaimCluster, name: str) -> None:
    cluster.remove(next(each for each in cluster.pods.values() if each.name == name))


def cards(cluster: ClaimCluster, *keys: str) -> list[str]:
    return [device for key in keys for _, device in cluster.devices(key)]


def test_claims_get_all_cards_and_the_next_one_waits(cluster: ClaimCluster) -> None:
    keys = [cluster.claim(f"c{number}", request("gpu", WHOLE, count=2)) for number in range(3)]
    for number, key in enumerate(keys):
        cluster.user(f"p{number}", key)
    cluster.settle()
    assert sorted(cards(cluster, *keys)) == ["gpu-0", "gpu-1", "gpu-2", "gpu-3"]
    (waiting,) = [number for number, key in enumerate(keys) if not cluster.devices(key)]
    remove(cluster, f"p{(waiting + 1) % 3}")
    cluster.settle()
    assert len(cluster.devices(keys[waiting])) == 2


@pytest.mark.parametrize(
    ("expression", "chosen"),
    [
        (f"{INDEX} == 2", {"gpu-2"}),
        (f"{INDEX} in [1, 3]", {"gpu-1", "gpu-3"}),
        ("device.attributes['gpu.tessera.dev'].uuid == 'GPU-n1-3'", {"gpu-3"}),
        ("device.attributes['resource.kubernetes.io'].pciBusID == '0000:01:00.0'", {"gpu-1"}),
        (f"device.attributes.exists(name, name == 'gpu.tessera.dev') && {INDEX} == 0", {"gpu-0"}),
    ],
)
def test_a_selector_chooses_single_cards(cluster: ClaimCluster, expression: str, chosen: set[str]) -> None:
    keys = [cluster.claim(f"c{number}", request("gpu", WHOLE, **selecting(expression))) for number in range(4)]
    for number, key in enumerate(keys):
        cluster.user(f"p{number}", key)
    cluster.settle()
    assert sorted(cards(cluster, *keys)) == sorted(chosen)
    assert all(not pod.fault for pod in cluster.slicer.state.cluster.pods.values())


def test_a_card_that_no_node_has_is_a_reason(cluster: ClaimCluster) -> None:
    pod = cluster.user("p", cluster.claim("c", request("gpu", WHOLE, **selecting(f"{INDEX} == 9"))))
    cluster.settle()
    assert cluster.slicer.state.cluster.pods[pod.uid].fault == (
        "claim default/c: request gpu: no node publishes a device for it: its class and selectors choose none; see"
        " kubectl get resourceslices"
    )


@pytest.mark.parametrize(
    ("expression", "problem"),
    [
        (f"{INDEX} > 'x'", "no such overload"),
        (INDEX, "bool"),
        (f"{INDEX} == 0 && {INDEX}.startsWith('0')", "no such overload"),
    ],
)
def test_a_selector_that_fails_on_every_card_is_a_reason(cluster: ClaimCluster, expression: str, problem: str) -> None:
    pods = [cluster.user(f"p{n}", cluster.claim(f"c{n}", request("r", WHOLE, **selecting(expression)))) for n in (1, 2)]
    cluster.settle()
    for pod in pods:
        fault = cluster.slicer.state.cluster.pods[pod.uid].fault
        assert "spec.devices.requests[0].exactly.selectors[0].cel.expression: " in fault
        assert problem in fault


def test_cards_that_come_later_are_chosen_too(cluster: ClaimCluster) -> None:
    key = cluster.claim("c", request("gpu", WHOLE, count=2, **selecting(f"{INDEX} >= 3")))
    cluster.user("p", key)
    cluster.settle()
    assert cards(cluster, key) == []
    cluster.claim_node("n2", count=5, whole=True)
    cluster.settle()
    assert sorted(cluster.devices(key)) == [("n2", "gpu-3"), ("n2", "gpu-4")]


def test_a_selector_of_a_model_chooses_cards_of_it(cluster: ClaimCluster) -> None:
    cluster.claim_node("n2", "T4", count=2, whole=True)
    selectors = selecting("device.attributes['gpu.tessera.dev'].productName == 'Tesla T4'")
    keys = [cluster.claim(f"c{number}", request("gpu", WHOLE, **selectors)) for number in range(3)]
    for number, key in enumerate(keys):
        cluster.user(f"p{number}", key)
    cluster.settle()
    given = sorted(device for key in keys for device in cluster.devices(key))
    assert given == [("n2", "gpu-0"), ("n2", "gpu-1")]


def test_all_gets_every_card_of_a_node(cluster: ClaimCluster) -> None:
    cluster.claim_node("n2", count=4, whole=True)
    keys = [cluster.claim(f"c{number}", request("gpu", WHOLE, allocationMode="All")) for number in range(3)]
    for number, key in enumerate(keys):
        cluster.user(f"p{number}", key)
    cluster.settle()
    assert sorted(len(cluster.devices(key)) for key in keys) == [0, 4, 4]


def test_all_gets_every_card_that_the_selectors_choose(cluster: ClaimCluster) -> None:
    key = cluster.claim("c", request("gpu", WHOLE, allocationMode="All", **selecting(f"{INDEX} >= 1")))
    cluster.user("p", key)
    cluster.settle()
    assert sorted(cards(cluster, key)) == ["gpu-1", "gpu-2", "gpu-3"]


def test_cards_of_a_claim_have_one_value_or_different_ones(cluster: ClaimCluster) -> None:
    same = [
        cluster.claim(f"s{number}", request("gpu", WHOLE, count=2), constraints=[{"matchAttribute": ROOT}])
        for number in range(6)
    ]
    for number, key in enumerate(same):
        cluster.user(f"p{number}", key)
    cluster.settle()
    given = sorted(sorted(cards(cluster, key)) for key in same if cluster.devices(key))
    assert given == [["gpu-0", "gpu-1"], ["gpu-2", "gpu-3"]]
    for number in range(6):
        remove(cluster, f"p{number}")
    cluster.settle()
    other = cluster.claim("d", request("gpu", WHOLE, count=2), constraints=[{"distinctAttribute": ROOT}])
    cluster.user("q", other)
    cluster.settle()
    assert {int(each.removeprefix("gpu-")) // 2 for each in cards(cluster, other)} == {0, 1}


def test_more_cards_of_one_value_than_any_node_has_are_refused_with_the_field(cluster: ClaimCluster) -> None:
    key = cluster.claim("c", request("gpu", WHOLE, count=3), constraints=[{"matchAttribute": ROOT}])
    pod = cluster.user("p", key)
    cluster.settle()
    fault = cluster.slicer.state.cluster.pods[pod.uid].fault
    assert "claim default/c: spec.devices.constraints[0].matchAttribute leaves too few cards on every node" in fault


def test_a_claim_may_prefer_a_whole_card_and_take_a_slice() -> None:
    cluster = ClaimCluster()
    cluster.claim_node("n1")
    either = {
        "name": "gpu",
        "firstAvailable": [
            {"name": "card", "deviceClassName": WHOLE},
            {"name": "slice", "deviceClassName": "mig-3g.20gb.tessera.dev"},
        ],
    }
    sliced = cluster.claim("sliced", either)
    cluster.user("p", sliced)
    cluster.settle()
    assert "mig-3g20gb" in cards(cluster, sliced)[0]
    cluster.claim_node("n2", whole=True)
    whole = cluster.claim("whole", either)
    cluster.user("q", whole)
    cluster.settle()
    assert cluster.devices(whole) == [("n2", "gpu-0")]


def test_where_no_card_is_whole_the_claim_is_told_why() -> None:
    cluster = ClaimCluster()
    cluster.claim_node("n1")
    pod = cluster.user("p", cluster.claim("c", request("gpu", WHOLE)))
    cluster.settle()
    fault = cluster.slicer.state.cluster.pods[pod.uid].fault
    assert "request gpu: no node publishes a device for it: no node gives whole cards to claims" in fault


@pytest.mark.parametrize(
    ("requests", "text"),
    [
        (
            [request("gpu", WHOLE, adminAccess=True)],
            "request gpu: adminAccess is given by kube-scheduler, which a selector of DeviceClass gpu.tessera.dev",
        ),
        (
            [request("gpu", WHOLE), request("all", WHOLE, adminAccess=True)],
            "request gpu: adminAccess is wanted by other requests: make a claim of its own for them",
        ),
    ],
)
def test_admin_access_that_kube_scheduler_cannot_give_is_refused(requests: list[dict[str, Any]], text: str) -> None:
    cluster = ClaimCluster()
    cluster.classes = device_classes(DRIVER, guarded=True)
    cluster.tell_claims()
    cluster.claim_node("n1", whole=True)
    pod = cluster.user("p", cluster.claim("c", *requests))
    cluster.settle()
    assert text in cluster.slicer.state.cluster.pods[pod.uid].fault


@pytest.mark.parametrize(("more", "names"), [({}, 1), ({"allocationMode": "All"}, 2)])
def test_a_namespace_does_not_use_up_the_choices_of_all(more: dict[str, Any], names: int) -> None:
    cluster = one_card()
    faults = [choose(cluster, "default", number, **more).fault for number in range(1, 100)]
    most = NAMESPACE_CARD_CHOICES // names
    assert [bool(each) for each in faults] == [number >= most for number in range(len(faults))]
    assert "in 64 ways in a namespace, fewer where other namespaces use some of the cluster's 256" in faults[-1]
    assert not choose(cluster, "team-b", 1, **more).fault


def test_four_hostile_namespaces_leave_choices_to_a_fifth() -> None:
    cluster = one_card()
    for team in range(4):
        for number in range(100):
            choose(cluster, f"hostile-{team}", number + 100 * (team + 1))
    assert not any(choose(cluster, "team", number).fault for number in range(1, 16))


@pytest.mark.parametrize("more", [{}, {"allocationMode": "All"}])
def test_selectors_of_pods_that_have_ended_do_not_count(more: dict[str, Any]) -> None:
    cluster = one_card()
    for number in range(1, 400):
        pod = choose(cluster, "default", number, **more)
        assert not pod.fault, number
        if number % 2:
            cluster.remove(pod)
        else:
            cluster.put(replace(pod, finished=True))
        cluster.drop_claim(f"default/c{number}")
    cluster.settle()
    assert len(names_of_card(cluster)) <= NAMESPACE_CARD_CHOICES
    assert len(cluster.slicer.state.cluster.offered_by(NodeName("n1"), "claims")) <= NAMESPACE_CARD_CHOICES + 1


def test_a_refused_choice_has_its_turn_once_a_pod_ends() -> None:
    cluster = one_card()
    first, *_ = [choose(cluster, "default", number) for number in range(1, NAMESPACE_CARD_CHOICES + 1)]
    waiting = [choose(cluster, "default", number) for number in (900, 901)]
    assert all(each.fault for each in waiting)
    cluster.remove(first)
    assert [bool(cluster.slicer.state.cluster.pods[each.uid].fault) for each in waiting] == [False, True]


def test_a_name_that_was_forgotten_is_given_again() -> None:
    cluster = one_card()
    for number in (1, *range(2, NAMESPACE_CARD_CHOICES + 2), 1):
        cluster.settle()
        for pod in list(cluster.pods.values()):
            cluster.remove(pod)
            cluster.settle()
        choose(cluster, "default", number)
    cluster.settle()
    assert cluster.devices("default/c1") == [("n1", "gpu-0")]


def test_selectors_of_a_long_time_cost_a_namespace_nothing_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(claim_profiles, "NAMESPACE_EXPRESSIONS_COST", Limit(200, "units", "a test", "a test"))
    cluster = one_card()
    cluster.pass_time(0)
    pods: list[PodInfo] = []
    while not pods or not pods[-1].fault:
        pods.append(choose(cluster, "default", len(pods) + 1))
    assert "in 60 minutes: wait, or make them shorter" in pods[-1].fault
    assert not choose(cluster, "team-b", 999).fault
    cluster.remove(pods[0])
    cluster.pass_time(3600)
    cluster.node("n2")
    assert not cluster.slicer.state.cluster.pods[pods[-1].uid].fault


def one_card() -> ClaimCluster:
    cluster = ClaimCluster()
    cluster.claim_node("n1", count=1, whole=True)
    return cluster


def choose(cluster: ClaimCluster, namespace: str, number: int, **more: Any) -> PodInfo:
    """A pod whose claim has a selector of its own, which the card fulfils."""
    wanted = request("gpu", WHOLE, **more, **selecting(f"{INDEX} != {number}"))
    name = f"p{number}" if namespace == "default" else f"p{number}-{namespace}"
    pod = cluster.user(name, cluster.claim(f"c{number}", wanted, namespace=namespace), namespace=namespace)
    found: PodInfo = cluster.slicer.state.cluster.pods[pod.uid]
    return found


def names_of_card(cluster: ClaimCluster) -> Sequence[object]:
    found: Sequence[object] = cluster.slicer.state.inventory.names[NodeName("n1")]["GPU-n1-0"]
    return found


def test_a_new_choice_of_all_cards_looks_at_no_other_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = ClaimCluster()
    for number in range(3):
        cluster.claim_node(f"n{number}", count=1, whole=True)
    asked: list[object] = []
    chooses = ChosenDevices._chooses

    def count(*args: Any) -> Any:
        asked.append(args)
        return chooses(*args)

    monkeypatch.setattr(ChosenDevices, "_chooses", count)
    counts = []
    for number in range(1, 31):
        wanted = request("gpu", WHOLE, allocationMode="All", **selecting(f"{INDEX} != {number}"))
        cluster.user(f"p{number}", cluster.claim(f"c{number}", wanted))
        counts.append(len(asked))
        asked.clear()
    assert counts[-1] == counts[0]
