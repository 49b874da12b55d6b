"""Answers are used for half of their life, renewed after it, and never used beyond it."""

import asyncio

import pytest
from tests.support.api_user import ManualClock

from tessera.access.reviewer import BusyError, ReviewCache, SilentError
from tessera.serving.fair_shares import Pace

LIFE = 60.0


class Server:
    """Answers with the number of the question; ``away`` if it does not."""

    def __init__(self) -> None:
        self.questions = 0
        self.away = False

    async def ask(self) -> int:
        self.questions += 1
        await asyncio.sleep(0)
        if self.away:
            raise ConnectionResetError("away")
        return self.questions


class Asking:
    def __init__(self, size: int = 10, rate: int = 1000) -> None:
        self.clock = ManualClock()
        self.server = Server()
        self.cache: ReviewCache[str, int] = ReviewCache(self.clock, LIFE, size)
        self.pace = Pace(rate)

    async def get(self, key: str = "a") -> int:
        return await self.cache.get(key, self.server.ask, self.pace.take)


async def test_an_answer_is_used_without_a_question_for_half_of_its_life() -> None:
    asking = Asking()
    assert await asking.get() == 1
    asking.clock.seconds += LIFE / 2 - 1
    assert await asking.get() == 1
    asking.clock.seconds += 2
    assert await asking.get() == 2


async def test_while_the_server_is_away_an_answer_counts_until_its_life_is_over() -> None:
    asking = Asking()
    await asking.get()
    asking.server.away = True
    asking.clock.seconds += LIFE - 1
    assert await asking.get() == 1
    asking.clock.seconds += 1
    with pytest.raises(SilentError):
        await asking.get()


async def test_many_who_ask_at_the_same_time_cost_one_question() -> None:
    asking = Asking(rate=1)
    assert await asyncio.gather(*(asking.get() for _ in range(50))) == [1] * 50
    assert asking.server.questions == 1


async def test_one_who_goes_away_does_not_take_the_answer_from_the_others() -> None:
    asking = Asking()
    first, second = asyncio.create_task(asking.get()), asyncio.create_task(asking.get())
    await asyncio.sleep(0)
    first.cancel()
    assert await second == 1


async def test_the_pace_bounds_questions_and_not_answers() -> None:
    asking = Asking(rate=2)
    await asking.get("a")
    await asking.get("b")
    with pytest.raises(BusyError):
        await asking.get("c")
    assert await asking.get("a") == 1
    asking.clock.seconds += 0.5
    assert await asking.get("c") == 3


async def test_the_answer_that_was_unused_longest_is_forgotten() -> None:
    asking = Asking(size=2)
    for key in ("a", "b", "a", "c", "a"):
        await asking.get(key)
    assert len(asking.cache) == 2
    assert asking.server.questions == 3
    await asking.get("b")
    assert asking.server.questions == 4
