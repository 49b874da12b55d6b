"""The fewest equal nodes for requests of several amounts, compared with all ways to pack them."""

import asyncio
import random
from collections import Counter
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.cost import most_calls_at_a_time

from tessera.placement.demand import StepBudget
from tessera.scale_up.node_packing import add, least_count, pack
from tessera.scale_up.patterns import PART, Pace, Vector, copies, relax

STEPS = 40_000


def packed(
    capacity: Vector, requests: Sequence[Vector] | Counter[Vector], most: int = 99, steps: int = STEPS
) -> list[Vector] | None:
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


@pytest.mark.parametrize("number", [100, 120, 200])
def test_alike_pods_are_packed_by_whole_contents_of_nodes(number: int) -> None:
    """A node takes 33 + 25 + 25 + 13 of its 96 CPUs, or 33 + 33 + 13 + 13; by size alone it takes 33 + 33 + 25."""
    found = packed((8, 96), Counter({(1, 33): number, (1, 25): number, (2, 13): number}), 1000)
    assert found is not None
    assert len(found) == number // 2 + number // 4


@pytest.mark.parametrize("seed", range(12))
def test_hundreds_of_alike_pods_get_the_fewest_nodes_within_the_steps(seed: int) -> None:
    """Two to four kinds of 200 pods: the search ends before its steps do, so the number is proven."""
    rng = random.Random(seed)
    kinds = {(rng.choice([1, 1, 2, 4]), rng.randrange(1, 49), rng.randrange(1, 400)): 200 for _ in range(2 + seed % 3)}
    work = StepBudget(STEPS)
    found = asyncio.run(pack((8, 96, 768), Counter(kinds), 1000, work))
    assert found is not None
    assert not work.is_spent


@given(problems())
@settings(deadline=None)
def test_a_bound_by_prices_is_no_larger_than_the_fewest_nodes(problem: tuple[Vector, list[Vector]]) -> None:
    capacity, requests = problem
    numbers = Counter(requests)
    relaxed = asyncio.run(relax(capacity, numbers, 99, Pace(StepBudget(STEPS)))) if numbers else None
    if relaxed is not None:
        assert relaxed.bound(tuple(numbers.values())) <= best(capacity, requests)
        for place, request in enumerate(numbers):
            covered = sum(pattern[place] * times for pattern, times in relaxed.uses)
            assert covered >= numbers[request] - 1e-6
        for pattern, _ in relaxed.uses:
            lines = [[need * times for need in each] for each, times in zip(numbers, pattern, strict=True)]
            used = map(sum, zip(*lines, strict=True))
            assert all(need <= have for need, have in zip(used, capacity, strict=True))


class Turns:
    """Counts the steps between two turns of the event loop."""

    def __init__(self, steps: int) -> None:
        self.work = StepBudget(steps)
        self.longest = self.count = 0

    async def watch(self, search: asyncio.Task[list[Vector] | None]) -> list[Vector] | None:
        while not search.done():
            before = self.work.remaining
            await asyncio.sleep(0)
            self.longest, self.count = max(self.longest, before - self.work.remaining), self.count + 1
        return await search


@pytest.mark.parametrize(("kinds", "alike"), [(10, 100), (30, 33), (64, 15), (400, 2)])
def test_other_work_of_the_process_waits_for_a_few_steps_only(kinds: int, alike: int) -> None:
    async def run() -> Turns:
        rng, turns = random.Random(kinds), Turns(STEPS)
        drawn = [(rng.choice([1, 1, 2, 4]), rng.randrange(1, 4800), rng.randrange(1, 39000)) for _ in range(kinds)]
        requests: Counter[Vector] = Counter(dict.fromkeys(drawn, alike))
        await turns.watch(asyncio.ensure_future(pack((8, 9600, 76800), requests, 1000, turns.work)))
        return turns

    turns = asyncio.run(run())
    assert turns.count > 10
    assert turns.longest <= 2 * PART


@pytest.mark.parametrize(("kinds", "alike"), [(10, 100), (30, 33)])
def test_a_node_with_many_shares_makes_no_step_longer(kinds: int, alike: int) -> None:
    """A hundred alike pods fit on a node: a step that tries each number of them would cost a hundred times more."""

    async def run() -> int:
        rng = random.Random(kinds)
        drawn = [(rng.randrange(1, 5), rng.randrange(100, 9000), rng.randrange(500, 40_000)) for _ in range(kinds)]
        requests: Counter[Vector] = Counter(dict.fromkeys(drawn, alike))
        capacity = (256, 96_000, 768_000)
        return await most_calls_at_a_time(pack(capacity, requests, 1000, StepBudget(5000)))

    assert asyncio.run(run()) <= 120 * PART


def test_a_request_is_added_where_there_is_room() -> None:
    free: list[Vector] = [(0, 9), (2, 1), (3, 8)]
    assert add(free, (2, 4))
    assert free == [(0, 9), (2, 1), (1, 4)]
    assert not add(free, (2, 4))
