"""Who has a card, and how it changes hands."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tessera.agent.inventory.card_ownership import Role, Roles

A, B = "GPU-a", "GPU-b"
ON_DEMAND, STATIC = Role.ON_DEMAND, Role.STATIC


def test_nobody_acts_before_it_is_decided_who_shall_have_which_card(tmp_path: Path) -> None:
    roles = Roles(tmp_path / "roles.json")
    assert not roles.decided
    roles.wish({A: ON_DEMAND, B: STATIC})
    assert roles.decided
    assert (roles.on_demand(), roles.static()) == ({A}, {B})


def test_a_card_changes_hands_only_when_the_side_that_has_it_lets_go(tmp_path: Path) -> None:
    roles = Roles(tmp_path / "roles.json")
    roles.wish({A: STATIC})
    roles.wish({A: ON_DEMAND})
    assert roles.role(A) is STATIC
    assert roles.leaving(A)
    roles.let_go(A)
    assert roles.role(A) is ON_DEMAND
    assert not roles.leaving(A)


def test_a_wish_taken_back_in_time_changes_nothing(tmp_path: Path) -> None:
    roles = Roles(tmp_path / "roles.json")
    roles.wish({A: STATIC})
    roles.wish({A: ON_DEMAND})
    roles.wish({A: STATIC})
    assert not roles.leaving(A)


def test_a_process_that_starts_again_takes_no_card_from_the_other_side(tmp_path: Path) -> None:
    path = tmp_path / "state" / "roles.json"
    Roles(path).wish({A: STATIC, B: ON_DEMAND})
    again = Roles(path)
    again.wish({A: ON_DEMAND, B: ON_DEMAND})
    assert again.role(A) is STATIC
    assert again.leaving(A)


def test_what_is_known_for_sure_goes_before_the_file(tmp_path: Path) -> None:
    path = tmp_path / "roles.json"
    Roles(path).wish({A: STATIC})
    again = Roles(path)
    again.begin({A: ON_DEMAND})
    again.wish({A: STATIC})
    assert again.role(A) is ON_DEMAND


def test_a_file_that_cannot_be_read_counts_as_none(tmp_path: Path) -> None:
    path = tmp_path / "roles.json"
    path.write_text('{"GPU-a": "mine"}')
    roles = Roles(path)
    roles.wish({A: ON_DEMAND})
    assert roles.role(A) is ON_DEMAND


@given(wishes=st.lists(st.tuples(st.sampled_from([ON_DEMAND, STATIC]), st.booleans()), min_size=1, max_size=12))
def test_a_card_always_has_one_owner_who_changes_by_letting_go_alone(
    tmp_path_factory: pytest.TempPathFactory, wishes: list[tuple[Role, bool]]
) -> None:
    folder = tmp_path_factory.mktemp("roles")
    roles = Roles(folder / "roles.json")
    owner = None
    for wanted, goes in wishes:
        roles.wish({A: wanted})
        owner = owner or wanted
        assert roles.role(A) is owner
        if goes:
            roles.let_go(A)
            owner = wanted
        assert len(roles.on_demand() & {A}) + len(roles.static() & {A}) == 1
        assert Roles(folder / "roles.json").role(A) is owner
