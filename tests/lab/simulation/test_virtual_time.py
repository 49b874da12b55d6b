"""Simulated time: what leaps, what waits, and what is refused."""

import asyncio
import math
import socket
import time
from collections.abc import Callable

import pytest

from tessera.clock import LoopClock, until_set
from tessera_lab.simulation.virtual_time import Deadlock, VirtualTimeLoop, run_virtual


def test_an_hour_of_sleep_takes_no_time() -> None:
    async def main() -> float:
        await asyncio.sleep(3600)
        return asyncio.get_running_loop().time()

    started = time.perf_counter()
    assert run_virtual(main()) == pytest.approx(3600)
    assert time.perf_counter() - started < 3600


def test_timers_fire_in_the_order_of_their_times() -> None:
    async def main() -> list[str]:
        seen: list[str] = []
        loop = asyncio.get_running_loop()
        loop.call_later(3, seen.append, "3 s")
        loop.call_later(1, seen.append, "1 s")
        loop.call_later(2, seen.append, "2 s")
        await asyncio.sleep(4)
        return seen

    assert run_virtual(main()) == ["1 s", "2 s", "3 s"]


def test_a_timeout_ends_what_takes_longer() -> None:
    async def main() -> float:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(30):
                await asyncio.sleep(31)
        return asyncio.get_running_loop().time()

    assert run_virtual(main()) == pytest.approx(30)


def test_dates_follow_the_loop() -> None:
    async def main() -> float:
        clock = LoopClock(epoch=1_700_000_000)
        await clock.sleep(86_400)
        return clock.now()

    assert run_virtual(main()) == pytest.approx(1_700_086_400)


def test_who_is_woken_at_a_deadline_finds_that_it_has_come() -> None:
    async def main() -> tuple[float, float, int]:
        loop = asyncio.get_running_loop()
        await asyncio.sleep(11_121.289999999999)
        deadline, turns = math.nextafter(loop.time(), math.inf), 0
        while loop.time() < deadline and turns < 100:
            await asyncio.sleep(deadline - loop.time())
            turns += 1
        return loop.time(), deadline, turns

    now, deadline, turns = run_virtual(main())
    assert (now, turns) == (deadline, 1)


@pytest.mark.parametrize("way", ["sleep", "until_set"])
def test_time_passes_also_by_waits_that_are_too_short_for_it_to_show(way: str) -> None:
    """Differences of times may be so small: 300 - 299.99999999999994 is half of what a time of 519 s can show."""

    async def main() -> int:
        clock, never, waits = LoopClock(0), asyncio.Event(), 0
        await clock.sleep(519.7072966493333)
        began = clock.monotonic()
        while clock.monotonic() == began and waits < 100:
            await (clock.sleep(5e-14) if way == "sleep" else until_set(never, 5e-14))
            waits += 1
        return waits

    assert run_virtual(main()) == 1


def test_a_month_of_short_timers_keeps_going() -> None:
    async def main() -> int:
        ticks = 0
        while asyncio.get_running_loop().time() < 30 * 86_400:
            await asyncio.sleep(300.1)
            ticks += 1
        return ticks

    assert run_virtual(main()) == 8638


def test_all_waiting_and_no_timer_is_a_deadlock_that_names_who_waits() -> None:
    async def waits_for_ever() -> None:
        await asyncio.Event().wait()

    with pytest.raises(Deadlock, match=r"nothing is ready and no timer is set.*waits_for_ever"):
        run_virtual(waits_for_ever())


def test_threads_are_refused_without_sockets() -> None:
    async def main() -> None:
        await asyncio.to_thread(time.monotonic)

    with pytest.raises(RuntimeError, match="threads are not allowed"):
        run_virtual(main())


def run_with_sockets(main: Callable[[], object], may_leap: Callable[[], bool]) -> object:
    with asyncio.Runner(loop_factory=lambda: VirtualTimeLoop(may_leap=may_leap)) as runner:
        return runner.run(main())  # type: ignore[arg-type]


def test_with_sockets_time_leaps_while_simulated_work_is_pending() -> None:
    async def main() -> float:
        await asyncio.sleep(3600)
        return asyncio.get_running_loop().time()

    started = time.perf_counter()
    assert run_with_sockets(main, lambda: True) == pytest.approx(3600, abs=600)
    assert time.perf_counter() - started < 3600


def test_with_sockets_time_is_real_while_nothing_simulated_is_pending() -> None:
    async def main() -> None:
        await asyncio.sleep(0.03)

    started = time.perf_counter()
    run_with_sockets(main, lambda: False)
    assert time.perf_counter() - started >= 0.03


def test_with_sockets_input_comes_before_the_leap() -> None:
    async def main() -> bytes:
        left, right = socket.socketpair()
        reader, writer = await asyncio.open_connection(sock=left)
        right.send(b"ready")
        try:
            async with asyncio.timeout(10):
                return await reader.read(5)
        finally:
            right.close()
            writer.close()
            await writer.wait_closed()

    assert run_with_sockets(main, lambda: True) == b"ready"
