"""Every placement policy runs in the same planner; each differs in the card or the start that it chooses."""

import pytest
from bench.rivals import POLICIES, WeightedFragmentation, blocked_windows

from tessera.mig.models import model_by_short_name
from tessera.placement.card_table import CardTable
from tessera.placement.demand import Demand
from tessera.placement.fleet import CardPlacement, Fleet
from tessera.placement.plan import plan

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
        ("FGD", ("b", "2", 2)),
        ("HAMi-2.10", ("b", "2", 2)),
        ("device-order", ("a", "0", 6)),
        ("2511.18906", ("a", "1", 6)),
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


def test_hami_spreads_over_the_cards_of_the_fullest_node_and_keeps_the_longest_run() -> None:
    cards = Fleet()
    for gpu in ("0", "1"):
        cards.add_card("a", gpu, A100)
    cards.occupy(CardPlacement("a", "0", "1g.5gb", 0, 1), "x")
    decided = plan(cards, [Demand("pod", ("2g.10gb",))], policy=POLICIES["HAMi-2.10"]())
    assert [(each.gpu, each.start) for each in decided.assignments["pod"]] == [("1", 0)]


def test_a_blocked_window_counts_with_its_size_if_memory_would_suffice() -> None:
    table = CardTable(A100, 0)
    assert blocked_windows(table, 0) == 0
    # 3g at 4: of each 1g the windows at 4-6, of 1g.10gb two of two slots, of 2g one, of 3g one; 4g fits, 7g exceeds.
    assert blocked_windows(table, 0b1111_0000) == 3 + 3 + 2 * 2 + 2 + 4


def test_weights_of_a_workload_decide_which_lost_slots_count() -> None:
    table = CardTable(A100, 0)
    only_small = WeightedFragmentation.of({"1g.5gb": 0.99, "7g.40gb": 0.01})
    assert only_small.weights == (("1g.5gb", 1.0),)
    assert only_small(table, 0b0000_0001) == 1  # slot 7, where no 1g.5gb may start
    assert WeightedFragmentation.of({"7g.40gb": 1.0})(table, 0b0000_0001) == 7
    assert WeightedFragmentation.of({})(table, 0) == pytest.approx((1 + 1 + 2 + 4) / 7)
