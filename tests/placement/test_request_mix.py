"""The mix is a function of the order of placements, and follows a change of it."""

import pytest

from tessera.mig.models import model_by_short_name
from tessera.placement.card_table import CHANGED, FOLD, RequestMix
from tessera.placement.fleet import CardPlacement, Fleet


def fed(*profiles: str) -> RequestMix:
    mix = RequestMix()
    for profile in profiles:
        mix.count(profile)
    return mix


def test_nothing_is_known_before_enough_placements() -> None:
    assert fed(*["1g.5gb"] * (FOLD - 1)).shares == {}
    assert fed(*["1g.5gb"] * FOLD).shares == {"1g.5gb": 1.0}


def test_shares_are_by_count_and_the_same_for_the_same_history() -> None:
    history = ["1g.5gb", "1g.5gb", "1g.5gb", "7g.40gb"] * FOLD
    assert fed(*history).shares == fed(*history).shares
    assert round(fed(*history).shares["7g.40gb"], 9) == 0.25


def test_a_former_mix_fades_and_is_forgotten() -> None:
    mix = fed(*["7g.40gb"] * FOLD * 20, *["1g.5gb"] * FOLD * 20)
    assert mix.shares["7g.40gb"] < 0.15
    for _ in range(FOLD * 70):
        mix.count("1g.5gb")
    assert mix.shares["1g.5gb"] > 1 - 2 * CHANGED


def test_shares_stay_until_they_changed_enough() -> None:
    mix = fed(*["1g.5gb", "1g.5gb", "2g.10gb", "7g.40gb"] * (FOLD // 4) * 10)
    before = mix.shares
    for profile in [*["1g.5gb", "1g.5gb", "2g.10gb", "7g.40gb"] * (FOLD // 4 - 1), *["7g.40gb"] * 4]:
        mix.count(profile)
    assert mix.shares is before
    for _ in range(FOLD):
        mix.count("7g.40gb")
    assert mix.shares is not before
    assert sum(mix.shares.values()) == pytest.approx(1.0)


def test_a_fleet_learns_from_the_slices_on_its_cards() -> None:
    fleet, geometry = Fleet(), model_by_short_name("A100-40GB").geometry
    for card in range(FOLD):
        fleet.add_card("node", f"GPU-{card}", geometry)
        fleet.occupy(CardPlacement("node", f"GPU-{card}", "3g.20gb", 4, 4), "pod")
    assert [table.mix.shares for table in fleet.tables] == [{"3g.20gb": 1.0}]
