"""The search names cards and changes nothing; a refusal of a node holds until it is forgotten."""

import sys

import pytest
from bench.rivals import FragmentationGradient

from tessera.mig.models import model_by_short_name
from tessera.placement.demand import Demand, NodeRanking, StepBudget
from tessera.placement.devices import device_geometry
from tessera.placement.fleet import CardPlacement, Fleet
from tessera.placement.search import CardSearch
from tessera.reasons.node_rules import NodeRule, RuleKind

A100 = model_by_short_name("A100-40GB").geometry
SMALL = Demand("pod", ("1g.5gb",))


def fleet() -> Fleet:
    """An empty card, and one with a slice."""
    found = Fleet()
    for node in ("empty", "used"):
        found.add_card(node, f"GPU-{node}", A100)
    found.occupy_all([CardPlacement("used", "GPU-used", "1g.5gb", 0, 1)], "other")
    return found


def nodes(search: CardSearch, demand: Demand, work: StepBudget, *, spread: bool = False) -> list[str]:
    return [card.node.name for card in search.find(demand, work, FragmentationGradient(spread=spread)) or ()]


def test_a_slice_goes_to_the_fullest_card_or_spread_to_the_emptiest() -> None:
    search, work = CardSearch(fleet(), lambda _demand, _node: None, FragmentationGradient()), StepBudget(1000)
    assert nodes(search, SMALL, work) == ["used"]
    assert nodes(search, SMALL, work, spread=True) == ["empty"]
    assert nodes(search, SMALL, work) == ["used"]
    assert work.remaining < 1000


def test_a_node_that_refused_is_not_asked_again_until_that_is_forgotten() -> None:
    asked: list[str] = []

    def refuse(_demand: Demand, node: str) -> NodeRule:
        asked.append(node)
        return NodeRule(RuleKind.AFFINITY)

    search, work = CardSearch(fleet(), refuse, FragmentationGradient()), StepBudget(sys.maxsize)
    assert nodes(search, SMALL, work) == nodes(search, SMALL, work) == []
    assert (sorted(asked), sorted(search.refusals(SMALL))) == (["empty", "used"], ["empty", "used"])
    search.forget(SMALL)
    assert not search.refusals(SMALL)
    nodes(search, SMALL, work)
    assert len(asked) == 4


def device_fleet(*counts: int) -> Fleet:
    """Node n0, n1, ... with so many whole cards."""
    found = Fleet()
    geometry = device_geometry("A100", "nvidia.com/gpu", 8, 40)
    for node, count in enumerate(counts):
        for card in range(count):
            found.add_card(f"n{node}", f"nvidia.com/gpu/{card}", geometry)
    return found


WHOLE, SEVERAL = Demand("one", ("nvidia.com/gpu",)), Demand("two", ("nvidia.com/gpu",) * 2)


def in_order(*names: str) -> NodeRanking:
    """Nodes of which each is better than those after it."""
    return lambda _demand, _work: ((name, place) for place, name in enumerate(names))


def test_a_whole_card_is_taken_of_the_first_node_in_the_callers_order_and_no_other_is_asked() -> None:
    asked: list[str] = []

    def allows(_demand: Demand, node: str) -> None:
        asked.append(node)

    search = CardSearch(device_fleet(4, 3, 2), allows, FragmentationGradient(), in_order("n1", "n0"))
    assert nodes(search, WHOLE, StepBudget(1000)) == ["n1"]
    assert asked == ["n1"]


def test_several_whole_cards_are_taken_of_the_first_node_that_has_them() -> None:
    search = CardSearch(
        device_fleet(4, 3, 1),
        lambda _demand, _node: None,
        FragmentationGradient(),
        in_order("n2", "n1", "n0"),
    )
    found = search.find(SEVERAL, StepBudget(1000)) or ()
    assert [card.node.name for card in found] == ["n1", "n1"]
    assert len({card.gpu for card in found}) == 2


def test_a_node_that_refuses_a_whole_card_leaves_it_to_the_next() -> None:
    search = CardSearch(
        device_fleet(4, 3),
        lambda _demand, node: NodeRule(RuleKind.AFFINITY) if node == "n1" else None,
        FragmentationGradient(),
        in_order("n1", "n0"),
    )
    assert nodes(search, WHOLE, StepBudget(1000)) == ["n0"]
    assert list(search.refusals(WHOLE)) == ["n1"]


@pytest.mark.parametrize(("demand", "places"), [(WHOLE, ["n1"]), (SEVERAL, ["n1", "n1"])])
def test_nodes_that_the_order_leaves_out_are_asked_last(demand: Demand, places: list[str]) -> None:
    search = CardSearch(
        device_fleet(4, 2),
        lambda _demand, node: NodeRule(RuleKind.AFFINITY) if node == "n0" else None,
        FragmentationGradient(),
        in_order("n0"),
    )
    assert [card.node.name for card in search.find(demand, StepBudget(1000)) or ()] == places
    assert list(search.refusals(demand)) == ["n0"]


def test_slices_keep_the_order_of_the_policy() -> None:
    search = CardSearch(fleet(), lambda _demand, _node: None, FragmentationGradient(), in_order("empty", "used"))
    assert nodes(search, SMALL, StepBudget(1000)) == ["used"]
