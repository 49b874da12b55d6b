"""Whoever asks much takes nothing from those who ask little: places, rates, and the time of one worker."""

import asyncio
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tessera.serving.fair_shares import FairPace, FairTurns, NoTurnError, find_giver

KEYS = st.sampled_from("abcd")


@given(st.lists(KEYS, max_size=60), st.integers(1, 8))
def test_places_that_are_given_up_make_shares_equal_and_no_two_take_them_back(requests: list[str], most: int) -> None:
    held = Counter[str]()
    for key in requests:
        if held.total() < most:
            held[key] += 1
        elif (giver := find_giver(held, key)) is not None:
            held[giver] -= 1
            held[key] += 1
            assert held[giver] >= held[key]
            assert find_giver(held, giver) != key
        assert held.total() <= most


def test_one_with_less_than_its_share_gets_a_place_from_whoever_has_most() -> None:
    assert find_giver({"a": 3, "b": 5}, "c") == "b"
    assert find_giver({"a": 1, "b": 1}, "c") is None
    assert find_giver({"a": 4, "b": 5}, "a") is None
    assert find_giver({}, "a") is None


def test_a_rate_is_divided_among_those_who_ask() -> None:
    pace = FairPace[str](10)
    assert sum(pace.take(0.0, "crowd") for _ in range(100)) == 10
    assert not pace.take(0.0, "ann")
    for second in (1, 2, 3):
        crowd = sum(pace.take(second, "crowd") for _ in range(100))
        mine = sum(pace.take(second, "ann") for _ in range(5))
        assert (crowd, mine) == (5, 5)
    assert sum(pace.take(6, "crowd") for _ in range(100)) == 10


@pytest.mark.parametrize("crowd", [9, 10, 11, 30])
def test_a_crowd_of_many_keys_leaves_an_action_to_one_who_seldom_asks(crowd: int) -> None:
    """A tenant has as many addresses as pods; each asks 16 times a second."""
    pace, got = FairPace[int | str](10), []
    for tick in range(16 * 300):
        for key in range(crowd):
            pace.take(tick / 16 + key / 16 / crowd, key)
        if tick % (16 * 15) == 16 * 14:
            got.append(pace.take((tick + 1) / 16, "scrape"))
    assert len(got) == 20
    assert all(got)


def test_many_keys_with_few_requests_get_the_whole_rate() -> None:
    """256 readers who ask 10 times in 30 s."""
    pace = FairPace[int](100)
    asked = [(30 * number / 2560, number % 256) for number in range(2560)]
    assert sum(pace.take(now, key) for now, key in asked) == 2560


@given(st.lists(st.tuples(KEYS, st.floats(0.0, 0.4)), max_size=200))
def test_a_rate_bounds_all_together(asked: list[tuple[str, float]]) -> None:
    pace, now, taken = FairPace[str](5), 0.0, 0
    for key, pause in asked:
        now += pause
        taken += pace.take(now, key)
    assert taken <= 5 + 5 * now


class Line:
    """Callers who wait for one worker; each notes its turn."""

    def __init__(self, most: int) -> None:
        self.turns: FairTurns[str] = FairTurns(most)
        self.order: list[str] = []
        self.open = asyncio.Event()

    async def call(self, key: str) -> None:
        async with self.turns.turn(key):
            self.order.append(key)
            await self.open.wait()

    async def queue(self, keys: str) -> list["asyncio.Task[None]"]:
        calls = [asyncio.create_task(self.call(key)) for key in keys]
        await asyncio.sleep(0)
        return calls


async def test_turns_go_round() -> None:
    line = Line(most=10)
    calls = await line.queue("aaaaabbc")
    line.open.set()
    await asyncio.gather(*calls)
    assert "".join(line.order) == "aabcabaa"


async def test_a_crowd_that_fills_the_queue_gives_its_last_place_to_another() -> None:
    line = Line(most=3)
    calls = await line.queue("aaaab")
    line.open.set()
    ends = await asyncio.gather(*calls, return_exceptions=True)
    assert [type(each) for each in ends] == [type(None)] * 3 + [NoTurnError] + [type(None)]
    assert "".join(line.order) == "aaba"


async def test_a_full_queue_refuses_who_has_as_much_as_the_others() -> None:
    line = Line(most=2)
    calls = await line.queue("abca")
    with pytest.raises(NoTurnError):
        await calls[-1]
    line.open.set()
    await asyncio.gather(*calls[:-1])


@given(st.lists(st.tuples(KEYS, st.booleans()), max_size=20), st.integers(0, 20))
def test_whoever_goes_away_the_turn_is_never_lost(callers: list[tuple[str, bool]], when: int) -> None:
    async def play() -> None:
        line = Line(most=10)
        calls = [asyncio.create_task(line.call(key)) for key, _ in callers]
        for _ in range(when):
            await asyncio.sleep(0)
        line.open.set()
        for call, (_, goes) in zip(calls, callers, strict=True):
            if goes:
                call.cancel()
                await asyncio.sleep(0)
        await asyncio.gather(*calls, return_exceptions=True)
        await line.call("z")
        assert line.order[-1] == "z"
        assert not line.turns._waiting

    asyncio.run(play())
