"""Pods that wait together are packed together, in the order of priority and arrival."""

import random
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.mig_enumeration import filling_multisets, maximal_multisets
from tests.support.searching import examples

from tessera.mig.models import model_by_short_name
from tessera.placement.batch import Plan
from tessera.placement.demand import Demand, StepBudget
from tessera.placement.devices import device_geometry
from tessera.placement.fleet import CardPlacement, Fleet
from tessera.placement.plan import plan, plan_in_parts
from tessera.reasons.node_rules import NodeRule, RuleKind, shortage
from tessera.reasons.reason import Fragmented, Full, NeverFits, NoNode, RuleCount, UnknownProfile
from tessera.reasons.words import name_blockers, sentence

A100 = model_by_short_name("A100-40GB").geometry
BASE = A100.restrict([name for name in A100.names if name != "1g.5gb+me"])

CORDON, TAINT = NodeRule(RuleKind.UNSCHEDULABLE), NodeRule(RuleKind.TAINT, "gpu: down")


def fleet_of(nodes: int, cards: int) -> Fleet:
    fleet = Fleet()
    for node in range(nodes):
        for card in range(cards):
            fleet.add_card(f"node-{node}", f"GPU-{node}-{card}", A100)
    return fleet


def one_each(profiles: Sequence[str]) -> list[Demand]:
    return [Demand(f"pod-{index}", (profile,), arrival=index) for index, profile in enumerate(profiles)]


def carry_out(fleet: Fleet, decided: Plan) -> None:
    for key, placements in decided.assignments.items():
        fleet.occupy_all(placements, key)


def test_seven_small_pods_sit_on_one_card_and_the_twenty_ninth_of_four_cards_waits() -> None:
    fleet = fleet_of(1, 4)
    for index in range(28):
        decided = plan(fleet, [Demand(f"pod-{index}", ("1g.5gb",))])
        carry_out(fleet, decided)
        assert len({held.placement.gpu for held in fleet.allocations()}) == index // 7 + 1
    reason = plan(fleet, [Demand("late", ("1g.5gb",))]).refusals["late"]
    assert isinstance(reason, Full)
    assert len(reason.frees) == 1
    fleet.release("node-0", reason.frees[0].gpu, reason.frees[0].start)
    assert "late" in plan(fleet, [Demand("late", ("1g.5gb",))]).assignments


COMBINATIONS = [*filling_multisets(A100), *maximal_multisets(BASE)]


def test_there_are_thirty_two_filling_and_twenty_eight_maximal_combinations() -> None:
    assert (len(filling_multisets(A100)), len(maximal_multisets(BASE))) == (32, 28)


@pytest.mark.parametrize("combination", COMBINATIONS, ids=lambda one: "+".join(f"{n}x{name}" for name, n in one))
def test_every_combination_fits_one_free_card_in_any_order_of_arrival(combination: tuple[tuple[str, int], ...]) -> None:
    profiles = [name for name, count in combination for _ in range(count)]
    for seed in range(20):
        random.Random(seed).shuffle(profiles)
        fleet = fleet_of(1, 1)
        decided = plan(fleet, one_each(profiles))
        assert not decided.refusals
        carry_out(fleet, decided)


@pytest.mark.parametrize("combination", COMBINATIONS, ids=lambda one: "+".join(f"{n}x{name}" for name, n in one))
def test_every_combination_fits_one_free_card_as_one_demand(combination: tuple[tuple[str, int], ...]) -> None:
    profiles = tuple(name for name, count in combination for _ in range(count))
    fleet = fleet_of(1, 1)
    decided = plan(fleet, [Demand("pod", profiles)])
    assert [placed.profile for placed in decided.assignments["pod"]] == list(profiles)
    carry_out(fleet, decided)


def test_combinations_for_two_cards_fit_two_cards_although_greedy_packing_would_fail() -> None:
    decided = plan(fleet_of(1, 2), one_each(["3g.20gb", "3g.20gb", "4g.20gb", "4g.20gb"]))
    assert not decided.refusals


@pytest.mark.parametrize("seed", [0, 1, 3])
def test_what_exactly_fills_forty_cards_fits_them_although_the_smallest_come_first(seed: int) -> None:
    rng = random.Random(seed)
    combinations = [rng.choice(filling_multisets(A100)) for _ in range(40)]
    profiles = [name for combination in combinations for name, count in combination for _ in range(count)]
    profiles.sort(key=lambda name: A100.profile(name).size)
    assert not plan(fleet_of(5, 8), one_each(profiles)).refusals


def test_room_is_made_for_a_later_demand_by_packing_earlier_ones_anew() -> None:
    impossible = "7g.40gb"
    decided = plan(fleet_of(1, 2), one_each([impossible, "3g.20gb", "3g.20gb", "4g.20gb", "1g.5gb"]))
    assert set(decided.assignments) == {"pod-0", "pod-1", "pod-2"} or set(decided.refusals) == {"pod-3"}
    decided = plan(fleet_of(1, 2), one_each(["3g.20gb", "3g.20gb", "4g.20gb", "4g.20gb", impossible]))
    assert set(decided.refusals) == {"pod-4"}


def test_priority_goes_first_then_arrival() -> None:
    fleet = fleet_of(1, 1)
    waiting = [
        Demand("late", ("7g.40gb",), priority=0, arrival=2),
        Demand("early", ("7g.40gb",), priority=0, arrival=1),
    ]
    assert set(plan(fleet, waiting).assignments) == {"early"}
    assert set(plan(fleet, [*waiting, Demand("vip", ("4g.20gb",), 5, 9)]).assignments) == {"vip"}


def test_an_instance_goes_where_it_spoils_least_not_where_the_first_place_is() -> None:
    fleet = fleet_of(2, 1)
    fleet.occupy(CardPlacement("node-1", "GPU-1-0", "1g.5gb", 6, 1), "other")
    placed = plan(fleet, [Demand("pod", ("1g.5gb",))]).assignments["pod"][0]
    assert placed.node == "node-1"
    carry_out(fleet, plan(fleet, [Demand("pod", ("1g.5gb",))]))
    assert "half" in plan(fleet, [Demand("half", ("4g.20gb",))]).assignments
    assert "whole" in plan(fleet, [Demand("whole", ("7g.40gb",))]).assignments


def test_ties_go_to_the_fullest_node() -> None:
    fleet = fleet_of(2, 2)
    fleet.occupy(CardPlacement("node-1", "GPU-1-0", "7g.40gb", 0, 8), "other")
    assert plan(fleet, [Demand("pod", ("7g.40gb",))]).assignments["pod"][0].node == "node-1"


def test_several_slices_go_where_they_spoil_least_not_to_the_fullest_node_that_has_room() -> None:
    fleet = fleet_of(2, 1)
    fleet.occupy(CardPlacement("node-0", "GPU-0-0", "1g.10gb", 0, 2), "other")
    fleet.occupy(CardPlacement("node-1", "GPU-1-0", "1g.5gb", 4, 1), "other")
    placed = plan(fleet, [Demand("pod", ("1g.5gb", "1g.5gb"))]).assignments["pod"]
    assert {one.node for one in placed} == {"node-1"}


def test_all_slices_of_a_demand_are_on_one_node_in_the_order_asked_for() -> None:
    fleet = fleet_of(3, 2)
    for node in range(2):
        fleet.occupy(CardPlacement(f"node-{node}", f"GPU-{node}-0", "7g.40gb", 0, 8), "other")
    placed = plan(fleet, [Demand("pod", ("1g.5gb", "7g.40gb", "3g.20gb"))]).assignments["pod"]
    assert [one.profile for one in placed] == ["1g.5gb", "7g.40gb", "3g.20gb"]
    assert {one.node for one in placed} == {"node-2"}


def test_several_slices_use_the_cards_that_are_started_already() -> None:
    fleet = fleet_of(1, 3)
    for card in range(2):
        fleet.occupy(CardPlacement("node-0", f"GPU-0-{card}", "3g.20gb", 4, 4), f"other-{card}")
    placed = plan(fleet, [Demand("pod", ("4g.20gb", "4g.20gb"))]).assignments["pod"]
    assert {one.gpu for one in placed} == {"GPU-0-0", "GPU-0-1"}


def test_the_resource_spelling_is_understood() -> None:
    placed = plan(fleet_of(1, 1), [Demand("pod", ("1g.5gb.me",))]).assignments["pod"]
    assert placed[0].profile == "1g.5gb+me"


def test_cards_of_several_models_each_take_what_they_can_make() -> None:
    fleet = fleet_of(1, 1)
    fleet.add_card("node-0", "GPU-A30", model_by_short_name("A30").geometry)
    decided = plan(fleet, [Demand("pod", ("2g.12gb", "2g.10gb"))])
    assert [one.gpu for one in decided.assignments["pod"]] == ["GPU-A30", "GPU-0-0"]


class TestReasons:
    def test_an_unknown_profile_says_what_exists_and_what_is_close(self) -> None:
        reason = plan(fleet_of(1, 1), [Demand("pod", ("3g.20g",))]).refusals["pod"]
        assert reason == UnknownProfile("3g.20g", tuple(sorted(A100.names)), "3g.20gb")
        assert 'did you mean "3g.20gb"' in sentence(reason)

    def test_a_fleet_without_cards_says_so(self) -> None:
        reason = plan(Fleet(), [Demand("pod", ("3g.20gb",))]).refusals["pod"]
        assert reason == UnknownProfile("3g.20gb", ())
        assert "no node has reported a card that is cut on demand" in sentence(reason)

    def test_what_no_node_could_ever_hold_is_told_apart(self) -> None:
        reason = plan(fleet_of(9, 2), [Demand("pod", ("7g.40gb",) * 3)]).refusals["pod"]
        assert reason == NeverFits(("7g.40gb",) * 3)

    def test_stranded_slots_count_as_full(self) -> None:
        fleet = fleet_of(1, 1)
        carry_out(fleet, plan(fleet, one_each(["1g.5gb"] * 7)))
        assert isinstance(plan(fleet, [Demand("pod", ("1g.5gb",))]).refusals["pod"], Full)

    def test_fragmentation_names_the_smallest_set_that_would_free_room(self) -> None:
        fleet = fleet_of(2, 1)
        for start in (0, 1, 5):
            fleet.occupy(CardPlacement("node-0", "GPU-0-0", "1g.5gb", start, 1), f"team/low-{start}")
        for start in (1, 4, 6):
            fleet.occupy(CardPlacement("node-1", "GPU-1-0", "1g.5gb", start, 1), f"team/high-{start}")
        reason = plan(fleet, [Demand("pod", ("3g.20gb",))]).refusals["pod"]
        assert isinstance(reason, Fragmented)
        assert len(reason.frees) == 1
        assert reason.frees[0].pod in {"team/low-5", "team/high-1"}
        assert reason.frees[0].pod in name_blockers(reason)

    def test_what_the_same_batch_took_counts(self) -> None:
        decided = plan(fleet_of(1, 1), one_each(["7g.40gb", "7g.40gb"]))
        reason = decided.refusals["pod-1"]
        assert isinstance(reason, Full)
        assert [one.pod for one in reason.frees] == ["pod-0"]

    def test_several_slices_are_freed_on_one_node(self) -> None:
        fleet = fleet_of(2, 2)
        for node in range(2):
            for card in range(2):
                fleet.occupy(CardPlacement(f"node-{node}", f"GPU-{node}-{card}", "7g.40gb", 0, 8), f"{node}{card}")
        reason = plan(fleet, [Demand("pod", ("7g.40gb", "7g.40gb"))]).refusals["pod"]
        assert isinstance(reason, Full)
        assert len(reason.frees) == 2
        assert len({one.node for one in reason.frees}) == 1

    def test_the_media_engines_in_use_are_no_shortage_of_slots(self) -> None:
        fleet = fleet_of(1, 1)
        fleet.occupy(CardPlacement("node-0", "GPU-0-0", "1g.5gb+me", 0, 1), "team/media")
        reason = plan(fleet, [Demand("pod", ("1g.5gb+me",))]).refusals["pod"]
        assert isinstance(reason, Fragmented)
        assert [one.pod for one in reason.frees] == ["team/media"]

    def test_nodes_that_refuse_are_counted_by_rule(self) -> None:
        fleet = fleet_of(4, 1)
        fleet.occupy(CardPlacement("node-3", "GPU-3-0", "7g.40gb", 0, 8), "other")
        rules = {"node-0": CORDON, "node-1": TAINT, "node-2": TAINT, "node-3": CORDON}
        decided = plan(fleet, [Demand("pod", ("7g.40gb",))], lambda _, node: rules[node])
        reason = decided.refusals["pod"]
        assert reason == NoNode((RuleCount(TAINT, 2), RuleCount(CORDON, 2)))
        text = "2 node(s) had untolerated taint {gpu: down}, 2 node(s) were unschedulable"
        assert sentence(reason) == f"0 of 4 nodes can take it: {text}"

    def test_a_node_that_refuses_is_no_reason_while_others_would_take_it_and_are_full(self) -> None:
        fleet = fleet_of(3, 1)
        for node in (1, 2):
            fleet.occupy(CardPlacement(f"node-{node}", f"GPU-{node}-0", "7g.40gb", 0, 8), f"holder-{node}")
        mismatch = NodeRule(RuleKind.AFFINITY)
        decided = plan(fleet, [Demand("pod", ("3g.20gb",))], lambda _, node: mismatch if node == "node-0" else None)
        reason = decided.refusals["pod"]
        assert isinstance(reason, Full)
        assert reason.frees[0].pod in {"holder-1", "holder-2"}

    def test_room_that_is_spread_over_cards_is_fragmented(self) -> None:
        fleet = fleet_of(1, 2)
        for card in range(2):
            fleet.occupy(CardPlacement("node-0", f"GPU-0-{card}", "4g.20gb", 0, 4), f"four-{card}")
            fleet.occupy(CardPlacement("node-0", f"GPU-0-{card}", "1g.5gb", 5, 1), f"one-{card}")
        reason = plan(fleet, [Demand("pod", ("3g.20gb",))]).refusals["pod"]
        assert isinstance(reason, Fragmented)
        assert (reason.free_slots, reason.total) == (3, 6)

    def test_a_full_fleet_whose_nodes_all_refuse_is_a_matter_of_the_nodes(self) -> None:
        fleet = fleet_of(1, 1)
        fleet.occupy(CardPlacement("node-0", "GPU-0-0", "7g.40gb", 0, 8), "other")
        decided = plan(fleet, [Demand("pod", ("1g.5gb",))], lambda *_: CORDON)
        assert decided.refusals["pod"] == NoNode((RuleCount(CORDON, 1),))


class TestNodeRules:
    def test_a_node_is_asked_lazily_and_once(self) -> None:
        asked: list[str] = []

        def allows(_demand: Demand, node: str) -> NodeRule | None:
            asked.append(node)
            return CORDON if node != "node-7" else None

        decided = plan(fleet_of(50, 8), [Demand("pod", ("1g.5gb",))], allows)
        assert decided.assignments["pod"][0].node == "node-7"
        assert len(asked) == len(set(asked)) == 8

    def test_what_a_demand_takes_of_a_node_is_known_to_the_next_and_given_back_when_undone(self) -> None:
        free = dict.fromkeys(["node-0", "node-1"], 2)

        class Counted:
            def reserve(self, _demand: Demand, node: str) -> None:
                free[node] -= 1

            def unreserve(self, _demand: Demand, node: str) -> None:
                free[node] += 1

        decided = plan(
            fleet_of(2, 1),
            one_each(["1g.5gb"] * 5),
            lambda _, node: None if free[node] else shortage("cpu"),
            reservations=Counted(),
        )
        assert set(decided.refusals) == {"pod-4"}
        assert decided.refusals["pod-4"] == NoNode((RuleCount(shortage("cpu"), 2),))
        assert free == {"node-0": 0, "node-1": 0}

    def test_an_error_of_the_callback_leaves_everything_as_it_was(self) -> None:
        fleet = fleet_of(1, 2)
        taken: list[str] = []

        class Counted:
            def reserve(self, demand: Demand, _node: str) -> None:
                taken.append(demand.key)

            def unreserve(self, demand: Demand, _node: str) -> None:
                taken.remove(demand.key)

        def allows(demand: Demand, _node: str) -> None:
            if demand.key == "pod-1":
                raise RuntimeError("lost connection")

        with pytest.raises(RuntimeError):
            plan(
                fleet,
                one_each(["1g.5gb", "1g.5gb"]),
                allows,
                reservations=Counted(),
            )
        assert taken == []
        assert all(card.pending == () for card in fleet.cards())


def test_a_batch_is_checked() -> None:
    with pytest.raises(ValueError, match="stands twice"):
        plan(fleet_of(1, 1), [Demand("pod", ("1g.5gb",))] * 2)
    with pytest.raises(ValueError, match="asks for no slice"):
        plan(fleet_of(1, 1), [Demand("pod", ())])


batches = st.lists(st.lists(st.sampled_from(A100.names), min_size=1, max_size=3).map(tuple), min_size=1, max_size=25)


@given(batches, batches)
@settings(deadline=None, max_examples=examples(60))
def test_any_two_batches_can_be_carried_out_and_refusals_hold(
    first: list[tuple[str, ...]], second: list[tuple[str, ...]]
) -> None:
    fleet = fleet_of(2, 2)
    for number, batch in enumerate((first, second)):
        demands = [Demand(f"{number}-{index}", profiles, arrival=index) for index, profiles in enumerate(batch)]
        decided = plan(fleet, demands)
        assert decided.assignments.keys() | decided.refusals.keys() == {one.key for one in demands}
        assert not decided.assignments.keys() & decided.refusals.keys()
        carry_out(fleet, decided)
        refused = [one for one in demands if one.key in decided.refusals]
        assert not plan(fleet, refused[:1]).assignments if refused else True


@given(batches)
@settings(deadline=None, max_examples=examples(60))
def test_who_goes_first_is_never_displaced_by_who_comes_later(batch: list[tuple[str, ...]]) -> None:
    demands = [Demand(str(index), profiles, arrival=index) for index, profiles in enumerate(batch)]
    everyone = plan(fleet_of(2, 1), demands)
    alone = plan(fleet_of(2, 1), demands[:1])
    assert ("0" in everyone.assignments) == ("0" in alone.assignments)


@given(batches)
@settings(deadline=None, max_examples=examples(60))
def test_the_freed_set_of_a_reason_really_makes_room(batch: list[tuple[str, ...]]) -> None:
    fleet = fleet_of(1, 2)
    demands = [Demand(str(index), profiles, arrival=index) for index, profiles in enumerate(batch)]
    decided = plan(fleet, demands)
    carry_out(fleet, decided)
    for demand in demands:
        reason = decided.refusals.get(demand.key)
        if isinstance(reason, Full | Fragmented) and reason.frees:
            for one in reason.frees:
                fleet.release(one.node, one.gpu, one.start)
            assert demand.key in plan(fleet, [demand]).assignments
            return


def test_a_thousand_demands_over_eight_hundred_cards_ask_for_each_node_a_bounded_number_of_times() -> None:
    asked = 0

    def allows(_demand: Demand, _node: str) -> None:
        nonlocal asked
        asked += 1

    rng = random.Random(5)
    decided = plan(fleet_of(100, 8), one_each(rng.choices(A100.names, k=1000)), allows)
    assert not decided.refusals
    assert asked == 1000


class Everywhere:
    """Every node takes every demand."""

    def reserve(self, demand: Demand, node: str) -> None: ...

    def unreserve(self, demand: Demand, node: str) -> None: ...


@pytest.mark.parametrize("steps", [30, 300, 100_000])
def test_a_batch_in_parts_ends_like_one_at_once_and_stops_between_its_demands(steps: int) -> None:
    rng = random.Random(steps)
    demands = one_each([rng.choice(["1g.5gb", "2g.10gb", "3g.20gb", "7g.40gb"]) for _ in range(40)])
    parts = plan_in_parts(
        fleet_of(2, 4), demands, lambda _demand, _node: None, reservations=Everywhere(), work=StepBudget(steps)
    )
    stops = 0
    while True:
        try:
            next(parts)
        except StopIteration as end:
            found = end.value
            break
        stops += 1
    assert found == plan(fleet_of(2, 4), demands, work=StepBudget(steps))
    assert stops >= len(found.assignments)


def test_several_whole_cards_that_wait_alone_are_those_of_a_batch() -> None:
    fleet = Fleet()
    for node, count in (("n0", 4), ("n1", 3)):
        for card in range(count):
            fleet.add_card(node, f"nvidia.com/gpu/{card}", device_geometry("A100", "nvidia.com/gpu", 8, 40))
    pair = Demand("pair", ("nvidia.com/gpu",) * 2)
    one = Demand("one", ("nvidia.com/gpu",))
    alone, together = (
        plan(fleet, demands, rank_nodes=lambda _demand, _work: iter([("n0", 0), ("n1", 1)]))
        for demands in ([pair], [pair, one])
    )
    assert {each.node for each in alone.assignments["pair"]} == {"n0"}
    assert set(alone.assignments["pair"]) == set(together.assignments["pair"])
    assert all(not card.pending for card in fleet.cards())
