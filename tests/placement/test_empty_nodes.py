"""What nodes could hold if they were empty: certain, and with the largest part of a request."""

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tessera.mig.layout_planning import is_feasible
from tessera.mig.models import model_by_short_name
from tessera.placement.demand import StepBudget
from tessera.placement.node_fit import NodeShapes, Shape, largest_part, memory_slots
from tessera.placement.node_fit import none_could_hold as none_holds

A100 = model_by_short_name("A100-40GB").geometry
A30 = model_by_short_name("A30").geometry
NODES = NodeShapes()


def none_could_hold(shapes: Sequence[Shape], profiles: Sequence[str], steps: int = 2_000) -> bool:
    return none_holds(shapes, profiles, StepBudget(steps))


def part_of(shape: Shape, profiles: Sequence[str], steps: int = 2_000) -> tuple[str, ...]:
    return largest_part(shape, profiles, StepBudget(steps))


def shape(a100: int = 0, a30: int = 0) -> Shape:
    return NODES.shape([A100] * a100 + [A30] * a30)


@pytest.mark.parametrize(
    ("cards", "profiles", "largest"),
    [
        (shape(4), ("1g.5gb",) * 50, ("1g.5gb",) * 28),
        (shape(1), ("1g.5gb.me",) * 2, ("1g.5gb.me",)),
        (shape(1), ("7g.40gb", "1g.5gb"), ("7g.40gb",)),
        (shape(1), ("4g.20gb", "4g.20gb"), ("4g.20gb",)),
        (shape(1), ("3g.20gb", "3g.20gb", "1g.5gb"), ("3g.20gb", "3g.20gb")),
        (shape(a100=1, a30=1), ("1g.6gb",) * 5, ("1g.6gb",) * 4),
        (shape(a100=1, a30=1), ("7g.40gb", "4g.24gb", "1g.5gb"), ("7g.40gb", "4g.24gb")),
    ],
)
def test_the_largest_part_of_an_impossible_request(
    cards: Shape, profiles: tuple[str, ...], largest: tuple[str, ...]
) -> None:
    assert none_could_hold([cards], profiles)
    assert sorted(part_of(cards, profiles)) == sorted(largest)


def test_one_kind_of_node_that_holds_them_suffices() -> None:
    assert none_could_hold([shape(1)], ("7g.40gb", "1g.5gb"))
    assert not none_could_hold([shape(1), shape(2)], ("7g.40gb", "1g.5gb"))
    assert none_could_hold([], ("1g.5gb",))


def test_a_search_that_ends_at_its_bound_proves_nothing() -> None:
    """A set of 66 slices of five profiles that fills 16 cards to the last slot but two."""
    counts = {"1g.5gb": 17, "1g.5gb+me": 15, "4g.20gb": 13, "2g.10gb": 13, "1g.10gb": 8}
    profiles = [profile for profile, count in counts.items() for _ in range(count)]
    assert memory_slots(shape(16), profiles) == 126
    assert not none_could_hold([shape(16)], profiles)


def test_work_is_bounded_and_what_is_found_then_fits() -> None:
    profiles = ("1g.5gb",) * 50
    assert not none_could_hold([shape(4)], profiles, steps=1)
    part = part_of(shape(4), profiles, steps=40)
    assert 0 < len(part) < 28
    assert part_of(shape(4), profiles, steps=0) == ()


@given(st.lists(st.sampled_from(A100.names), min_size=1, max_size=9))
@settings(deadline=None)
def test_on_one_card_the_answer_is_that_of_its_layouts(profiles: list[str]) -> None:
    impossible = none_could_hold([shape(1)], profiles)
    assert impossible != is_feasible(A100, profiles)
    part = part_of(shape(1), profiles)
    assert is_feasible(A100, part)
    if impossible:
        rest = list(profiles)
        for profile in part:
            rest.remove(profile)
        assert not any(is_feasible(A100, [*part, profile]) for profile in rest)
