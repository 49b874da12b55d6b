"""The fewest equal nodes for requests of several amounts, compared with all ways to pack them."""

import asyncio
from collections import Counter
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tessera.controller.scale_up.node_packing import Vector, add, copies, least_count, pack
from tessera.placement.step_budget import StepBudget

STEPS = 40_000


def packed(capacity: Vector, requests: Sequence[Vector], most: int = 99, steps: int = STEPS) -> list[Vector] | None:
    return asyncio.run(pack(capacity, Counter(requests), most, StepBudget(steps)))


def best(capacity: Vector, requests: Sequence[Vector]) -> int:
    """The fewest nodes of all ways to pack: each request goes onto each node so far, or onto a new one."""

    def rest(number: int, free: tuple[Vector, ...]) -> int:
        if number == len(requests):
            return len(free)
        found = []
        for place, room in enumerate((*free, capacity)):
            if copies(room, requests[number]):
                left = tuple(have - need for have, need in zip(room, requests[number], strict=True))
                found.append(rest(number + 1, (*free[:place], left, *free[place + 1 :])))
        return min(found)

    return rest(0, ())


@st.composite
def problems(draw: st.DrawFn) -> tuple[Vector, list[Vector]]:
    capacity = (draw(st.sampled_from([2, 4, 8])), draw(st.integers(1, 40)), draw(st.integers(1, 9)))
    request = st.tuples(st.integers(1, capacity[0]), st.integers(0, capacity[1]), st.integers(0, capacity[2]))
    kinds = draw(st.lists(request, min_size=1, max_size=4))
    return capacity, draw(st.lists(st.sampled_from(kinds), max_size=7))


@given(problems())
@settings(deadline=None)
def test_a_few_requests_get_as_few_nodes_as_any_packing_has(problem: tuple[Vector, list[Vector]]) -> None:
    capacity, requests = problem
    fewest = best(capacity, requests)
    found = packed(capacity, requests)
    assert found is not None
    assert len(found) == fewest
    assert least_count(capacity, Counter(requests)) <= fewest
    assert not requests or packed(capacity, requests, fewest - 1) is None


@given(problems(), st.integers(0, 60))
@settings(deadline=None)
def test_what_is_free_is_what_the_requests_leave_at_any_number_of_steps(
    problem: tuple[Vector, list[Vector]], steps: int
) -> None:
    capacity, requests = problem
    found = packed(capacity, requests, steps=steps)
    assert found is not None
    assert all(each >= 0 for room in found for each in room)
    for place, whole in enumerate(capacity):
        used = sum(whole - room[place] for room in found)
        assert used == sum(request[place] for request in requests)


@pytest.mark.parametrize(
    ("capacity", "requests", "expected"),
    [
        ((4, 40), [(1, 4)] * 6 + [(1, 28)] * 2, 2),
        ((8, 100), [(3, 50)] * 4 + [(1, 0)] * 4, 2),
        ((10,), [(4,), (4,), (3,), (3,), (3,), (3,)], 2),
        ((12,), [(6,), (5,), (4,), (3,), (3,), (3,)], 2),
        ((8, 64), [(1, 8)] * 800, 100),
    ],
)
def test_examples_in_which_an_order_is_wrong(capacity: Vector, requests: list[Vector], expected: int) -> None:
    found = packed(capacity, requests, 100)
    assert found is not None
    assert len(found) == expected


def test_a_request_is_added_where_there_is_room() -> None:
    free: list[Vector] = [(0, 9), (2, 1), (3, 8)]
    assert add(free, (2, 4))
    assert free == [(0, 9), (2, 1), (1, 4)]
    assert not add(free, (2, 4))
