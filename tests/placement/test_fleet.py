"""The fleet's record and its histogram say the same after any history."""

import random
from collections import Counter
from copy import deepcopy

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, invariant, rule
from tests.support.mig_enumeration import layouts
from tests.support.searching import examples

from tessera.mig.geometry import Geometry, occupancy_of
from tessera.mig.models import model_by_short_name
from tessera.placement.cards import Hold
from tessera.placement.demand import Demand
from tessera.placement.fleet import CardPlacement, Fleet, FleetCard, PlaceOccupied, UnknownCard
from tessera.placement.plan import plan

A100 = model_by_short_name("A100-40GB").geometry
A30 = model_by_short_name("A30").geometry
LAYOUTS = layouts(A100)


def one_card() -> Fleet:
    fleet = Fleet()
    fleet.add_card("node", "GPU-0", A100)
    return fleet


def at(profile: str, start: int, gpu: str = "GPU-0") -> CardPlacement:
    found = A100.find(profile)
    return CardPlacement("node", gpu, profile, start, found.size if found else 1)


def test_a_collision_names_card_and_holder() -> None:
    fleet = one_card()
    fleet.occupy(at("3g.20gb", 4), "team/trainer")
    with pytest.raises(PlaceOccupied, match=r"node node, card GPU-0.*1g\.5gb at 6 .*3g\.20gb at 4 of team/trainer"):
        fleet.occupy(at("1g.5gb", 6), "team/late")


def test_the_media_engines_are_held_once_per_card() -> None:
    fleet = one_card()
    fleet.occupy(at("1g.5gb+me", 0), "a")
    with pytest.raises(PlaceOccupied):
        fleet.occupy(at("1g.5gb+me", 1), "b")
    fleet.release("node", "GPU-0", 0)
    fleet.occupy(at("1g.5gb+me", 1), "b")


def test_an_owner_gets_all_of_its_placements_or_none() -> None:
    fleet = one_card()
    with pytest.raises(PlaceOccupied):
        fleet.occupy_all([at("1g.5gb", 0), at("1g.5gb", 0)], "a")
    assert not list(fleet.allocations())
    assert fleet.card("node", "GPU-0").occupancy == 0


def test_a_foreign_instance_of_an_unknown_profile_takes_its_slots() -> None:
    fleet = one_card()
    fleet.occupy(at("5g.99gb", 3), "foreign")
    card = fleet.card("node", "GPU-0")
    assert card.occupancy & card.geometry.full == 0b1000


def test_what_is_not_there_is_named() -> None:
    fleet = one_card()
    with pytest.raises(UnknownCard, match="no node elsewhere"):
        fleet.card("elsewhere", "GPU-0")
    with pytest.raises(UnknownCard, match="no card GPU-9"):
        fleet.card("node", "GPU-9")
    with pytest.raises(UnknownCard, match="begins at slot 3"):
        fleet.release("node", "GPU-0", 3)
    with pytest.raises(ValueError, match="has card GPU-0 already"):
        fleet.add_card("node", "GPU-0", A100)
    assert fleet.remove_node("elsewhere") == ()


def test_a_card_that_leaves_returns_what_stood_on_it_and_its_node_leaves_with_the_last() -> None:
    fleet = one_card()
    fleet.occupy(at("2g.10gb", 2), "a")
    left = fleet.remove_card("node", "GPU-0")
    assert [one.owner for one in left] == ["a"]
    assert "node" not in fleet
    assert len(fleet) == 0
    assert fleet.profiles == ()


def test_a_decision_looks_at_kinds_of_cards_and_not_at_cards() -> None:
    fleet = Fleet()
    rng = random.Random(1)
    for number in range(2000):
        fleet.add_card(f"node-{number // 8}", f"GPU-{number}", A100)
        for placed in rng.choice(LAYOUTS):
            fleet.occupy(
                CardPlacement(f"node-{number // 8}", f"GPU-{number}", placed.profile, placed.start, placed.size), "a"
            )
    kinds = {(occupancy_of(A100, layout), *sorted(one.start for one in layout)) for layout in LAYOUTS}
    groups = list(fleet.candidates("1g.5gb"))
    assert len(groups) < len(kinds) < 1000


def test_an_instance_may_take_slots_that_are_kept_and_leaves_them_kept() -> None:
    fleet = one_card()
    fleet.hold([Hold("node", "GPU-0", 0b0000_1111, "team/first")])
    assert plan(fleet, [Demand("a", ("7g.40gb",))]).refusals
    fleet.occupy(at("3g.20gb", 0), "team/first")
    card = fleet.card("node", "GPU-0")
    assert (card.occupancy & 0xFF, card.instances & 0xFF) == (0b0000_1111, 0b0000_1111)
    fleet.release("node", "GPU-0", 0)
    assert (card.occupancy, card.instances) == (0b0000_1111, 0)
    fleet.hold(())
    assert (card.occupancy, card.node.free) == (0, 8)


def test_a_card_that_comes_or_goes_ends_all_holds() -> None:
    fleet = one_card()
    hold = Hold("node", "GPU-0", 0b0000_1111, "team/first")
    fleet.hold([hold])
    fleet.add_card("node", "GPU-1", A100)
    assert (fleet.holds, fleet.card("node", "GPU-0").occupancy) == ((), 0)
    fleet.hold([hold])
    fleet.remove_card("node", "GPU-1")
    assert (fleet.holds, fleet.card("node", "GPU-0").occupancy) == ((), 0)


class FleetHistory(RuleBasedStateMachine):
    """Cards come and go, instances start and end, batches are planned: the books stay right."""

    placed = Bundle("placed")

    @initialize()
    def begin(self) -> None:
        self.fleet = Fleet()
        self.count = 0

    @rule(node=st.sampled_from("abc"), card=st.sampled_from("012"), geometry=st.sampled_from([A100, A30]))
    def join(self, node: str, card: str, geometry: Geometry) -> None:
        if node not in self.fleet or card not in {one.gpu for one in self.fleet.cards(node)}:
            self.fleet.add_card(node, card, geometry)

    @rule(node=st.sampled_from("abc"))
    def leave(self, node: str) -> None:
        self.fleet.remove_node(node)

    @rule(target=placed, profiles=st.lists(st.sampled_from([*A100.names, *A30.names]), min_size=1, max_size=4))
    def place(self, profiles: list[str]) -> tuple[CardPlacement, ...]:
        self.count += 1
        before = {card: card.occupancy for card in self.fleet.cards()}
        demand = Demand(str(self.count), tuple(profiles))
        same = deepcopy(self.fleet)  # a batch may leave equal nodes in another order
        decided = plan(self.fleet, [demand])
        beside = plan(same, [demand, Demand("other", ("9g.99gb",))])
        assert beside.assignments == decided.assignments
        assert beside.refusals.get(demand.key) == decided.refusals.get(demand.key)
        assert {card: card.occupancy for card in self.fleet.cards()} == before
        got = decided.assignments.get(str(self.count), ())
        assert bool(got) != bool(decided.refusals)
        assert len({one.node for one in got}) <= 1
        self.fleet.occupy_all(got, str(self.count))
        for one in got:
            card = self.fleet.card(one.node, one.gpu)
            assert one.start in card.geometry.profile(one.profile).starts
            assert not card.table.mask_of(one.on_card) & card.kept_bits
        return got

    @rule(
        slots=st.lists(
            st.tuples(st.sampled_from("abc"), st.sampled_from("012"), st.integers(1, 255), st.sampled_from("xy")),
            max_size=3,
        )
    )
    def hold(self, slots: list[tuple[str, str, int, str]]) -> None:
        known = [Hold(*each) for each in slots if each[0] in self.fleet]
        self.fleet.hold(known)
        assert self.fleet.holds == tuple(known)
        for card in self.fleet.cards():
            mine = [(one.owner, one.bits) for one in known if (one.node, one.gpu) == (card.node.name, card.gpu)]
            assert list(card.reserved) == mine

    @rule(got=placed)
    def end(self, got: tuple[CardPlacement, ...]) -> None:
        held = set(self.fleet.allocations())
        for one in got:
            if any(allocation.placement == one for allocation in held):
                self.fleet.release(one.node, one.gpu, one.start)

    @invariant()
    def occupancy_is_what_the_allocations_take(self) -> None:
        for card in self.fleet.cards():
            held = [one.placement.on_card for one in card.allocations.values()]
            marks = sum(1 << one.start for one in held)
            assert card.table.starts(card.instances) == marks
            below = (1 << card.instances.bit_length() - marks.bit_length()) - 1 if held else 0
            assert card.instances & below == occupancy_of(card.geometry, held)
            assert card.occupancy == card.instances | card.kept_bits
            assert card.pending == ()

    @invariant()
    def the_histogram_counts_instances_and_not_holds(self) -> None:
        states = Counter((card.geometry, card.instances) for card in self.fleet.cards())
        counted = {
            (geometry, state): count
            for geometry, found in self.fleet.histogram().items()
            for state, count in found.items()
        }
        assert counted == states

    @invariant()
    def the_histogram_finds_every_card_that_has_room(self) -> None:
        for profile in ("1g.5gb", "3g.20gb", "2g.12gb"):
            filed = set(self._filed(profile))
            room = {
                card
                for card in self.fleet.cards()
                if (row := card.geometry.find(profile))
                and any(not card.geometry.claim(row, start) & card.occupancy for start in row.starts)
            }
            assert filed == room

    @invariant()
    def nodes_are_sorted_by_free_slots(self) -> None:
        nodes = list(self.fleet.emptiest_nodes())
        free = [node.free for node in nodes]
        assert free == sorted(free, reverse=True)
        assert free == [sum(card.table.room(card.occupancy, ()) for card in node.cards.values()) for node in nodes]
        assert {node.name for node in nodes} == set(self.fleet.nodes)

    @invariant()
    def alike_cards_come_with_the_fullest_node_first(self) -> None:
        for profile in ("1g.5gb", "2g.12gb"):
            for group in self.fleet.candidates(profile):
                first = group.first()
                free = [card.node.free for card in group.cards()]
                assert free == sorted(free)
                assert first.node.free == free[0]
                assert group.count == len(free)

    def _filed(self, profile: str) -> list[FleetCard]:
        found = self.fleet.candidates(profile)
        return [card for group in found for card in group.cards()]


FleetHistory.TestCase.settings = settings(max_examples=examples(40), stateful_step_count=25, deadline=None)
TestFleetHistory = FleetHistory.TestCase
