"""Every placement policy runs in the same planner; each differs in the card or the start that it chooses."""

import pytest

from tessera.mig.models import model_by_short_name
from tessera.placement.fleet import CardPlacement, Fleet
from tessera.placement.plan import Demand, plan
from tessera.placement.policies import POLICIES

A100 = model_by_short_name("A100-40GB").geometry


def fleet() -> Fleet:
    """Node a: an empty card and one with 3g.20gb; node b: one card with 2g.10gb."""
    fleet = Fleet()
    for node, gpu in (("a", "0"), ("a", "1"), ("b", "2")):
        fleet.add_card(node, gpu, A100)
    fleet.occupy(CardPlacement("a", "1", "3g.20gb", 0, 4), "x")
    fleet.occupy(CardPlacement("b", "2", "2g.10gb", 0, 2), "y")
    return fleet


@pytest.mark.parametrize(
    ("name", "place"),
    [
        ("first-fit", ("a", "0", 0)),
        ("best-fit", ("a", "1", 4)),
        ("DAS", ("a", "0", 0)),
        ("fragmentation-gradient", ("b", "2", 2)),
    ],
)
def test_each_policy_chooses_its_expected_place_for_a_small_slice(name: str, place: tuple[str, str, int]) -> None:
    decided = plan(fleet(), [Demand("pod", ("1g.5gb",))], policy=POLICIES[name]())
    (placed,) = decided.assignments["pod"]
    assert (placed.node, placed.gpu, placed.start) == place


@pytest.mark.parametrize("name", POLICIES)
def test_every_policy_keeps_a_batch_packable(name: str) -> None:
    cards, demands = fleet(), [Demand(str(n), ("3g.20gb", "1g.5gb"), arrival=n) for n in range(3)]
    decided = plan(cards, demands, policy=POLICIES[name]())
    for key, placements in decided.assignments.items():
        cards.occupy_all(placements, key)
    assert decided.assignments
    assert len(decided.assignments) + len(decided.refusals) == len(demands)


@pytest.mark.parametrize("name", POLICIES)
def test_a_demand_that_names_its_nodes_gets_one_of_them(name: str) -> None:
    decided = plan(fleet(), [Demand("pod", ("1g.5gb",), nodes=frozenset({"b"}))], policy=POLICIES[name]())
    assert [each.node for each in decided.assignments["pod"]] == ["b"]
