"""Pods that are larger than every node: what their reason says, and what it costs to find out."""

import pytest
from tests.support.slicer_cluster import SlicerCluster

from tessera.controller.slicing.planner import SmallNodes
from tessera.reasons.node_rules import NodeRule, RuleKind
from tessera.reasons.reason import NoNode, RuleCount

CPU, MEMORY = NodeRule(RuleKind.TOO_SMALL, "cpu"), NodeRule(RuleKind.TOO_SMALL, "memory")


@pytest.mark.parametrize(
    ("cpu", "memory", "rules", "text"),
    [
        (100_000, 1, (CPU,), "and the largest node has 64 CPUs"),
        (64_000, 2**40, (CPU, MEMORY), "and no node has both"),
        (64_000, 2**30, (CPU, MEMORY), ""),
    ],
)
def test_the_largest_nodes_are_looked_for_once_for_pods_of_different_sizes(
    cpu: int, memory: int, rules: tuple[NodeRule, ...], text: str
) -> None:
    """Where a node was large enough, but closed, all nodes were looked at for each pod."""
    cluster = SlicerCluster()
    cluster.node("cpus", allocatable={"cpu": 64_000, "memory": 2**32})
    cluster.node("memory", allocatable={"cpu": 8_000, "memory": 2**40})
    cluster.node("neither", allocatable={"cpu": 8_000, "memory": 2**32})
    found = [cluster.pod(f"p{n}", "1g.5gb", amounts={"cpu": cpu - n, "memory": memory}) for n in (0, 1)]
    cluster.settle()
    small = SmallNodes(cluster.slicer.state)
    reasons = [small.complete(pod, NoNode(tuple(RuleCount(rule, 1) for rule in rules))) for pod in found]
    assert [reason.too_small.partition(", ")[2] for reason in reasons if isinstance(reason, NoNode)] == [text, text]
    assert small.cost == 3
