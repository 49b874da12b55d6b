"""The exact benchmark of two cards, against formulas and symmetries."""

import pytest
from bench.state_values import PROFILES, all_states, places
from bench.two_cards import TwoCards, canonical, ends, slots_in_use, worth_by

from tessera.placement.policies import FEATURES

SEVENS = (0.0, 0.0, 0.0, 0.0, 0.0, 1.0)
THREES_AND_FOURS = (0.0, 0.0, 0.0, 0.5, 0.5, 0.0)


def test_two_whole_cards_lose_what_erlangs_formula_says() -> None:
    # Two servers, two requests for a mean life: 40 % are lost.
    assert slots_in_use(TwoCards(SEVENS).steps, SEVENS, 1.0) == pytest.approx(60.0, abs=0.01)


def test_joined_states_have_the_same_rooms_and_ends() -> None:
    for state in all_states():
        one = canonical(state)
        assert canonical(one) == one
        assert sorted(ends(state)) == sorted(ends(one))
        for profile in range(len(PROFILES)):
            reached = {canonical(each) for each in places(state, profile)}
            assert reached == {canonical(each) for each in places(one, profile)}


def test_a_3g_goes_to_the_right_half_since_a_4g_cannot() -> None:
    pool = TwoCards(THREES_AND_FOURS)
    best = slots_in_use(pool.steps, THREES_AND_FOURS, 1.0)
    wide = pool.held_to(worth_by(float(name == "usable 4x4") for name in FEATURES))
    blind = pool.held_to(worth_by(-float(name == "usable 4x4") for name in FEATURES))
    assert slots_in_use(wide, THREES_AND_FOURS, 1.0) == pytest.approx(best, abs=0.01)
    assert slots_in_use(blind, THREES_AND_FOURS, 1.0) < best - 1
