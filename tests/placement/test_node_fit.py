"""A division over a node's cards is found whenever one exists."""

import itertools
from collections.abc import Sequence
from collections.abc import Set as AbstractSet

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.mig_enumeration import layouts

from tessera.mig.geometry import Placement, occupancy_of
from tessera.mig.models import model_by_short_name
from tessera.placement.card_table import CardTable
from tessera.placement.demand import CardRule, OrderedRule, StepBudget, complete, keeps
from tessera.placement.fleet import CardPlacement, Fleet
from tessera.placement.node_fit import REMEMBERED_DEMANDS, EmptyNodes, _NodeFitSearch, divide_over_cards, fit_in_parts
from tessera.placement.state_costs import Pending, add_profile

A100 = model_by_short_name("A100-40GB").geometry
A30 = model_by_short_name("A30").geometry
LAYOUTS = layouts(A100)


def by_hand(table: CardTable, states: list[int], profiles: tuple[str, ...]) -> float | None:
    """Tries every assignment of profiles to cards."""
    best: float | None = None
    for chosen in itertools.product(range(len(states)), repeat=len(profiles)):
        cost = 0.0
        pending: list[Pending] = [()] * len(states)
        for card, profile in zip(chosen, profiles, strict=True):
            growth = table.cost(states[card], pending[card], profile)
            if growth is None:
                break
            cost += growth
            pending[card] = tuple(sorted((*pending[card], profile)))
        else:
            best = cost if best is None else min(best, cost)
    return best


@given(
    st.lists(st.sampled_from(LAYOUTS), min_size=1, max_size=3),
    st.lists(st.sampled_from(A100.names), min_size=1, max_size=4).map(tuple),
)
@settings(deadline=None)
def test_the_cheapest_division_is_found(held: list[tuple[Placement, ...]], profiles: tuple[str, ...]) -> None:
    table = CardTable(A100, 0)
    states = [occupancy_of(A100, one) for one in held]
    found = divide_over_cards([(table, state, ()) for state in states], profiles)
    expected = by_hand(table, states, profiles)
    assert (found is None) == (expected is None)
    if found is not None and expected is not None:
        assert abs(found[0] - expected) < 1e-6


def test_of_cards_that_lose_alike_the_fullest_is_taken() -> None:
    table = CardTable(A100, 0)
    emptier, fuller = (occupancy_of(A100, [held]) for held in (Placement("1g.5gb", 0, 1), Placement("1g.10gb", 0, 2)))
    assert table.cost(emptier, (), "2g.10gb") == table.cost(fuller, (), "2g.10gb")
    for states in ([emptier, fuller], [fuller, emptier]):
        found = divide_over_cards([(table, state, ()) for state in states], ("2g.10gb",))
        assert found is not None
        assert found[1] == (states.index(fuller),)


def test_twenty_eight_small_slices_fit_four_cards_and_twenty_nine_do_not() -> None:
    table = CardTable(A100, 0)
    cards = [(table, 0, ())] * 4
    assert divide_over_cards(cards, ("1g.5gb",) * 28) is not None
    assert divide_over_cards(cards, ("1g.5gb",) * 29) is None


@pytest.mark.parametrize(
    ("cards", "profiles"),
    [
        (16, ("2g.10gb",) * 28 + ("1g.5gb",) * 57),
        (8, ("3g.20gb",) * 5 + ("2g.10gb",) * 9 + ("1g.10gb",) * 10 + ("1g.5gb",) * 14),
    ],
    ids=["one slice too many", "one memory slot too many"],
)
def test_what_misses_by_little_is_not_searched_for_minutes(cards: int, profiles: tuple[str, ...]) -> None:
    """Without a bound the first one takes minutes, in which the controller would lose its lease."""
    search = _NodeFitSearch([(CardTable(A100, 0), 0, ())] * cards, sorted(profiles, reverse=True))
    complete(search.extend(0, 0.0))
    assert search.best is None
    assert search.steps <= 4_000 + 1


def test_cards_of_two_models_share_a_demand() -> None:
    fleet = Fleet()
    fleet.add_card("node", "GPU-0", A100)
    fleet.add_card("node", "GPU-1", A30)
    assert complete(EmptyNodes(fleet).could_hold(("4g.24gb", "7g.40gb")))
    assert not complete(EmptyNodes(fleet).could_hold(("4g.24gb", "1g.6gb")))


def test_what_empty_nodes_could_hold_is_searched_once_for_each_kind_of_node() -> None:
    """Pods that wait are planned again and again, and a tenant may make thousands that take a long search."""
    fleet = Fleet()
    fleet.add_card("small", "GPU-0", A100)
    profiles = ("3g.20gb", "2g.10gb", "2g.10gb", "1g.5gb")

    def steps() -> int:
        work = StepBudget(1_000_000)
        complete(EmptyNodes(fleet).could_hold(profiles, work))
        return 1_000_000 - work.remaining

    assert steps() > 0
    assert steps() == 0
    assert not complete(EmptyNodes(fleet).could_hold(profiles))
    for index in range(2):
        fleet.add_card("large", f"GPU-{index}", A100)
    assert steps() > 0
    assert complete(EmptyNodes(fleet).could_hold(profiles))
    fleet.remove_card("large", "GPU-1")
    assert not complete(EmptyNodes(fleet).could_hold(profiles))


def test_only_so_many_answers_are_remembered() -> None:
    fleet = Fleet()
    fleet.add_card("node", "GPU-0", A100)
    profiles = [f"{cores}g.5gb" for cores in range(REMEMBERED_DEMANDS + 3)]
    for each in profiles:
        complete(EmptyNodes(fleet).could_hold((each, each)))
    assert len(fleet.fits_when_empty) == REMEMBERED_DEMANDS


@given(
    st.lists(st.sampled_from([(), ((0, 4, "3g.20gb"),), ((0, 8, "7g.40gb"),)]), min_size=1, max_size=4),
    st.lists(st.sampled_from(["1g.5gb", "3g.20gb", "4g.20gb", "7g.40gb"]), min_size=2, max_size=4),
)
@settings(deadline=None)
def test_slices_that_lie_apart_are_on_different_cards(
    held: list[tuple[tuple[int, int, str], ...]], profiles: list[str]
) -> None:
    fleet = Fleet()
    for number, taken in enumerate(held):
        fleet.add_card("n", f"GPU-{number}", A100)
        for start, size, profile in taken:
            fleet.occupy(CardPlacement("n", f"GPU-{number}", profile, start, size), "other")
    node = fleet.node("n")
    cards = list(node.cards.values())
    found = complete(fit_in_parts(node, profiles, spread=(CardRule(tuple(range(len(profiles))), distinct=True),)))
    possible = any(
        all(
            card.table.packings(card.occupancy, add_profile((), profile))
            for card, profile in zip(chosen, profiles, strict=True)
        )
        for chosen in itertools.permutations(cards, len(profiles))
    )
    assert (found is not None) == possible
    assert found is None or len(set(found[1])) == len(profiles)


@given(
    st.lists(st.sampled_from(["a", "a", "b", "c", ""]), min_size=1, max_size=4),
    st.lists(st.sampled_from(["1g.5gb", "3g.20gb", "4g.20gb"]), min_size=2, max_size=4),
    st.lists(
        st.tuples(st.sets(st.integers(0, 3), min_size=2), st.booleans(), st.sampled_from(["", "root"])),
        min_size=1,
        max_size=3,
    ),
)
@settings(deadline=None)
def test_slices_whose_cards_are_compared_have_a_place_if_any_division_keeps_the_rules(
    roots: list[str], profiles: list[str], drawn: list[tuple[set[int], bool, str]]
) -> None:
    fleet = Fleet()
    for number in range(len(roots)):
        fleet.add_card("n", f"GPU-{number}", A100)
    node = fleet.node("n")
    node.values = {f"GPU-{number}": {"root": root} if root else {} for number, root in enumerate(roots)}
    rules = [
        CardRule(tuple(sorted(each for each in found if each < len(profiles))), distinct, attribute)
        for found, distinct, attribute in drawn
    ]
    spread = tuple(each for each in rules if len(each.slices) > 1)

    def holds(chosen: tuple[str, ...]) -> bool:
        given: dict[str, list[str]] = {}
        for gpu, profile in zip(chosen, profiles, strict=True):
            given.setdefault(gpu, []).append(profile)
        return all(node.cards[gpu].table.packings(0, tuple(sorted(some))) for gpu, some in given.items())

    divisions = itertools.product(node.cards, repeat=len(profiles))
    possible = any(keeps(spread, each, node.values) and holds(each) for each in divisions)
    found = complete(fit_in_parts(node, profiles, spread=spread))
    assert (found is not None) == possible
    assert found is None or keeps(spread, [card.gpu for card in found[1]], node.values)


def test_rules_are_compared_once_a_trial_however_many_cards_and_slices_there_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A search that ends at its bound took twice as long while each card was compared with all chosen ones anew."""
    fleet = Fleet()
    for number in range(16):
        fleet.add_card("n", f"GPU-{number}", A100)
    looked: list[int] = []
    taken = OrderedRule.taken

    def counting(rule: OrderedRule, chosen: Sequence[int]) -> AbstractSet[str]:
        looked.append(1)
        return taken(rule, chosen)

    monkeypatch.setattr(OrderedRule, "taken", counting)
    rules = (CardRule(tuple(range(7))), CardRule((8, 9), distinct=True))
    budget = StepBudget(10**6)
    assert complete(fit_in_parts(fleet.node("n"), ["1g.5gb"] * 24, budget, spread=rules)) is not None
    trials = (10**6 - budget.remaining) // 10
    assert len(looked) <= len(rules) * (trials + 1)


def test_slices_that_are_compared_with_most_go_first_so_a_contradiction_ends_the_search() -> None:
    fleet = Fleet()
    for number in range(8):
        fleet.add_card("n", f"GPU-{number}", A100)
    fleet.node("n").values = {f"GPU-{number}": {"root": str(number // 2)} for number in range(8)}
    last = (13, 14, 15)
    apart = tuple(CardRule((number, number + 1), distinct=True) for number in range(13))
    budget = StepBudget(10**6)
    rules = (*apart, CardRule(last, attribute="root"), CardRule(last, distinct=True))
    assert complete(fit_in_parts(fleet.node("n"), ["1g.5gb"] * 16, budget, spread=rules)) is None
    assert 10**6 - budget.remaining < 10_000, "three cards of a root that has two: seen at once, not after all others"
