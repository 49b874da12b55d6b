"""Concurrent callers share one answer, whose work began after they called."""

import asyncio

import pytest

from tessera.kubelet.grpc import Coalesced


class Calls:
    def __init__(self) -> None:
        self.count = 0
        self.go = asyncio.Event()

    async def __call__(self) -> int:
        self.count += 1
        mine = self.count
        await self.go.wait()
        if mine == 3:
            raise ConnectionError("third")
        return mine


async def test_callers_share_the_call_that_begins_after_them() -> None:
    calls = Calls()
    shared = Coalesced(calls)
    first = asyncio.create_task(shared())
    while calls.count == 0:  # noqa: ASYNC110 - two steps of the loop
        await asyncio.sleep(0)
    late = [asyncio.create_task(shared()) for _ in range(5)]
    calls.go.set()
    assert await first == 1
    assert [await task for task in late] == [2] * 5
    assert calls.count == 2


async def test_an_error_reaches_everybody_and_the_next_call_is_new() -> None:
    calls = Calls()
    calls.go.set()
    shared = Coalesced(calls)
    assert [await shared(), await shared()] == [1, 2]
    answers = await asyncio.gather(shared(), shared(), return_exceptions=True)
    assert [str(answer) for answer in answers] == ["third", "third"]
    assert await shared() == 4


async def test_a_caller_that_gives_up_does_not_take_the_answer_from_others() -> None:
    calls = Calls()
    shared = Coalesced(calls)
    one, two = asyncio.create_task(shared()), asyncio.create_task(shared())
    await asyncio.sleep(0)
    one.cancel()
    with pytest.raises(asyncio.CancelledError):
        await one
    calls.go.set()
    assert await two == 1
