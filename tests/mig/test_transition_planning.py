"""A card changes as little as its target allows, and instances in use stay whenever some layout can hold them."""

import random
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.cost import count_calls
from tests.support.mig_enumeration import Multiset, layouts, multisets
from tests.support.searching import examples

from tessera.mig.geometry import Geometry, Placement, occupancy_of
from tessera.mig.layout_planning import HeldInstance, Infeasible, Transition, TransitionAction, plan_transition
from tessera.mig.models import MODELS, model_by_short_name

A100 = model_by_short_name("A100-40GB").geometry
A30 = model_by_short_name("A30").geometry
RTX = model_by_short_name("RTX-PRO-6000").geometry
GEOMETRIES = [A100, A30, RTX]


def by_multiset(geometry: Geometry) -> dict[Multiset, list[tuple[Placement, ...]]]:
    """Every layout of a card, under what it consists of."""
    found: dict[Multiset, list[tuple[Placement, ...]]] = {}
    for one in layouts(geometry):
        found.setdefault(tuple(sorted(Counter(placed.profile for placed in one).items())), []).append(one)
    return found


BY_MULTISET = {geometry.family: by_multiset(geometry) for geometry in GEOMETRIES}
LAYOUTS = {family: [one for each in every.values() for one in each] for family, every in BY_MULTISET.items()}
MULTISETS = {family: sorted(every) for family, every in BY_MULTISET.items()}

Case = tuple[Geometry, tuple[HeldInstance, ...], Multiset]


@st.composite
def cases(draw: st.DrawFn) -> Case:
    geometry = draw(st.sampled_from(GEOMETRIES))
    placed = draw(st.sampled_from(LAYOUTS[geometry.family]))
    held = tuple(HeldInstance(one, draw(st.booleans())) for one in placed)
    return geometry, held, draw(st.sampled_from(MULTISETS[geometry.family]))


def ones(*busy: int) -> list[HeldInstance]:
    return [HeldInstance(Placement("1g.5gb", start, 1), start in busy) for start in range(7)]


def planned(
    geometry: Geometry, held: list[HeldInstance] | tuple[HeldInstance, ...], wanted: dict[str, int]
) -> Transition:
    plan = plan_transition(geometry, held, wanted)
    assert isinstance(plan, Transition)
    return plan


def must_leave(plan: Transition) -> tuple[Placement, ...]:
    """The instances in use that cannot stay."""
    return tuple(step.placement for step in plan.steps if step.in_use)


def after(geometry: Geometry, held: tuple[HeldInstance, ...], plan: Transition, steps: int) -> tuple[HeldInstance, ...]:
    """The card after the first steps; hardware refuses what collides."""
    card = set(held)
    for step in plan.steps[:steps]:
        if step.action is TransitionAction.DESTROY:
            card = {each for each in card if each.placement != step.placement}
        else:
            card.add(HeldInstance(step.placement))
        occupancy_of(geometry, [each.placement for each in card])
    return tuple(sorted(card))


@pytest.mark.parametrize(
    ("busy", "kept"),
    [
        ((0, 1, 2, 3, 6), 5),  # slots 4 and 5 become the 2g
        ((2, 3, 4, 5, 6), 5),
        ((0, 1, 2, 3, 4), 4),  # every place of a 2g meets a busy one
        ((0, 2, 4, 5, 6), 4),
    ],
)
def test_five_busy_slices_of_seven_stay_as_far_as_a_2g_finds_room(busy: tuple[int, ...], kept: int) -> None:
    plan = planned(A100, ones(*busy), {"2g.10gb": 1, "1g.5gb": 5})
    assert sum(placed.start in busy for placed in plan.keep) == kept
    assert len(must_leave(plan)) == 5 - kept
    assert len(plan.create) == 1


def test_a_card_that_is_as_wanted_is_not_touched() -> None:
    plan = planned(A100, ones(3), {"1g.5gb": 7})
    assert plan.steps == ()
    assert len(plan.keep) == 7


def test_an_empty_target_clears_the_card_and_names_who_must_leave() -> None:
    plan = planned(A100, ones(2), {})
    assert plan.create == ()
    assert plan.destroy[-1] == Placement("1g.5gb", 2, 1)
    assert must_leave(plan) == (Placement("1g.5gb", 2, 1),)


def test_an_idle_slice_gives_way_to_one_in_use() -> None:
    held = [HeldInstance(Placement("3g.20gb", 0, 4), in_use=True), HeldInstance(Placement("3g.20gb", 4, 4))]
    plan = planned(A100, held, {"3g.20gb": 1, "1g.5gb": 3})
    assert plan.keep == (Placement("3g.20gb", 0, 4),)
    assert must_leave(plan) == ()


def test_what_does_not_wait_for_pods_is_made_first() -> None:
    held = [HeldInstance(Placement("2g.10gb", 0, 2), in_use=True), HeldInstance(Placement("2g.10gb", 4, 2))]
    plan = planned(A100, held, {"1g.5gb": 7})
    actions = [(step.action.value, step.placement.start) for step in plan.steps]
    assert actions[0] == ("destroy", 4)
    assert actions[-3:] == [("destroy", 0), ("create", 0), ("create", 1)]


def test_media_engines_held_by_a_busy_slice_are_waited_for() -> None:
    held = [HeldInstance(Placement("1g.5gb+me", 0, 1), in_use=True)]
    plan = planned(A100, held, {"7g.40gb": 1})
    assert [step.action for step in plan.steps] == [TransitionAction.DESTROY, TransitionAction.CREATE]


def test_an_instance_that_the_table_does_not_know_goes() -> None:
    plan = planned(A100, [HeldInstance(Placement("3g.19gb", 0, 4))], {"3g.20gb": 1})
    assert plan.destroy == (Placement("3g.19gb", 0, 4),)
    assert plan.create[0].profile == "3g.20gb"


def test_an_impossible_target_names_the_conflict_and_plans_nothing() -> None:
    refusal = plan_transition(A100, ones(), {"3g.20gb": 2, "1g.5gb": 1})
    assert isinstance(refusal, Infeasible)
    assert "need 9 memory slots" in refusal.reason


def test_impossible_hardware_is_refused() -> None:
    with pytest.raises(ValueError, match="another instance"):
        plan_transition(A100, [HeldInstance(Placement("2g.10gb", 0, 2)), HeldInstance(Placement("1g.5gb", 1, 1))], {})


@given(cases())
@settings(max_examples=examples(200), deadline=None)
def test_no_layout_of_the_target_keeps_more(case: Case) -> None:
    geometry, held, wanted = case
    plan = planned(geometry, held, dict(wanted))
    busy = {each.placement for each in held if each.in_use}
    every = {each.placement for each in held}

    def kept(layout: set[Placement]) -> tuple[int, int]:
        return len(layout & busy), len(layout & every)

    best = max(kept(set(layout)) for layout in BY_MULTISET[geometry.family][wanted])
    assert kept(set(plan.layout)) == best
    assert set(plan.keep) == set(plan.layout) & every
    assert set(must_leave(plan)) == busy - set(plan.keep)


@given(cases())
@settings(max_examples=examples(100), deadline=None)
def test_the_steps_lead_to_the_target_and_never_collide(case: Case) -> None:
    geometry, held, wanted = case
    plan = planned(geometry, held, dict(wanted))
    end = after(geometry, held, plan, len(plan.steps))
    assert tuple(sorted(each.placement for each in end)) == tuple(sorted(plan.layout))
    assert Counter(each.placement.profile for each in end) == Counter(dict(wanted))


@given(cases(), st.integers(0, 16))
@settings(max_examples=examples(100), deadline=None)
def test_after_a_crash_at_any_step_the_next_plan_does_no_more_than_was_left(case: Case, steps: int) -> None:
    geometry, held, wanted = case
    plan = planned(geometry, held, dict(wanted))
    then = after(geometry, held, plan, steps)
    again = planned(geometry, then, dict(wanted))
    assert len(again.steps) <= max(0, len(plan.steps) - steps)
    assert set(must_leave(again)) <= set(must_leave(plan))


@given(cases(), st.randoms(use_true_random=False))
@settings(max_examples=examples(50), deadline=None)
def test_the_order_of_entries_does_not_matter(case: Case, rng: random.Random) -> None:
    geometry, held, wanted = case
    names = [name for name, count in wanted for _ in range(count)]
    mixed, shuffled = list(held), list(names)
    rng.shuffle(mixed)
    rng.shuffle(shuffled)
    assert plan_transition(geometry, held, dict(wanted)) == plan_transition(geometry, mixed, shuffled)


@pytest.mark.parametrize("model", [model.short_name for model in MODELS if model.table])
def test_every_feasible_set_of_every_model_is_reached_from_every_slice_in_use(model: str) -> None:
    geometry = model_by_short_name(model).geometry
    first = geometry.profiles[0]
    held = [HeldInstance(Placement(first.name, start, first.size), in_use=True) for start in first.starts]
    for wanted in multisets(geometry):
        plan = planned(geometry, held, dict(wanted))
        assert Counter(placed.profile for placed in plan.layout) == Counter(dict(wanted))
        assert len(plan.keep) == min(dict(wanted).get(first.name, 0), len(held))


def test_the_longest_search_ends_soon() -> None:
    calls, _ = count_calls(lambda: planned(A100, ones(0, 1, 2, 3, 4, 5, 6), {"2g.10gb": 3, "1g.5gb": 1}))
    assert calls < 20_000, "some milliseconds"
