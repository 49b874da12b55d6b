"""The choice of a node and of the pods that preemption evicts there."""

from typing import Any

from tessera_lab.scheduler.decision import Unschedulable, decide
from tessera_lab.scheduler.preemption import Preemption, preempt
from tessera_lab.scheduler.state.node_cache import CachedPod, NodeCache, build_pod_info


def cluster(*names: str) -> NodeCache:
    made = NodeCache()
    for name in names:
        made.set_node(name, {"kubernetes.io/hostname": name}, {}, {"cpu": "4", "pods": "10"})
    return made


def pod(name: str, cpu: str, priority: int = 0, created: float = 0.0, **labels: str) -> CachedPod:
    spec: dict[str, Any] = {"containers": [{"resources": {"requests": {"cpu": cpu}}}], "priority": priority}
    return build_pod_info(f"default/{name}", name, created, spec, labels)


def chosen(one: CachedPod, made: NodeCache, *budgets: dict[str, Any]) -> tuple[str, list[str]]:
    refused = decide(one, made)
    assert isinstance(refused, Unschedulable)
    found = preempt(one, made, refused, budgets)
    assert isinstance(found, Preemption)
    return found.node, [each.uid for each in found.victims]


def budget(allowed: int, **labels: str) -> dict[str, Any]:
    return {
        "metadata": {"name": "b", "namespace": "default"},
        "spec": {"selector": {"matchLabels": labels}},
        "status": {"disruptionsAllowed": allowed},
    }


def test_no_more_end_than_must_and_the_least_important_first() -> None:
    made = cluster("n1")
    made.place(pod("a", "1", 5), "n1")
    made.place(pod("b", "2", 1), "n1")
    made.place(pod("c", "1", 3), "n1")
    before = dict(made.nodes["n1"].used)
    assert chosen(pod("p", "2", 10), made) == ("n1", ["b"])
    assert made.nodes["n1"].used == before
    assert set(made.nodes["n1"].pods) == {"a", "b", "c"}


def test_the_node_whose_victims_matter_least_is_taken() -> None:
    made = cluster("n1", "n2")
    made.place(pod("a", "4", 5), "n1")
    made.place(pod("b", "4", 1), "n2")
    assert chosen(pod("p", "2", 10), made) == ("n2", ["b"])


def test_a_disruption_budget_is_respected_where_that_is_possible() -> None:
    made = cluster("n1", "n2")
    made.place(pod("a", "4", 5), "n1")
    made.place(pod("b", "4", 1, app="b"), "n2")
    assert chosen(pod("p", "2", 10), made, budget(0, app="b")) == ("n1", ["a"])


def test_equals_and_what_no_end_cures_are_left_alone() -> None:
    made = cluster("n1", "n2")
    made.set_node("n2", {}, {"unschedulable": True}, {"cpu": "4", "pods": "10"})
    made.place(pod("a", "4", 10), "n1")
    refused = decide(pod("p", "2", 10), made)
    assert isinstance(refused, Unschedulable)
    assert preempt(pod("p", "2", 10), made, refused, ()) == (
        "preemption: 0/2 nodes are available: 1 No preemption victims found for incoming pod, "
        "1 Preemption is not helpful for scheduling."
    )
