"""Preferences: among places that cost the packing nothing more, a pod gets one on a node that it prefers."""

from typing import Any

import msgspec
import pytest
from tests.support.slicer_cluster import SlicerCluster

from tessera.clock import rfc3339
from tessera.controller.objects.pod_info import PodInfo
from tessera.controller.objects.pod_preferences import PREFERENCES, read_preferences
from tessera.kube.resources import Pod

HOST = "kubernetes.io/hostname"


def pod_with(**spec: Any) -> Pod:
    return msgspec.convert({"metadata": {"namespace": "default"}, "spec": spec}, Pod)


def near(app: str, weight: int = 100) -> list[dict[str, Any]]:
    term = {"labelSelector": {"matchLabels": {"app": app}}, "topologyKey": HOST}
    return [{"weight": weight, "podAffinityTerm": term}]


def on_nodes(key: str, *values: str, weight: int = 100) -> dict[str, Any]:
    tests = [{"key": key, "operator": "In", "values": list(values)}]
    preferred = [{"weight": weight, "preference": {"matchExpressions": tests}}]
    return {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": preferred}}


def beside(app: str, weight: int = 100) -> dict[str, Any]:
    return {"podAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": near(app, weight)}}


def apart(app: str, weight: int = 100) -> dict[str, Any]:
    return {"podAntiAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": near(app, weight)}}


SPREAD = {
    "topologySpreadConstraints": [
        {
            "maxSkew": 1,
            "topologyKey": HOST,
            "whenUnsatisfiable": "ScheduleAnyway",
            "labelSelector": {"matchLabels": {"app": "web"}},
        }
    ]
}


@pytest.fixture
def cluster() -> SlicerCluster:
    """Eight empty nodes; the data is on one in the middle."""
    made = SlicerCluster()
    made.pass_time(0)
    for number in range(8):
        made.node(f"n{number}")
    made.pod("data", gates=(), node="n5", labels=(("app", "data"),))
    made.settle()
    return made


def create(cluster: SlicerCluster, name: str, *profiles: str, **spec: Any) -> PodInfo:
    preferences = read_preferences(pod_with(**spec))
    assert preferences
    return cluster.pod(
        name, *profiles, preferences=preferences, labels=(("app", "web"),), created=rfc3339(cluster.date)
    )


def nodes(cluster: SlicerCluster, *pods: PodInfo) -> list[str]:
    cluster.settle()
    return [cluster.where(pod)[0][0] for pod in pods]


@pytest.mark.parametrize("profiles", [("7g.40gb",), ("3g.20gb", "3g.20gb")])
@pytest.mark.parametrize(
    ("affinity", "node"),
    [
        pytest.param(on_nodes(HOST, "n3"), "n3", id="a node"),
        pytest.param(beside("data"), "n5", id="beside a pod"),
        pytest.param({**on_nodes(HOST, "n3", weight=1), **beside("data", 2)}, "n5", id="the stronger preference"),
        pytest.param(
            {**on_nodes(HOST, "n3", weight=2), **beside("data", 1)}, "n3", id="the stronger preference, reversed"
        ),
    ],
)
def test_a_pod_gets_a_place_on_a_node_that_it_prefers(
    cluster: SlicerCluster, profiles: tuple[str, ...], affinity: dict[str, Any], node: str
) -> None:
    assert nodes(cluster, create(cluster, "pod", *profiles, affinity=affinity)) == [node]


@pytest.mark.parametrize("spec", [{"affinity": apart("web")}, SPREAD], ids=["apart", "spread"])
@pytest.mark.parametrize("together", [True, False])
def test_replicas_go_to_nodes_of_their_own(cluster: SlicerCluster, spec: dict[str, Any], together: bool) -> None:
    pods = []
    for number in range(8):
        pods.append(create(cluster, f"web-{number}", "7g.40gb", **spec))
        if not together:
            cluster.settle()
    assert sorted(nodes(cluster, *pods)) == [f"n{number}" for number in range(8)]


def test_a_wish_costs_the_packing_nothing(cluster: SlicerCluster) -> None:
    first = cluster.pod("first", "4g.20gb", created=rfc3339(cluster.date))
    (home,) = nodes(cluster, first)
    other = next(f"n{number}" for number in range(8) if f"n{number}" != home)
    assert nodes(cluster, create(cluster, "pod", "3g.20gb", affinity=on_nodes(HOST, other))) == [home]


def test_a_wish_that_no_node_meets_keeps_no_pod_waiting(cluster: SlicerCluster) -> None:
    assert nodes(cluster, create(cluster, "pod", "7g.40gb", affinity=on_nodes(HOST, "nowhere")))


def test_a_full_node_is_no_place_however_much_it_is_preferred(cluster: SlicerCluster) -> None:
    first = create(cluster, "first", "7g.40gb", affinity=beside("data"))
    second = create(cluster, "second", "7g.40gb", affinity=beside("data"))
    found = nodes(cluster, first, second)
    assert found[0] == "n5"
    assert found[1] != "n5"


def test_only_some_preferences_of_a_pod_count() -> None:
    terms = [each for number in range(PREFERENCES + 5) for each in near(f"app-{number}")]
    rule = {"preferredDuringSchedulingIgnoredDuringExecution": terms}
    assert len(read_preferences(pod_with(affinity={"podAffinity": rule}))) == PREFERENCES
