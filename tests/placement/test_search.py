"""The search names cards and changes nothing; a refusal of a node holds until it is forgotten."""

import sys

from tessera.mig.models import model_by_short_name
from tessera.placement.demand import Demand, NodeRefusal
from tessera.placement.fleet import CardPlacement, Fleet
from tessera.placement.policies import FragmentationGradient
from tessera.placement.search import CardSearch
from tessera.placement.step_budget import StepBudget

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

    def refuse(_demand: Demand, node: str) -> NodeRefusal:
        asked.append(node)
        return NodeRefusal("full of rules")

    search, work = CardSearch(fleet(), refuse, FragmentationGradient()), StepBudget(sys.maxsize)
    assert nodes(search, SMALL, work) == nodes(search, SMALL, work) == []
    assert (sorted(asked), sorted(search.refusals(SMALL))) == (["empty", "used"], ["empty", "used"])
    search.forget(SMALL)
    assert not search.refusals(SMALL)
    nodes(search, SMALL, work)
    assert len(asked) == 4
