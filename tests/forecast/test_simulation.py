"""Starts are forecast by giving the room of leases that end to waiting pods in their order."""

from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tessera.forecast.past_times import SurvivalCurve
from tessera.forecast.simulation import Holder, LifeEstimate, RoomSearch, Simulation, Situation, StartForecast, Waiter
from tessera.mig.models import model_by_short_name
from tessera.placement.card_table import CardTable
from tessera.placement.node_fit import divide_over_cards

TABLE = CardTable(model_by_short_name("A100-40GB").geometry, 0)
#: The two halves of a card, and all of it.
LEFT, RIGHT, WHOLE = 0b00001111, 0b11110000, 0b11111111
ANY = 0b1111
UNKNOWN = LifeEstimate()


def _within(seconds: float) -> LifeEstimate:
    return LifeEstimate(deadline=seconds)


def _evenly(most: int) -> SurvivalCurve:
    return SurvivalCurve((0, each, True) for each in range(1, most + 1))


def _forecast(situation: Situation) -> list[StartForecast]:
    simulation = Simulation(situation)
    for _ in simulation.run():
        pass
    return [simulation.forecast(number) for number in range(len(situation.waiters))]


def _one_card(holders: list[tuple[int, LifeEstimate]], waiters: list[Waiter]) -> Situation:
    bits = 0
    for taken, _ in holders:
        bits |= taken
    return Situation([[0]], [TABLE], [bits], [Holder(0, ((0, taken),), life) for taken, life in holders], waiters)


def test_a_pod_starts_when_the_lease_in_its_way_ends() -> None:
    found = _forecast(_one_card([(LEFT, _within(600)), (RIGHT, UNKNOWN)], [Waiter(("3g.20gb",), ANY)]))
    assert found == [StartForecast(600, 600, by_deadline=True)]


def test_a_large_pod_starts_when_the_last_of_several_leases_ends() -> None:
    found = _forecast(_one_card([(LEFT, _within(600)), (RIGHT, _within(900))], [Waiter(("7g.40gb",), ANY)]))
    assert found == [StartForecast(900, 900, by_deadline=True)]


def test_a_pod_starts_after_those_that_stand_before_it_have_ended() -> None:
    waiters = [
        Waiter(("7g.40gb",), ANY, _within(1000)),
        Waiter(("7g.40gb",), ANY, _within(1000)),
        Waiter(("1g.5gb",), ANY),
    ]
    found = _forecast(_one_card([(WHOLE, _within(600))], waiters))
    assert [each.p50 for each in found] == [600, 1600, 2600]


def test_a_smaller_pod_that_fits_starts_before_a_larger_one() -> None:
    waiters = [Waiter(("7g.40gb",), ANY), Waiter(("3g.20gb",), ANY, _within(100))]
    found = _forecast(_one_card([(LEFT, _within(600)), (RIGHT, _within(900))], waiters))
    assert [each.p50 for each in found] == [900, 600]


def test_reserved_slots_are_kept_for_the_pod_that_stands_first() -> None:
    waiters = [Waiter(("7g.40gb",), ANY, _within(50), reserved=((0, WHOLE),)), Waiter(("3g.20gb",), ANY, _within(5000))]
    found = _forecast(_one_card([(LEFT, _within(600)), (RIGHT, _within(900))], waiters))
    assert [each.p50 for each in found] == [900, 950]


def test_nothing_is_forecast_where_nothing_is_known_of_the_leases() -> None:
    assert _forecast(_one_card([(WHOLE, UNKNOWN)], [Waiter(("1g.5gb",), ANY)])) == [StartForecast(inf, inf)]


def test_a_pod_starts_only_on_its_nodes() -> None:
    situation = Situation(
        [[0], [1]],
        [TABLE, TABLE],
        [WHOLE, WHOLE],
        [Holder(0, ((0, WHOLE),), _within(10)), Holder(1, ((1, WHOLE),), _within(500))],
        [Waiter(("7g.40gb",), 0b10)],
    )
    assert _forecast(situation)[0].p50 == 500


def test_slices_of_one_pod_start_together_on_one_node() -> None:
    situation = Situation(
        [[0, 1], [2]],
        [TABLE] * 3,
        [WHOLE] * 3,
        [
            Holder(0, ((0, WHOLE),), _within(100)),
            Holder(0, ((1, WHOLE),), _within(300)),
            Holder(1, ((2, WHOLE),), _within(50)),
        ],
        [Waiter(("7g.40gb", "7g.40gb"), ANY)],
    )
    assert _forecast(situation)[0].p50 == 300


def test_the_range_is_that_of_the_first_of_many_ends() -> None:
    # The first of n even shares of 1,000 s: median 1 - 0.5**(1/n), ninth decile 1 - 0.1**(1/n).
    curve = _evenly(1000)
    situation = Situation(
        [[each] for each in range(8)],
        [TABLE] * 8,
        [WHOLE] * 8,
        [Holder(each, ((each, WHOLE),), LifeEstimate(curve)) for each in range(8)],
        [Waiter(("7g.40gb",), 0b11111111)],
    )
    (found,) = _forecast(situation)
    assert found.p50 == pytest.approx(83, abs=40)
    assert found.p90 == pytest.approx(250, abs=80)
    assert not found.by_deadline


def test_a_lease_that_its_deadline_ends_makes_a_range_of_its_own() -> None:
    life = LifeEstimate(_evenly(1000), deadline=100)
    (found,) = _forecast(_one_card([(WHOLE, life)], [Waiter(("7g.40gb",), ANY)]))
    assert found == StartForecast(100, 100, by_deadline=True)


def test_the_same_situation_has_the_same_forecast() -> None:
    situation = _one_card([(WHOLE, LifeEstimate(_evenly(1000)))], [Waiter(("7g.40gb",), ANY)] * 3)
    assert _forecast(situation) == _forecast(situation)


def test_work_is_done_in_pieces_and_ends_at_its_bound() -> None:
    curve = _evenly(1000)
    count = 500
    situation = Situation(
        [[each] for each in range(count)],
        [TABLE] * count,
        [WHOLE] * count,
        [Holder(each, ((each, WHOLE),), LifeEstimate(curve)) for each in range(count)],
        [Waiter(("7g.40gb",), (1 << count) - 1, LifeEstimate(curve))] * 2000,
    )
    simulation = Simulation(situation, steps=100_000)
    pieces = sum(1 for _ in simulation.run())
    assert 50 < pieces < 150
    first, last = simulation.forecast(0), simulation.forecast(1999)
    assert first.p50 < last.p50 < inf


PROFILES = st.sampled_from(["1g.5gb", "2g.10gb", "3g.20gb", "7g.40gb"])


@given(st.lists(st.lists(PROFILES, max_size=3), min_size=1, max_size=4), st.lists(PROFILES, min_size=1, max_size=5))
def test_room_is_found_if_and_only_if_placement_finds_it(held: list[list[str]], wanted: list[str]) -> None:
    found = [TABLE.arrangement(0, tuple(sorted(each))) or () for each in held]
    occupancies = [sum(TABLE.mask_of(one) for one in each) for each in found]
    cards = range(len(held))
    rooms = RoomSearch(Situation([cards], [TABLE] * len(held), occupancies, [], []))
    division = divide_over_cards([(TABLE, each, ()) for each in occupancies], wanted)
    assert (rooms.find(0, tuple(sorted(wanted)), occupancies, {}, cards) is None) == (division is None)


def test_a_pod_starts_in_room_that_was_free_before_the_first_end_of_its_node() -> None:
    holders = [Holder(0, ((0, LEFT),), _within(600))]
    situation = Situation([[0, 1]], [TABLE] * 2, [LEFT, 0], holders, [Waiter(("7g.40gb",), ANY)] * 2)
    assert [each.p50 for each in _forecast(situation)] == [600, 600]


def test_slots_that_were_kept_on_another_card_serve_the_next_pod_at_once() -> None:
    waiters = [Waiter(("7g.40gb",), ANY, UNKNOWN, reserved=((1, WHOLE),)), Waiter(("3g.20gb",), ANY)]
    holders = [
        Holder(0, ((0, WHOLE),), _within(600)),
        Holder(0, ((1, LEFT),), UNKNOWN),
        Holder(0, ((2, 1),), _within(100)),  # makes no room
    ]
    situation = Situation([[0, 1, 2]], [TABLE] * 3, [WHOLE, LEFT, WHOLE], holders, waiters)
    assert [each.p50 for each in _forecast(situation)] == [600, 600]
