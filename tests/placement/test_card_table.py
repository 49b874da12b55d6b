"""Costs are what fragmentation grows by; arrangements are the best that exist."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.mig_enumeration import layouts, multisets

from tessera.mig.geometry import Placement, free_starts, occupancy_of
from tessera.mig.models import model_by_short_name
from tessera.placement.card_table import CardTable
from tessera.placement.state_costs import add_profile

A100 = model_by_short_name("A100-40GB").geometry
LAYOUTS = layouts(A100)


@pytest.fixture(name="table")
def a_table() -> CardTable:
    return CardTable(A100, 0)


def test_an_empty_and_a_full_card_are_not_fragmented_beyond_what_starts_forbid(table: CardTable) -> None:
    full = occupancy_of(A100, [Placement("7g.40gb", 0, 8)])
    assert table.fragmentation(full) == 0
    assert table.fragmentation(0) == pytest.approx((1 + 1 + 2 + 4) / (7 * 8))  # 1g, 1g+me, 2g and 4g cannot reach all


def test_a_free_slot_that_nothing_can_use_is_worse_than_one_in_reach(table: CardTable) -> None:
    assert table.fragmentation(0b0111_1111) > table.fragmentation(0b1111_1110) > 0


def test_a_small_instance_goes_to_the_end_that_no_large_one_needs(table: CardTable) -> None:
    placed = table.arrangement(0, ("1g.5gb",))
    assert placed is not None
    after = occupancy_of(A100, placed)
    assert free_starts(A100, A100.profile("4g.20gb"), after)
    assert free_starts(A100, A100.profile("2g.10gb"), after) == (0, 2, 4)


@given(st.sampled_from(LAYOUTS), st.sampled_from([(), *multisets(A100)]), st.sampled_from(A100.names))
def test_a_cost_exists_exactly_when_the_set_with_one_more_is_packable(
    held: tuple[Placement, ...], given_already: tuple[tuple[str, int], ...], profile: str
) -> None:
    table = CardTable(A100, 0)
    state = occupancy_of(A100, held)
    pending = tuple(sorted(name for name, count in given_already for _ in range(count)))
    cost = table.cost(state, pending, profile)
    possible = table.arrangement(state, pending) is not None
    assert (cost is not None) == (possible and table.arrangement(state, add_profile(pending, profile)) is not None)


@given(st.sampled_from(LAYOUTS), st.sampled_from(multisets(A100)))
def test_no_arrangement_leaves_the_card_less_fragmented(
    held: tuple[Placement, ...], wanted: tuple[tuple[str, int], ...]
) -> None:
    table = CardTable(A100, 0)
    state = occupancy_of(A100, held)
    pending = tuple(sorted(name for name, count in wanted for _ in range(count)))
    if len(pending) > 3:
        return
    best = table.arrangement(state, pending)
    ends = []
    for starts in itertools.product(*(A100.profile(name).starts for name in pending)):
        after, fits = state, True
        for name, start in zip(pending, starts, strict=True):
            claim = A100.claim(A100.profile(name), start)
            fits = fits and not claim & after
            after |= claim
        if fits:
            ends.append(table.fragmentation(after))
    assert (best is None) == (not ends)
    if best is not None:
        assert table.fragmentation(state | occupancy_of(A100, best)) == min(ends)


def test_the_ranking_covers_what_was_seen_best_first(table: CardTable) -> None:
    for held in LAYOUTS:
        table.add_state(occupancy_of(A100, held))
    ranking = table.costs.rank_states("3g.20gb").candidates
    assert ranking == sorted(ranking)
    rooms = {state for _, _, _, state, _ in ranking}
    assert rooms == {
        state
        for state in {occupancy_of(A100, held) for held in LAYOUTS}
        if free_starts(A100, A100.profile("3g.20gb"), state)
    }


@pytest.mark.parametrize("profile", [name for name in A100.names if name not in {"7g.40gb", "4g.20gb"}])
def test_of_cards_that_lose_alike_the_fullest_comes_first(table: CardTable, profile: str) -> None:
    for held in LAYOUTS:
        table.add_state(occupancy_of(A100, held))
    alike: dict[float, list[int]] = {}
    for cost, _, _, state, _ in table.costs.rank_states(profile).candidates:
        alike.setdefault(cost, []).append((~state & A100.full).bit_count())
    assert any(len(set(free)) > 1 for free in alike.values()), "some of them lose alike and are not equally full"
    assert all(free == sorted(free) for free in alike.values())


def test_costs_by_another_rating_are_its_growth_and_equal_ratings_share_them(table: CardTable) -> None:
    def free_twos(_table: CardTable, occupancy: int) -> float:
        return -float(len(free_starts(A100, A100.profile("2g.10gb"), occupancy)))

    costs = table.rated_by(free_twos)
    assert costs is table.rated_by(free_twos)
    assert costs.cost(0, (), "1g.5gb") == 0  # at slot 6, where no 2g.10gb may start
    assert costs.cost(0, (), "3g.20gb") == 1  # at slot 4
    assert costs.arrangement(0, ("3g.20gb",)) == (Placement("3g.20gb", 4, 4),)


def test_a_rating_beyond_the_bound_is_computed_again(table: CardTable) -> None:
    ratings = [lambda _table, occupancy, factor=factor: factor * occupancy for factor in range(20)]
    first = table.rated_by(ratings[0])
    for rating in ratings:
        table.rated_by(rating)
    again = table.rated_by(ratings[0])
    assert again is not first
    assert again.cost(0, (), "1g.5gb") == first.cost(0, (), "1g.5gb") == 0


def test_a_state_that_comes_later_takes_its_place_in_the_rankings() -> None:
    states = [occupancy_of(A100, held) for held in LAYOUTS]
    whole, growing = CardTable(A100, 0), CardTable(A100, 0)
    for state in states:
        whole.add_state(state)
    for number, state in enumerate(states):
        growing.add_state(state)
        if number % 7 == 0:
            growing.costs.rank_states("2g.10gb")
    assert growing.costs.rank_states("2g.10gb").states == whole.costs.rank_states("2g.10gb").states
    assert growing.costs.rank_states("2g.10gb").candidates == whole.costs.rank_states("2g.10gb").candidates


@given(st.sampled_from(LAYOUTS), st.sampled_from([name for name in A100.names if not name.endswith("+me")]))
def test_the_least_blockers_are_the_fewest_and_smallest_instances_on_a_place(
    held: tuple[Placement, ...], profile: str
) -> None:
    table = CardTable(A100, 0)
    instances = sum(table.mask_of(each) for each in held)
    places = []
    for start in A100.profile(profile).starts:
        sizes = [each.size for each in held if table.mask_of(each) & A100.profile(profile).mask(start)]
        places.append((len(sizes), sum(sizes)))
    found = table.least_blockers[profile, instances]
    assert found is not None
    assert found[:2] == min(places)


def test_of_a_profile_with_media_engines_the_bits_do_not_tell_the_blockers(table: CardTable) -> None:
    assert table.least_blockers["1g.5gb+me", 0] is None
