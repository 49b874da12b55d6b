"""One write per key, pauses, and the wait until the server has shown a write: any order of answers and sights."""

import asyncio
import random
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tessera.kube.errors import Conflict, Status
from tessera.kube.retries import FREE, LONGEST, SHORTEST, Executor, Hold, RequestError, hold_for, until_observed
from tessera_lab.simulation.virtual_time import run_virtual

KEYS = ("node/a", "node/b", "pod/c")
#: The answer that is a failed request.
FAILURE = "failure"


class Server:
    """Answers each write when it is told to, and notes what came."""

    def __init__(self) -> None:
        self.executor: Executor[str] = Executor(self, wake=self.wake, rng=random.Random(0))
        self.waiting: dict[str, asyncio.Future[Hold | str]] = {}
        self.performed: list[str] = []
        self.released_keys: list[str] = []
        self.pauses: list[float] = []
        self.woken = 0

    def wake(self) -> None:
        self.woken += 1

    async def perform(self, instruction: str) -> Hold:
        assert instruction not in self.waiting, "two writes of one key are in flight"
        self.performed.append(instruction)
        future: asyncio.Future[Hold | str] = asyncio.get_running_loop().create_future()
        self.waiting[instruction] = future
        try:
            found = await future
        finally:
            del self.waiting[instruction]
        if isinstance(found, str):
            raise ConnectionError(found)
        return found

    def handle_failure(self, instruction: str, error: RequestError) -> Hold:
        del error
        hold = self.executor.back_off(instruction)
        assert hold.seconds is not None
        self.pauses.append(hold.seconds)
        return hold

    def handle_release(self, instruction: str, hold: Hold) -> None:
        assert hold is not FREE
        self.released_keys.append(instruction)

    def start(self, key: str, group: asyncio.TaskGroup) -> bool:
        return self.executor.start(key, key, group)

    async def answer(self, key: str, outcome: Hold | str) -> None:
        await asyncio.sleep(0)
        self.waiting[key].set_result(outcome)
        await asyncio.sleep(0)
        await asyncio.sleep(0)


def play(story: Callable[[Server, asyncio.TaskGroup], Coroutine[Any, Any, None]]) -> Server:
    server = Server()

    async def run() -> None:
        async with asyncio.TaskGroup() as group:
            await story(server, group)
        server.executor.stop()

    run_virtual(run())
    return server


def test_a_second_write_of_a_key_waits_for_the_answer_to_the_first() -> None:
    async def story(server: Server, group: asyncio.TaskGroup) -> None:
        assert server.start("node/a", group)
        assert not server.start("node/a", group)
        assert server.start("node/b", group)
        assert server.executor.is_in_flight("node/a")
        await server.answer("node/a", FREE)
        assert server.start("node/a", group)
        await server.answer("node/b", FREE)
        await server.answer("node/a", FREE)

    assert play(story).performed == ["node/a", "node/b", "node/a"]


def test_pauses_double_are_bounded_and_are_short_again_after_a_success() -> None:
    async def story(server: Server, group: asyncio.TaskGroup) -> None:
        outcomes: list[Hold | str] = [*[FAILURE] * 12, FREE, FAILURE]
        for outcome in outcomes:
            assert server.start("node/a", group)
            await server.answer("node/a", outcome)
            assert server.executor.is_busy("node/a") == (outcome is not FREE)
            await asyncio.sleep(LONGEST)

    pauses = play(story).pauses
    assert all(SHORTEST <= pause <= LONGEST for pause in pauses)
    assert pauses[11] == LONGEST
    assert pauses[12] <= 2 * SHORTEST


def test_a_rest_ends_by_time_and_by_nothing_that_is_seen() -> None:
    async def story(server: Server, group: asyncio.TaskGroup) -> None:
        server.start("node/a", group)
        await server.answer("node/a", hold_for(5.0))
        server.executor.objects_changed(["node/a"])
        await asyncio.sleep(4.9)
        assert not server.start("node/a", group)
        woken = server.woken
        await asyncio.sleep(0.2)
        assert server.woken == woken + 1
        assert server.released_keys == ["node/a"]
        assert not server.executor.is_busy("node/a")

    play(story)


def test_a_write_is_waited_for_until_it_is_seen_or_time_is_over() -> None:
    async def story(server: Server, group: asyncio.TaskGroup) -> None:
        for key, most in (("node/a", 2.0), ("node/b", 2.0), ("pod/c", None)):
            server.start(key, group)
            await server.answer(key, until_observed(most))
            assert server.executor.awaits_observation(key)
        server.executor.objects_changed(["node/a", "unknown"])
        assert not server.executor.is_busy("node/a")
        await asyncio.sleep(2.1)
        assert not server.executor.is_busy("node/b")
        await asyncio.sleep(3600)
        assert server.executor.is_busy("pod/c")

    play(story)


def test_a_change_that_is_seen_before_the_answer_frees_the_key() -> None:
    async def story(server: Server, group: asyncio.TaskGroup) -> None:
        server.start("node/a", group)
        await asyncio.sleep(0)
        server.executor.objects_changed(["node/a"])
        await server.answer("node/a", until_observed(None))
        assert not server.executor.is_busy("node/a")
        server.start("node/a", group)
        await server.answer("node/a", until_observed(None))
        assert server.executor.awaits_observation("node/a"), "an earlier sight says nothing about a later write"

    play(story)


def test_a_key_may_be_postponed_without_a_write() -> None:
    async def story(server: Server, group: asyncio.TaskGroup) -> None:
        server.executor.postpone("node/a", 30.0)
        assert not server.start("node/a", group)
        await asyncio.sleep(30.1)
        assert server.woken == 1
        assert server.start("node/a", group)
        server.executor.postpone("node/a", 30.0)
        await server.answer("node/a", FREE)
        assert not server.executor.is_busy("node/a")

    assert play(story).released_keys == []


def test_after_a_stop_no_timer_fires() -> None:
    async def story(server: Server, group: asyncio.TaskGroup) -> None:
        called: list[str] = []
        server.start("node/a", group)
        await server.answer("node/a", "no answer")
        server.executor.call_later(5.0, lambda: called.append("later"))
        server.executor.stop()
        woken = server.woken
        await asyncio.sleep(3600)
        assert (called, server.woken) == ([], woken)

    play(story)


def test_later_calls_and_wakes_once() -> None:
    async def story(server: Server, _group: asyncio.TaskGroup) -> None:
        called: list[str] = []
        server.executor.call_later(5.0, lambda: called.append("later"))
        await asyncio.sleep(4.9)
        assert called == []
        await asyncio.sleep(3600)
        assert (called, server.woken) == (["later"], 1)

    play(story)


def test_a_task_that_is_cancelled_leaves_its_key_free() -> None:
    async def story(server: Server, group: asyncio.TaskGroup) -> None:
        async def life() -> None:
            async with asyncio.TaskGroup() as inner:
                server.start("node/a", inner)

        task = group.create_task(life())
        await asyncio.sleep(1)
        task.cancel()
        await asyncio.wait([task])
        assert not server.executor.is_busy("node/a")

    play(story)


def test_an_error_of_our_own_ends_the_group() -> None:
    class Faulty(Server):
        async def perform(self, instruction: str) -> Hold:
            raise ValueError(instruction)

    async def story() -> None:
        server = Faulty()
        with pytest.raises(ExceptionGroup) as caught:
            async with asyncio.TaskGroup() as group:
                server.start("node/a", group)
        assert isinstance(caught.value.exceptions[0], ValueError)
        assert not server.executor.is_busy("node/a")

    run_virtual(story())


def test_a_refusal_of_the_server_is_a_failure_that_the_doer_hears_of() -> None:
    class Refusing(Server):
        async def perform(self, instruction: str) -> Hold:
            raise Conflict(Status(code=409, reason="Conflict", message=instruction))

    async def story() -> None:
        server = Refusing()
        async with asyncio.TaskGroup() as group:
            server.start("node/a", group)
        assert len(server.pauses) == 1
        server.executor.stop()

    run_virtual(story())


STEPS = st.one_of(
    st.tuples(st.just("start"), st.sampled_from(KEYS)),
    st.tuples(st.just("seen"), st.sampled_from(KEYS)),
    st.tuples(st.just("postpone"), st.sampled_from(KEYS)),
    st.tuples(st.just("wait"), st.sampled_from(["0.1", "3", "40"])),
    st.tuples(
        st.sampled_from([FREE, hold_for(1.0), until_observed(2.0), until_observed(None), FAILURE]),
        st.sampled_from(KEYS),
    ),
)


@given(steps=st.lists(STEPS, max_size=40))
def test_in_any_order_no_key_has_two_writes_and_every_key_becomes_free(steps: list[tuple[Any, str]]) -> None:
    async def story(server: Server, group: asyncio.TaskGroup) -> None:
        started = 0
        for step, key in steps:
            match step:
                case "start":
                    was_busy = server.executor.is_busy(key)
                    assert server.start(key, group) == (not was_busy)
                    started += not was_busy
                case "seen":
                    server.executor.objects_changed([key])
                    assert not server.executor.awaits_observation(key)
                case "postpone":
                    server.executor.postpone(key, 1.0)
                    assert server.executor.is_busy(key)
                case "wait":
                    await asyncio.sleep(float(key))
                case outcome:
                    await asyncio.sleep(0)
                    if key in server.waiting:
                        woken = server.woken
                        await server.answer(key, outcome)
                        assert server.woken > woken
            for each in KEYS:
                assert server.executor.is_in_flight(each) <= server.executor.is_busy(each)
                assert not (server.executor.is_in_flight(each) and server.executor.awaits_observation(each))
        await asyncio.sleep(0)
        assert len(server.performed) == started
        for key in list(server.waiting):
            await server.answer(key, FREE)
        server.executor.objects_changed(KEYS)
        await asyncio.sleep(LONGEST + 1)
        assert not any(map(server.executor.is_busy, KEYS))

    play(story)
