"""Each key by one worker at a time, and nothing forgotten; on virtual time."""

import asyncio
import random
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.kube.conftest import cancelled, run_virtual
from tests.support.searching import examples

from tessera_lab.workloads.base.work_queue import WorkQueue


def queue(handle: Callable[[str], Awaitable[float | None]], workers: int = 4) -> WorkQueue[str]:
    return WorkQueue(handle, rng=random.Random(1), workers=workers)


def test_a_key_added_many_times_while_it_waits_is_worked_on_once() -> None:
    async def main() -> None:
        seen: list[str] = []

        async def handle(key: str) -> None:
            seen.append(key)

        work = queue(handle)
        for key in ("a", "b", "a", "a"):
            work.add(key)
        assert len(work) == 2
        task = asyncio.create_task(work.run())
        await asyncio.sleep(1)
        assert seen == ["a", "b"]
        assert work.idle
        await cancelled(task)

    run_virtual(main())


@settings(max_examples=examples(40))
@given(st.lists(st.tuples(st.sampled_from("abc"), st.floats(0, 2)), max_size=30))
def test_a_key_is_never_worked_on_twice_at_once_and_always_after_its_last_add(adds: list[tuple[str, float]]) -> None:
    async def main() -> None:
        active: Counter[str] = Counter()
        began: dict[str, float] = {}
        added: dict[str, float] = {}
        loop = asyncio.get_running_loop()

        async def handle(key: str) -> None:
            active[key] += 1
            assert active[key] == 1
            began[key] = loop.time()
            await asyncio.sleep(0.7)
            active[key] -= 1

        work = queue(handle)
        task = asyncio.create_task(work.run())
        for key, pause in adds:
            await asyncio.sleep(pause)
            added[key] = loop.time()
            work.add(key)
        await asyncio.sleep(10)
        assert work.failures == 0
        assert all(began[key] >= at for key, at in added.items())
        await cancelled(task)

    run_virtual(main())


def test_other_keys_go_on_while_one_is_slow() -> None:
    async def main() -> None:
        done: list[str] = []

        async def handle(key: str) -> None:
            await asyncio.sleep(100 if key == "slow" else 1)
            done.append(key)

        work = queue(handle, workers=2)
        task = asyncio.create_task(work.run())
        for key in ("slow", "a", "b", "c"):
            work.add(key)
        await asyncio.sleep(5)
        assert done == ["a", "b", "c"]
        await cancelled(task)

    run_virtual(main())


def test_a_failing_key_comes_again_after_growing_pauses_that_success_resets() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        times: dict[str, list[float]] = defaultdict(list)

        async def handle(key: str) -> None:
            times[key].append(loop.time())
            if key == "bad" and len(times[key]) < 5:
                raise LookupError(key)

        work = queue(handle)
        task = asyncio.create_task(work.run())
        work.add("bad")
        work.add("good")
        await asyncio.sleep(60)
        assert len(times["good"]) == 1
        gaps = [after - before for before, after in zip(times["bad"], times["bad"][1:], strict=False)]
        assert all(0.2 * 2**n <= gap <= 0.4 * 2**n + 0.001 for n, gap in enumerate(gaps))
        assert (work.failures, work.handled, len(gaps)) == (4, 2, 4)
        await cancelled(task)

    run_virtual(main())


def test_a_handler_may_ask_for_its_key_again() -> None:
    async def main() -> None:
        times: list[float] = []
        loop = asyncio.get_running_loop()

        async def handle(_: str) -> float | None:
            times.append(loop.time())
            return 5.0 if len(times) < 3 else None

        work = queue(handle)
        task = asyncio.create_task(work.run())
        work.add("a")
        await asyncio.sleep(60)
        assert [round(at - times[0]) for at in times] == [0, 5, 10]
        await cancelled(task)

    run_virtual(main())


def test_of_several_timers_of_a_key_the_earliest_counts_and_a_stop_clears_them() -> None:
    async def main() -> None:
        times: list[float] = []
        loop = asyncio.get_running_loop()
        start = loop.time()

        async def handle(_: str) -> None:
            times.append(loop.time() - start)

        work = queue(handle)
        task = asyncio.create_task(work.run())
        work.add_after("a", 20)
        work.add_after("a", 5)
        work.add_after("a", 10)
        await asyncio.sleep(30)
        assert [round(at) for at in times] == [5]
        work.add_after("a", 100)
        assert work.delayed_keys == 1
        await cancelled(task)
        assert work.delayed_keys == 0

    run_virtual(main())
