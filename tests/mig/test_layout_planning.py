"""The planner finds a layout whenever one exists, and names the conflict when none does."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.cost import count_calls
from tests.support.mig_enumeration import layouts, multisets
from tests.support.searching import examples

from tessera.mig.geometry import Geometry, Placement, occupancy_of
from tessera.mig.layout_planning import Infeasible, is_feasible, list_packings, max_memory_gb_of_layout, plan_layout
from tessera.mig.models import MODELS, model_by_short_name

A100 = model_by_short_name("A100-40GB").geometry
RTX = model_by_short_name("RTX-PRO-6000").geometry
GEOMETRIES = [A100, model_by_short_name("A30").geometry, RTX]


@pytest.mark.parametrize("geometry", GEOMETRIES, ids=lambda one: one.family)
def test_every_feasible_multiset_has_a_plan(geometry: Geometry) -> None:
    for wanted in multisets(geometry):
        calls, placed = count_calls(lambda: plan_layout(geometry, dict(wanted)))  # noqa: B023 - runs at once
        assert calls < 20_000, "some milliseconds"
        assert not isinstance(placed, Infeasible)
        assert sorted(one.profile for one in placed) == sorted(name for name, n in wanted for _ in range(n))
        occupancy_of(geometry, placed)


@pytest.mark.parametrize("geometry", GEOMETRIES[:2], ids=lambda one: one.family)
def test_every_other_multiset_up_to_one_more_is_refused(geometry: Geometry) -> None:
    possible = set(multisets(geometry))
    for size in range(1, 5):
        for names in itertools.combinations_with_replacement(geometry.names, size):
            wanted = tuple(sorted({name: names.count(name) for name in names}.items()))
            assert is_feasible(geometry, dict(wanted)) == (wanted in possible)


@given(st.permutations(["3g.20gb", "2g.10gb", "1g.5gb", "1g.5gb+me"]))
def test_the_order_of_entries_does_not_matter(wanted: list[str]) -> None:
    assert plan_layout(A100, wanted) == plan_layout(A100, ["3g.20gb", "2g.10gb", "1g.5gb", "1g.5gb+me"])


@pytest.mark.parametrize(
    ("wanted", "rule", "words"),
    [
        (["3g.20gb", "3g.20gb", "1g.5gb"], "slots", "need 9 memory slots"),
        (["1g.5gb"] * 8, "count", "at most 7 1g.5gb"),
        (["1g.5gb+me"] * 2, "media", "one set of media engines"),
        (["4g.20gb", "2g.10gb", "2g.10gb"], "starts", "2g.10gb may start at 0, 2, 4"),
        (["7g.40gb", "1g.5gb"], "slots", "need 9 memory slots"),
        ({"1g.5gb": 10**12, "2g.10gb": 10**12}, "count", "at most 3 2g.10gb"),
        (["4g.20gb", "4g.20gb"], "count", "at most 1 4g.20gb"),
        (["3g.20g"], "unknown profile", 'did you mean "3g.20gb"'),
    ],
)
def test_a_refusal_names_the_conflict(wanted: list[str] | dict[str, int], rule: str, words: str) -> None:
    refusal = plan_layout(A100, wanted)
    assert isinstance(refusal, Infeasible)
    assert refusal.rule == rule
    assert words in refusal.reason


def test_a_refusal_names_the_smallest_impossible_part() -> None:
    refusal = plan_layout(A100, ["1g.5gb", "1g.5gb+me", "2g.10gb", "1g.5gb+me"])
    assert isinstance(refusal, Infeasible)
    assert refusal.core == (("1g.5gb+me", 2),)


def test_a_negative_count_is_refused() -> None:
    refusal = plan_layout(A100, {"1g.5gb": -1})
    assert isinstance(refusal, Infeasible)
    assert refusal.rule == "count"


def test_twelve_slots_hold_four_slices_and_one_with_all_media_engines() -> None:
    placed = plan_layout(RTX, {"1g.24gb+me.all": 1, "1g.24gb-me": 3})
    assert not isinstance(placed, Infeasible)
    assert [one.start for one in placed] == [0, 3, 6, 9]
    refusal = plan_layout(RTX, ["1g.24gb+me", "1g.24gb+me.all"])
    assert isinstance(refusal, Infeasible)
    assert refusal.rule == "media"


@given(st.sampled_from(layouts(A100)), st.sampled_from(multisets(A100)))
@settings(max_examples=examples(200))
def test_a_plan_beside_what_stands_touches_none_of_it(
    held: tuple[Placement, ...], wanted: tuple[tuple[str, int], ...]
) -> None:
    placed = plan_layout(A100, dict(wanted), occupancy_of(A100, held))
    if isinstance(placed, Infeasible):
        assert placed.reason
        everything = {one for one in layouts(A100) if set(held) <= set(one)}
        rest = [sorted(p.profile for p in set(one) - set(held)) for one in everything]
        assert sorted(name for name, n in wanted for _ in range(n)) not in rest
    else:
        occupancy_of(A100, (*held, *placed))


def test_a_conflict_with_media_engines_in_use_is_named() -> None:
    refusal = plan_layout(A100, ["1g.5gb+me"], occupancy_of(A100, [Placement("1g.5gb+me", 0, 1)]))
    assert isinstance(refusal, Infeasible)
    assert refusal.rule == "media"


def test_packings_reach_every_occupancy_that_a_set_can_lead_to() -> None:
    ones = [A100.profile("1g.5gb")] * 2
    assert len(list_packings(A100, ones)) == 21  # any two of seven slots


@pytest.mark.parametrize(
    ("model", "gb"), [("A100-40GB", 40), ("A30", 24), ("H100-80GB", 80), ("H200", 143), ("RTX-PRO-6000", 96)]
)
def test_the_most_memory_that_a_layout_names_can_exceed_the_whole_card(model: str, gb: int) -> None:
    geometry = model_by_short_name(model).geometry
    assert max_memory_gb_of_layout(geometry) == gb
    by_enumeration = max(sum(geometry.profile(one.profile).memory_gb for one in placed) for placed in layouts(geometry))
    assert by_enumeration == gb


def test_no_layout_of_any_model_exceeds_its_compute_slices() -> None:
    for model in MODELS:
        if model.table is not None:
            most = max(row.compute_slices for row in model.table.profiles)
            for wanted in multisets(model.table):
                assert sum(model.table.profile(name).compute_slices * n for name, n in wanted) <= most
