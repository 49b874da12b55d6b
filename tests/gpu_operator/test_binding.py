"""Selection of the ClusterPolicy in effect, and of the NVIDIADriver of each node."""

from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tessera.gpu_operator.assignment import (
    CLUSTER_POLICIES,
    NVIDIA_DRIVERS,
    assign_drivers,
    find_governing_policy,
)
from tessera.gpu_operator.driver_policy import DriverPolicy
from tessera.gpu_operator.policy_objects import OWNER_LABEL

A100: dict[str, str] = {"card": "a100"}
T4: dict[str, str] = {"card": "t4"}
NODES: Mapping[str, Mapping[str, str]] = {"n1": A100, "n2": A100 | {"zone": "b"}, "n3": T4}


def policy(name: str, created: str | None, **metadata: Any) -> dict[str, Any]:
    return {"metadata": {"name": name, **({"creationTimestamp": created} if created else {}), **metadata}}


def driver(name: str, *, created: str = "2026-01-01T00:00:00Z", **fields: Any) -> DriverPolicy:
    return DriverPolicy(kind="NVIDIADriver", name=name, created=created, **fields)


def names(drivers: list[DriverPolicy], nodes: Mapping[str, Mapping[str, str]] = NODES) -> dict[str, str]:
    return {node: each.name for node, each in assign_drivers(drivers, nodes).nodes.items()}


def test_the_paths_are_those_that_kubectl_asks() -> None:
    assert CLUSTER_POLICIES.path(name="cluster-policy") == "/apis/nvidia.com/v1/clusterpolicies/cluster-policy"
    assert NVIDIA_DRIVERS.path() == "/apis/nvidia.com/v1alpha1/nvidiadrivers"


def test_the_oldest_policy_counts_and_its_name_where_two_are_of_one_second() -> None:
    one, two, three = (
        policy("b", "2026-01-01T00:00:00Z"),
        policy("a", "2026-01-02T00:00:00Z"),
        policy("c", "2026-01-01T00:00:00Z"),
    )
    winner, ignored = find_governing_policy([two, three, one])
    assert winner is one
    assert ignored == [three, two]
    assert find_governing_policy([]) == (None, [])


def test_a_policy_that_is_being_deleted_counts_last() -> None:
    leaving = policy("a", "2026-01-01T00:00:00Z", deletionTimestamp="2026-01-03T00:00:00Z")
    winner, _ = find_governing_policy([leaving, policy("b", "2026-01-02T00:00:00Z")])
    assert winner is not None
    assert winner["metadata"]["name"] == "b"


def test_nodes_have_the_driver_that_selects_them_and_others_the_default_one() -> None:
    found = [driver("fast", node_selector=A100), driver("rest", default=True)]
    assert names(found) == {"n1": "fast", "n2": "fast", "n3": "rest"}
    assert assign_drivers(found, NODES).of("fast") == ("n1", "n2")
    assert assign_drivers(found, NODES).conflicts == ()


def test_without_a_selector_a_driver_is_for_all_nodes() -> None:
    assert names([driver("all")]) == dict.fromkeys(NODES, "all")


def test_a_node_that_nothing_means_has_none() -> None:
    assert names([driver("fast", node_selector=A100)]) == {"n1": "fast", "n2": "fast"}


def test_overlapping_selectors_leave_their_nodes_alone_and_no_other() -> None:
    found = assign_drivers([driver("x", node_selector=A100), driver("y", node_selector={"zone": "b"})], NODES)
    assert {node: each.name for node, each in found.nodes.items()} == {"n1": "x"}
    (conflict,) = found.conflicts
    assert (conflict.drivers, conflict.nodes) == (("x", "y"), ("n2",))
    assert conflict.text == "x and y both select n2; give each a nodeSelector of its own"
    assert found.conflict_of("y") is conflict
    assert found.conflict_of("z") is None


def test_a_contested_node_stays_with_the_driver_that_it_has() -> None:
    nodes = {"n2": {**NODES["n2"], OWNER_LABEL: "y"}}
    assert names([driver("x", node_selector=A100), driver("y", node_selector={"zone": "b"})], nodes) == {"n2": "y"}


def test_the_oldest_default_counts_and_the_others_are_told() -> None:
    found = assign_drivers(
        [
            driver("new", default=True, created="2026-02-01T00:00:00Z"),
            driver("old", default=True, created="2026-01-01T00:00:00Z"),
        ],
        NODES,
    )
    assert {each.name for each in found.nodes.values()} == {"old"}
    (conflict,) = found.conflicts
    assert (conflict.drivers, conflict.nodes) == (("old", "new"), ())


def required(*tests: Mapping[str, Any], where: str = "matchExpressions") -> dict[str, Any]:
    terms = [{where: list(tests)}]
    return {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}


@pytest.mark.parametrize(
    ("affinity", "meant"),
    [
        (required({"key": "card", "operator": "In", "values": ["t4"]}), {"n3"}),
        (required({"key": "zone", "operator": "DoesNotExist"}), {"n1", "n3"}),
        (required({"key": "metadata.name", "operator": "In", "values": ["n2"]}, where="matchFields"), {"n2"}),
        (required(), set()),
        ({"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": 5}}, set()),
        (required({"key": "card", "operator": "Near", "values": ["t4"]}), set()),
        ({"preferredDuringSchedulingIgnoredDuringExecution": []}, {"n1", "n2", "n3"}),
    ],
)
def test_node_affinity_limits_the_nodes(affinity: dict[str, Any], meant: set[str]) -> None:
    assert set(names([driver("a", node_affinity=affinity)])) == meant


SELECTORS = st.dictionaries(st.sampled_from("ab"), st.sampled_from("12"), max_size=2)


@given(
    selectors=st.lists(SELECTORS, max_size=4),
    labels=st.dictionaries(st.sampled_from(["n1", "n2", "n3"]), SELECTORS),
    order=st.randoms(use_true_random=False),
)
def test_a_node_is_given_at_most_one_driver_that_means_it_whatever_the_order(
    selectors: list[dict[str, str]], labels: dict[str, dict[str, str]], order: Any
) -> None:
    drivers = [driver(f"d{n}", node_selector=each) for n, each in enumerate(selectors)]
    found = assign_drivers(drivers, labels)
    order.shuffle(drivers)
    assert assign_drivers(drivers, labels) == found
    contested = {node for each in found.conflicts for node in each.nodes}
    for node, own in labels.items():
        meaning = [each for each in drivers if each.node_selector.items() <= own.items()]
        assert (node in found.nodes) == (len(meaning) == 1)
        assert (node in contested) == (len(meaning) > 1)
