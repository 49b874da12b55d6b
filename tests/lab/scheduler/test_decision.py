"""The scheduler's choice of a node for a pod, or its reasons against every node."""

from typing import Any

import pytest
from tests.support.cost import count_calls

from tessera_lab.scheduler.decision import NodeChoice, Unschedulable, decide
from tessera_lab.scheduler.state.node_cache import CachedPod, NodeCache, build_pod_info


def cluster(**nodes: dict[str, Any]) -> NodeCache:
    made = NodeCache()
    for name, facts in nodes.items():
        labels = {"kubernetes.io/hostname": name} | facts.get("labels", {})
        allocatable = {"cpu": "4", "memory": "8Gi", "pods": "10"} | facts.get("allocatable", {})
        made.set_node(name, labels, facts.get("spec", {}), allocatable)
    return made


def pod(name: str = "p", requests: dict[str, str] | None = None, **spec: Any) -> CachedPod:
    container = {"name": "c", "resources": {"requests": requests or {}}, "ports": spec.pop("ports", [])}
    return build_pod_info(f"default/{name}", f"uid-{name}", 0.0, {"containers": [container], **spec})


def why(answer: NodeChoice | Unschedulable) -> str:
    assert isinstance(answer, Unschedulable)
    return answer.reasons


def test_no_nodes_at_all() -> None:
    assert why(decide(pod(), NodeCache())) == "no nodes available to schedule pods"


def test_reasons_are_counted_and_sorted_as_kube_scheduler_does() -> None:
    made = cluster(
        n1={"allocatable": {"nvidia.com/mig-3g.20gb": "0"}},
        n2={"labels": {"zone": "b"}},
        n3={"labels": {"zone": "b"}},
    )
    made.set_node("n1", {"zone": "a"}, {}, {"cpu": "4", "pods": "10"})
    text = why(decide(pod(requests={"nvidia.com/mig-3g.20gb": "1"}, nodeSelector={"zone": "a"}), made))
    assert text == (
        "0/3 nodes are available: 1 Insufficient nvidia.com/mig-3g.20gb, "
        "2 node(s) didn't match Pod's node affinity/selector."
    )


@pytest.mark.parametrize(
    ("node", "asked", "reason"),
    [
        ({"spec": {"unschedulable": True}}, {}, "node(s) were unschedulable"),
        (
            {"spec": {"taints": [{"key": "k", "value": "v", "effect": "NoSchedule"}]}},
            {},
            "node(s) had untolerated taint {k: v}",
        ),
        ({"allocatable": {"pods": "0"}}, {}, "Too many pods"),
        ({}, {"requests": {"cpu": "5"}}, "Insufficient cpu"),
        ({}, {"requests": {"memory": "9Gi"}}, "Insufficient memory"),
    ],
)
def test_each_rule_has_its_words(node: dict[str, Any], asked: dict[str, Any], reason: str) -> None:
    assert why(decide(pod(**asked), cluster(n1=node))) == f"0/1 nodes are available: 1 {reason}."


def test_a_cordoned_node_takes_a_pod_that_tolerates_it() -> None:
    toleration = {"key": "node.kubernetes.io/unschedulable", "operator": "Exists", "effect": "NoSchedule"}
    assert decide(pod(tolerations=[toleration]), cluster(n1={"spec": {"unschedulable": True}})) == NodeChoice("n1")


def test_a_pod_pinned_by_name_says_why_the_others_were_not_looked_at() -> None:
    term = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n1"]}]}
    rule = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}
    text = why(decide(pod(requests={"cpu": "5"}, affinity={"nodeAffinity": rule}), cluster(n1={}, n2={}, n3={})))
    assert "1 Insufficient cpu, 2 node(s) didn't satisfy plugin(s) [NodeAffinity]" in text


def test_the_emptier_node_wins_and_equals_go_by_name() -> None:
    made = cluster(n1={}, n2={})
    first = pod("a", {"cpu": "1"})
    assert decide(first, made) == NodeChoice("n1")
    made.place(first, "n1")
    assert decide(pod("b", {"cpu": "1"}), made) == NodeChoice("n2")


def test_preferred_affinity_beats_emptiness() -> None:
    made = cluster(n1={}, n2={"labels": {"fast": "yes"}})
    made.place(pod("a", {"cpu": "3"}), "n2")
    term = {"matchExpressions": [{"key": "fast", "operator": "Exists"}]}
    rule = {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 1, "preference": term}]}
    assert decide(pod("b", {"cpu": "1"}, affinity={"nodeAffinity": rule}), made) == NodeChoice("n2")


def test_a_node_that_is_only_disliked_is_taken_last() -> None:
    taint = {"key": "old", "effect": "PreferNoSchedule"}
    assert decide(pod(), cluster(n1={"spec": {"taints": [taint]}}, n2={})) == NodeChoice("n2")
    assert decide(pod(), cluster(n1={"spec": {"taints": [taint]}})) == NodeChoice("n1")


def test_host_ports_are_taken_once_per_node() -> None:
    made = cluster(n1={})
    ports = [{"containerPort": 80, "hostPort": 80}]
    made.place(pod("a", ports=ports), "n1")
    assert "didn't have free ports" in why(decide(pod("b", ports=ports), made))


def test_freed_resources_can_be_given_again() -> None:
    made = cluster(n1={})
    made.place(pod("a", {"cpu": "4"}), "n1")
    assert isinstance(decide(pod("b", {"cpu": "4"}), made), Unschedulable)
    made.remove_pod("uid-a")
    assert decide(pod("b", {"cpu": "4"}), made) == NodeChoice("n1")


def test_a_pod_placed_before_its_node_is_known_counts_when_the_node_comes() -> None:
    made = NodeCache()
    made.place(pod("a", {"cpu": "4"}), "n1")
    made.set_node("n1", {}, {}, {"cpu": "4", "pods": "10"})
    assert isinstance(decide(pod("b", {"cpu": "1"}), made), Unschedulable)


def test_a_pinned_pod_costs_the_same_at_any_number_of_nodes() -> None:
    pinned = [pod(f"p{n}", {"cpu": "1m"}, nodeSelector={"kubernetes.io/hostname": f"n{n}"}) for n in range(1000)]
    costs = []
    for nodes in (1000, 2000):
        made = cluster(**{f"n{number}": {} for number in range(nodes)})
        calls, answers = count_calls(lambda: [decide(each, made) for each in pinned])  # noqa: B023 - runs at once
        assert answers == [NodeChoice(f"n{number}") for number in range(1000)]
        costs.append(calls)
    assert costs[0] == costs[1] < 150 * len(pinned)


def test_a_thousand_pods_over_a_hundred_nodes_take_little_cpu() -> None:
    made = cluster(**{f"n{number}": {"allocatable": {"cpu": "64", "pods": "110"}} for number in range(100)})

    def place(numbers: range) -> None:
        for number in numbers:
            each = pod(f"p{number}", {"cpu": "500m"})
            answer = decide(each, made)
            assert isinstance(answer, NodeChoice)
            made.place(each, answer.node)

    place(range(900))
    calls, _ = count_calls(lambda: place(range(900, 1000)))
    assert calls < 100 * 100 * 100, "a pod costs less than a hundred calls for each node"
    assert {len(node.pods) for node in made.nodes.values()} == {10}
