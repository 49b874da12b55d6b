"""The node of several whole cards is chosen by how its free cards are joined."""

from typing import Any

import pytest
from tests.support.slicer_cluster import SlicerCluster

from tessera.api.names import NodeName
from tessera.api.nodes.node_cards import CardLinks
from tessera.controller.objects.pod_constraints import NodeConstraints
from tessera.controller.slicing.state.instructions import Ungate

#: Of four cards, 0 with 1 and 2 with 3 have NVLinks.
PAIRS = (430, 10, 10, 10, 10, 430)
JOINED, APART = CardLinks(4, PAIRS, (2, 3)), CardLinks(4, PAIRS, (1, 3))


def pin(cluster: SlicerCluster, name: str, cards: int = 1, **facts: Any) -> str:
    """The node that a new pod is pinned to."""
    pod = cluster.whole(name, cards, **facts)
    cluster.settle()
    return cluster.pods[pod.uid].hostname


def half_full(cluster: SlicerCluster, **links: CardLinks | None) -> None:
    """Nodes with two free cards of four each."""
    for name, found in links.items():
        cluster.device_node(name, count=4, links=found)
        cluster.whole(f"on-{name}", 2, gated=False, node=NodeName(name))


@pytest.mark.parametrize(("first", "second"), [("n1", "n2"), ("n2", "n1")])
def test_two_cards_go_to_the_node_with_a_joined_pair(cluster: SlicerCluster, first: str, second: str) -> None:
    half_full(cluster, **{first: APART, second: JOINED})
    assert pin(cluster, "pair", 2) == second


@pytest.mark.parametrize("cpu", [64_000, 4_000])
def test_joined_cards_count_more_than_a_fuller_node_and_than_cpu(cluster: SlicerCluster, cpu: int) -> None:
    """Node n1 is fuller, and with little CPU its free cards are worth less."""
    allocatable = {"cpu": cpu, "pods": 110, "nvidia.com/gpu": 4}
    cluster.device_node("n1", count=4, links=APART, allocatable=allocatable)
    cluster.whole("on-n1", 2, gated=False, node=NodeName("n1"))
    cluster.device_node("n2", count=4, links=CardLinks(4, PAIRS, (0, 1, 2, 3)))
    assert pin(cluster, "pair", 2) == "n2"


def test_the_price_of_a_model_counts_more_than_joined_cards(cluster: SlicerCluster) -> None:
    cluster.device_node("h1", "H100", count=4, links=CardLinks(4, (1800,)))
    cluster.device_node("a1", "A100", count=4, links=CardLinks(4, (10,)))
    only = NodeConstraints(selector=(("nvidia.com/gpu.product", "H100"),), devices=frozenset({"nvidia.com/gpu"}))
    assert pin(cluster, "needs", constraints=only) == "h1"
    assert pin(cluster, "any", 2) == "a1"


def test_one_card_leaves_joined_pairs_alone(cluster: SlicerCluster) -> None:
    half_full(cluster, n1=JOINED, n2=APART)
    assert pin(cluster, "one") == "n2"


def test_one_card_takes_the_fullest_node_where_no_pair_is_broken(cluster: SlicerCluster) -> None:
    for name in ("n1", "n2"):
        cluster.device_node(name, count=4, links=CardLinks(4, (1800,)))
    for number in range(2):
        cluster.whole(f"on-n2-{number}", gated=False, node=NodeName("n2"))
    assert pin(cluster, "one") == "n2"


def test_a_node_that_says_nothing_is_one_of_unjoined_cards(cluster: SlicerCluster) -> None:
    half_full(cluster, n1=None, n2=JOINED)
    assert pin(cluster, "pair", 2) == "n2"


def test_pods_on_their_way_have_taken_the_joined_pair(cluster: SlicerCluster) -> None:
    cluster.device_node("n1", count=4, links=CardLinks(4, (430, 10, 10, 10, 10, 10), (0, 1, 2, 3)))
    cluster.device_node("n2", count=4, links=CardLinks(4, (40, 10, 10, 10, 10, 40), (0, 1, 2, 3)))
    assert [pin(cluster, name, 2) for name in ("first", "second")] == ["n1", "n2"]


def test_a_change_of_links_alone_plans_no_pod_again(cluster: SlicerCluster) -> None:
    cluster.device_node("n1", count=4, links=JOINED)
    cluster.whole("held", 4, gated=False, node=NodeName("n1"))
    cluster.whole("waits", 2)
    cluster.settle()
    (waits,) = cluster.slicer.state.waiting
    cluster.device_node("n1", count=4, links=APART)
    assert not cluster.slicer.state.pods.is_due(waits)
    assert cluster.slicer.state.cluster.nodes[NodeName("n1")].links == APART
    assert not [each for each in cluster.writes if isinstance(each, Ungate)]
