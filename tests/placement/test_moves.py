"""Moves make room with the fewest allocations that may move, and everything fits afterwards."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.mig_enumeration import layouts

from tessera.mig.geometry import free_starts
from tessera.mig.models import model_by_short_name
from tessera.placement.card_table import CardTable
from tessera.placement.cards import CardPlacement
from tessera.placement.demand import Demand
from tessera.placement.fleet import Fleet
from tessera.placement.moves import MoveRules, Room, make_room, weigh
from tessera.placement.plan import plan
from tessera.placement.state_costs import StateCosts

A100 = model_by_short_name("A100-40GB").geometry
A30 = model_by_short_name("A30").geometry
LAYOUTS = layouts(A100.restrict([name for name in A100.names if name != "1g.5gb+me"]))


def costs(table: CardTable) -> StateCosts:
    return table.costs


def fleet_of(*cards: dict[int, str]) -> Fleet:
    """One card on each of the nodes ``node-0``, ``node-1``, ... with profiles by start."""
    fleet = Fleet()
    for number, held in enumerate(cards):
        fleet.add_card(f"node-{number}", f"GPU-{number}", A100)
        for start, profile in held.items():
            size = A100.profile(profile).size
            placed = CardPlacement(f"node-{number}", f"GPU-{number}", profile, start, size)
            fleet.occupy(placed, f"{profile}@{number}:{start}")
    return fleet


def carry_out(fleet: Fleet, room: Room) -> None:
    for move in room.moves:
        at = move.allocation.placement
        assert fleet.release(at.node, at.gpu, at.start) == move.allocation
    for move in room.moves:
        fleet.occupy(move.to, move.allocation.owner)
    fleet.occupy(room.placement, "new")


def test_one_small_slice_moves_so_that_a_whole_card_is_free() -> None:
    fleet = fleet_of({0: "1g.5gb"}, {0: "3g.20gb", 4: "2g.10gb"}, {0: "4g.20gb", 4: "2g.10gb"})
    room = make_room(fleet, "7g.40gb", costs, MoveRules())
    assert room is not None
    assert [move.allocation.owner for move in room.moves] == ["1g.5gb@0:0"]
    assert (room.placement.gpu, room.placement.start, room.moved_slots) == ("GPU-0", 0, 1)
    carry_out(fleet, room)


def test_of_as_many_moves_the_cheaper_one_is_made_then_the_one_that_leaves_the_better_cards() -> None:
    fleet = fleet_of({0: "1g.5gb"}, {0: "2g.10gb"}, {0: "2g.10gb", 2: "2g.10gb", 4: "2g.10gb"}, {4: "3g.20gb"})
    room = make_room(fleet, "7g.40gb", costs, MoveRules())
    assert room is not None
    assert [move.allocation.owner for move in room.moves] == ["1g.5gb@0:0"], (
        "one slot lies beside, and is lost to others"
    )
    dear = MoveRules(price=lambda one: 1.0 if one.owner == "1g.5gb@0:0" else 0.0)
    room = make_room(fleet, "7g.40gb", costs, dear)
    assert room is not None
    assert [move.allocation.owner for move in room.moves] == ["2g.10gb@1:0"]


def test_a_slice_may_move_to_another_start_of_its_own_card() -> None:
    fleet = fleet_of({1: "1g.5gb", 4: "2g.10gb", 6: "1g.5gb"})
    room = make_room(fleet, "4g.20gb", costs, MoveRules())
    assert room is None  # slot 7 is no start of a 1g.5gb
    fleet = fleet_of({1: "1g.5gb", 4: "2g.10gb"})
    room = make_room(fleet, "4g.20gb", costs, MoveRules())
    assert room is not None
    assert [(move.to.gpu, move.to.start) for move in room.moves] == [("GPU-0", 6)]
    carry_out(fleet, room)


def test_what_may_not_move_stays() -> None:
    fleet = fleet_of({0: "1g.5gb"}, {0: "1g.5gb", 4: "1g.5gb"})
    room = make_room(fleet, "7g.40gb", costs, MoveRules(may_move=lambda one: one.owner != "1g.5gb@0:0"))
    assert room is not None
    assert sorted(move.allocation.owner for move in room.moves) == ["1g.5gb@1:0", "1g.5gb@1:4"]
    assert make_room(fleet, "7g.40gb", costs, MoveRules(may_move=lambda _: False)) is None
    assert make_room(fleet, "7g.40gb", costs, MoveRules(may_move=lambda one: one.owner != "1g.5gb@0:0"), most=1) is None


def test_nodes_that_refuse_are_no_place() -> None:
    fleet = fleet_of({0: "1g.5gb"}, {0: "1g.5gb"}, {0: "3g.20gb"})
    room = make_room(fleet, "7g.40gb", costs, MoveRules(takes=lambda node: node == "node-1"))
    assert room is not None
    assert room.placement.node == "node-1"
    stays = MoveRules(takes_moved=lambda _allocation, node: node != "node-2")
    room = make_room(fleet, "7g.40gb", costs, stays)
    assert room is not None
    assert {move.to.node for move in room.moves} <= {"node-0", "node-1"}
    assert make_room(fleet, "7g.40gb", costs, MoveRules(takes_moved=lambda _allocation, _node: False)) is None


def test_slots_that_are_taken_without_an_allocation_are_no_place() -> None:
    fleet = fleet_of({0: "1g.5gb"}, {})
    blocked, free = fleet.card("node-0", "GPU-0"), fleet.card("node-1", "GPU-1")
    fleet.set_state(blocked, blocked.occupancy | 0b0010_0000, ())
    fleet.set_state(free, 0b0000_0001, ())
    assert make_room(fleet, "7g.40gb", costs, MoveRules()) is None


def test_an_unknown_profile_and_a_full_cluster_have_no_moves() -> None:
    full = fleet_of({0: "7g.40gb"}, {0: "7g.40gb"})
    assert make_room(full, "1g.5gb", costs, MoveRules()) is None
    assert make_room(full, "9g.99gb", costs, MoveRules()) is None


def test_a_slice_moves_only_to_a_card_that_has_its_profile() -> None:
    fleet = fleet_of({0: "1g.5gb"})
    fleet.add_card("other", "GPU-other", A30)
    assert make_room(fleet, "7g.40gb", costs, MoveRules()) is None


@pytest.mark.parametrize(("price", "worth"), [(0.0, True), (7.9, True), (8.0, False), (9.0, False)])
def test_a_move_that_gains_no_more_than_it_costs_is_not_worth_it(price: float, worth: bool) -> None:
    room = make_room(fleet_of({0: "1g.5gb"}, {0: "3g.20gb"}), "7g.40gb", costs, MoveRules())
    assert room is not None
    assert weigh(room, gain_a_slot=1.0, price=lambda _: price).is_positive == worth
    assert weigh(room, gain_a_slot=1.0, price=lambda _: 0.0, price_a_move=price).is_positive == worth
    assert not weigh(room, gain_a_slot=-1.0, price=lambda _: 0.0).is_positive


@given(st.randoms(use_true_random=False), st.sampled_from(["2g.10gb", "3g.20gb", "4g.20gb", "7g.40gb"]))
def test_moves_are_possible_and_needed(rng: random.Random, profile: str) -> None:
    held = [{placed.start: placed.profile for placed in rng.choice(LAYOUTS)} for _ in range(5)]
    fleet = fleet_of(*held)
    room = make_room(fleet, profile, costs, MoveRules())
    if room is None:
        return
    before = {one.owner for one in fleet.allocations()}
    if plan(fleet, [Demand("new", (profile,))]).refusals:
        row = A100.profile(profile)
        assert not any(free_starts(A100, row, card.occupancy) for card in fleet.cards())
    assert 1 <= len(room.moves) <= 3
    carry_out(fleet, room)
    assert {one.owner for one in fleet.allocations()} == before | {"new"}
