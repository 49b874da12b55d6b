"""An occupancy says what fits now, and a conflict names what is in the way."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.mig_enumeration import layouts

from tessera.mig.geometry import (
    Placement,
    find_conflict,
    free_placements,
    free_slots,
    free_starts,
    occupancy_of,
    placement_mask,
    usable_slots,
)
from tessera.mig.models import model_by_short_name

A100 = model_by_short_name("A100-40GB").geometry
LAYOUTS = layouts(A100)


def test_an_empty_card_offers_every_legal_start() -> None:
    assert {row.name: free_starts(A100, row, 0) for row in A100.profiles} == {
        row.name: row.starts for row in A100.profiles
    }


def test_two_halves_leave_no_room_for_the_seventh_compute_slice() -> None:
    halves = [Placement("3g.20gb", 0, 4), Placement("3g.20gb", 4, 4)]
    assert free_placements(A100, occupancy_of(A100, halves)) == ()
    found = find_conflict(A100, "1g.5gb", halves)
    assert found is not None
    assert (found.rule, found.text) == ("slots", "1g.5gb needs 1 memory slots, 0 of 8 are free")


def test_a_conflict_of_starts_names_what_stands_in_the_way() -> None:
    held = [Placement("1g.5gb", 1, 1), Placement("1g.5gb", 5, 1)]
    found = find_conflict(A100, "3g.20gb", held)
    assert found is not None
    assert found.rule == "starts"
    assert found.held == tuple(held)
    assert "1g.5gb at 1, 1g.5gb at 5" in found.text


def test_a_second_media_instance_conflicts_with_its_holder() -> None:
    found = find_conflict(A100, "1g.5gb.me", [Placement("1g.5gb+me", 3, 1)])
    assert found is not None
    assert found.rule == "media"
    assert found.held == (Placement("1g.5gb+me", 3, 1),)


def test_an_unknown_profile_is_a_conflict_too() -> None:
    found = find_conflict(A100, "9g.1gb", [])
    assert found is not None
    assert found.rule == "unknown profile"


def test_what_fits_is_no_conflict() -> None:
    assert find_conflict(A100, "4g.20gb", [Placement("3g.20gb", 4, 4)]) is None


def test_the_eighth_slot_is_stranded_beside_seven_small_instances() -> None:
    occupancy = occupancy_of(A100, [Placement("1g.5gb", start, 1) for start in range(7)])
    assert (free_slots(A100, occupancy), usable_slots(A100, occupancy)) == (1, 0)


def test_hardware_is_believed_even_where_the_table_does_not_list_it() -> None:
    assert placement_mask(A100, Placement("2g.10gb", 5, 2)) == 0b0110_0000
    assert placement_mask(A100, Placement("1g.9gb+me", 0, 1)) == 1 | A100.media_token
    assert placement_mask(A100, Placement("something new", 0, 1)) == 1


@pytest.mark.parametrize(
    "placement", [Placement("1g.5gb", 8, 1), Placement("1g.5gb", -1, 1), Placement("1g.5gb", 0, 0)]
)
def test_a_placement_outside_of_the_card_is_refused(placement: Placement) -> None:
    with pytest.raises(ValueError, match="outside of the card"):
        placement_mask(A100, placement)


def test_two_instances_on_one_slot_are_refused() -> None:
    with pytest.raises(ValueError, match="its memory slots"):
        occupancy_of(A100, [Placement("3g.20gb", 0, 4), Placement("1g.5gb", 3, 1)])
    with pytest.raises(ValueError, match="the media engines"):
        occupancy_of(A100, [Placement("1g.5gb+me", 0, 1), Placement("1g.5gb+me", 3, 1)])


@given(st.sampled_from(LAYOUTS), st.sampled_from(A100.names))
def test_conflict_and_free_starts_agree(held: tuple[Placement, ...], profile: str) -> None:
    fits = bool(free_starts(A100, A100.profile(profile), occupancy_of(A100, held)))
    assert (find_conflict(A100, profile, held) is None) == fits


@given(st.sampled_from(LAYOUTS))
def test_usable_slots_are_free_slots_within_reach(held: tuple[Placement, ...]) -> None:
    occupancy = occupancy_of(A100, held)
    assert 0 <= usable_slots(A100, occupancy) <= free_slots(A100, occupancy)
    assert bool(usable_slots(A100, occupancy)) == bool(free_placements(A100, occupancy))
