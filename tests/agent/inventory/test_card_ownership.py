"""Owners of cards, and the change of an owner."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tessera.agent.inventory.gpu_inventory import CardOwner, CardOwnership, CardShares
from tessera.api.sharing.devices import SharingKind

A, B = "GPU-a", "GPU-b"
ON_DEMAND, STATIC, CLAIMS = CardOwner.ON_DEMAND, CardOwner.STATIC, CardOwner.CLAIMS
SHARES = CardOwner.SHARES


def test_no_part_acts_before_the_owner_of_each_card_is_decided(tmp_path: Path) -> None:
    ownership = CardOwnership(tmp_path / "owners.json")
    assert not ownership.decided
    ownership.set_desired({A: ON_DEMAND, B: STATIC})
    assert ownership.decided
    assert (ownership.on_demand_gpus(), ownership.static_gpus()) == ({A}, {B})


def test_a_card_changes_hands_only_when_the_side_that_has_it_lets_go(tmp_path: Path) -> None:
    ownership = CardOwnership(tmp_path / "owners.json")
    ownership.set_desired({A: STATIC})
    ownership.set_desired({A: ON_DEMAND})
    assert ownership.owner(A) is STATIC
    assert ownership.is_leaving(A)
    ownership.transfer(A)
    assert ownership.owner(A) is ON_DEMAND
    assert not ownership.is_leaving(A)


def test_a_card_in_shares_is_divided_anew_once_it_is_released(tmp_path: Path) -> None:
    two, four = CardShares(SharingKind.TIME_SLICING, 2), CardShares(SharingKind.TIME_SLICING, 4)
    ownership = CardOwnership(tmp_path / "owners.json")
    ownership.set_desired({A: SHARES}, {A: two})
    assert ownership.claimed_gpus() == {A: two}
    assert ownership.set_desired({A: SHARES}, {A: four})
    for each in (ownership, CardOwnership(tmp_path / "owners.json")):
        each.set_desired({A: SHARES}, {A: four})
        assert (each.claimed_gpus(), each.is_leaving(A)) == ({A: two}, True)
    ownership.transfer(A)
    assert (ownership.claimed_gpus(), ownership.is_leaving(A)) == ({A: four}, False)
    ownership.set_desired({A: CLAIMS})
    ownership.transfer(A)
    assert ownership.claimed_gpus() == {A: None}


def test_a_desired_owner_that_changes_back_in_time_changes_nothing(tmp_path: Path) -> None:
    ownership = CardOwnership(tmp_path / "owners.json")
    ownership.set_desired({A: STATIC})
    ownership.set_desired({A: ON_DEMAND})
    ownership.set_desired({A: STATIC})
    assert not ownership.is_leaving(A)


def test_a_process_that_starts_again_takes_no_card_from_the_other_side(tmp_path: Path) -> None:
    path = tmp_path / "state" / "owners.json"
    CardOwnership(path).set_desired({A: STATIC, B: ON_DEMAND})
    again = CardOwnership(path)
    again.set_desired({A: ON_DEMAND, B: ON_DEMAND})
    assert again.owner(A) is STATIC
    assert again.is_leaving(A)


def test_assumed_owners_take_precedence_over_the_file(tmp_path: Path) -> None:
    path = tmp_path / "owners.json"
    CardOwnership(path).set_desired({A: STATIC})
    again = CardOwnership(path)
    again.assume({A: ON_DEMAND})
    again.set_desired({A: STATIC})
    assert again.owner(A) is ON_DEMAND


def test_a_file_that_cannot_be_read_counts_as_none(tmp_path: Path) -> None:
    path = tmp_path / "owners.json"
    path.write_text('{"GPU-a": "mine"}')
    ownership = CardOwnership(path)
    ownership.set_desired({A: ON_DEMAND})
    assert ownership.owner(A) is ON_DEMAND


@given(owners=st.lists(st.tuples(st.sampled_from([ON_DEMAND, STATIC]), st.booleans()), min_size=1, max_size=12))
def test_a_card_always_has_one_owner_that_changes_only_by_transfer(
    tmp_path_factory: pytest.TempPathFactory, owners: list[tuple[CardOwner, bool]]
) -> None:
    folder = tmp_path_factory.mktemp("ownership")
    ownership = CardOwnership(folder / "owners.json")
    owner = None
    for wanted, goes in owners:
        ownership.set_desired({A: wanted})
        owner = owner or wanted
        assert ownership.owner(A) is owner
        if goes:
            ownership.transfer(A)
            owner = wanted
        assert len(ownership.on_demand_gpus() & {A}) + len(ownership.static_gpus() & {A}) == 1
        assert CardOwnership(folder / "owners.json").owner(A) is owner


@pytest.mark.parametrize(("before", "after"), [(ON_DEMAND, CLAIMS), (CLAIMS, ON_DEMAND)])
def test_a_card_passes_through_the_static_side_which_changes_its_mig_mode(
    before: CardOwner, after: CardOwner, tmp_path: Path
) -> None:
    ownership = CardOwnership(tmp_path / "owners.json")
    ownership.set_desired({A: before})
    ownership.set_desired({A: after})
    ownership.transfer(A)
    assert ownership.owner(A) is STATIC
    assert ownership.is_leaving(A)
    ownership.transfer(A)
    assert ownership.owner(A) is after
