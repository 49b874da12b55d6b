"""Two agents of one node, as during an update: one acts at a time, and the next knows when."""

import asyncio
import contextlib
import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tessera.agent.run import HANDOVER_TIMEOUT, LOCK, LOCK_RECHECK, NodeTurn
from tessera.clock import LoopClock, SystemClock
from tessera_lab.simulation.virtual_time import run_virtual

#: Takes the turn in a process of its own, says so, and never ends.
_HOLDER = """
import asyncio, sys
from pathlib import Path
from tessera.agent.run import NodeTurn
from tessera.clock import LoopClock, SystemClock

async def main():
    turn = NodeTurn(Path(sys.argv[1]), SystemClock())
    await turn.take()
    print("mine", flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""


async def _until(true: Callable[[], bool]) -> None:
    """Returns once it is true; the kernel's answer to a connection has no event of ours."""
    async with asyncio.timeout(30):
        while not true():  # noqa: ASYNC110
            await asyncio.sleep(0)


async def _met(successor: NodeTurn, predecessor: NodeTurn) -> None:
    await _until(lambda: successor.waiting and predecessor.has_successor)


async def test_an_agent_alone_has_its_turn_at_once(tmp_path: Path) -> None:
    told: list[str] = []
    turn = NodeTurn(tmp_path / "state", SystemClock(), lambda: told.append("met"))
    await turn.take()
    assert (turn.waiting, turn.has_successor, told) == (False, False, ["met"])
    turn.end()


async def test_a_successor_waits_and_acts_once_its_predecessor_hands_over(tmp_path: Path) -> None:
    first, second = NodeTurn(tmp_path, SystemClock()), NodeTurn(tmp_path, SystemClock())
    await first.take()
    taking = asyncio.create_task(second.take())
    await _met(second, first)
    assert not taking.done()

    handing = asyncio.create_task(first.hand_over())
    await taking
    assert not second.waiting
    assert not handing.done(), "the predecessor serves its lists until kubelet has those of the successor"
    second.note_serving()
    await handing
    first.end()

    third = NodeTurn(tmp_path, SystemClock())
    waiting = asyncio.create_task(third.take())
    await _met(third, second)
    second.end()
    await waiting
    third.end()


async def test_of_two_successors_one_acts(tmp_path: Path) -> None:
    first, others = NodeTurn(tmp_path, SystemClock()), [NodeTurn(tmp_path, SystemClock()) for _ in range(2)]
    await first.take()
    tasks = {asyncio.create_task(each.take()): each for each in others}
    for each in others:
        await _met(each, first)
    first.end()
    done, rest = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    assert (len(done), len(rest)) == (1, 1)
    (winner,) = done
    await _met(tasks[next(iter(rest))], tasks[winner])
    tasks[winner].end()
    await asyncio.wait(rest)
    for each in others:
        each.end()


async def test_a_predecessor_that_is_killed_frees_the_turn(tmp_path: Path) -> None:
    arguments = (sys.executable, "-c", _HOLDER, str(tmp_path))
    holder = await asyncio.create_subprocess_exec(*arguments, stdout=asyncio.subprocess.PIPE)
    try:
        assert holder.stdout is not None
        assert await holder.stdout.readline() == b"mine\n"
        turn = NodeTurn(tmp_path, SystemClock())
        taking = asyncio.create_task(turn.take())
        await _until(lambda: turn.waiting)
        holder.kill()
        await taking
        turn.end()
    finally:
        with contextlib.suppress(ProcessLookupError):
            holder.kill()
        await holder.communicate()


async def test_a_successor_that_is_killed_lets_its_predecessor_end(tmp_path: Path) -> None:
    first, second = NodeTurn(tmp_path, SystemClock()), NodeTurn(tmp_path, SystemClock())
    await first.take()
    taking = asyncio.create_task(second.take())
    await _met(second, first)
    taking.cancel()
    second.end()
    await asyncio.wait_for(first.hand_over(), HANDOVER_TIMEOUT / 2)
    first.end()


async def test_a_folder_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    (tmp_path / LOCK).mkdir()
    with pytest.raises(OSError, match=LOCK):
        await NodeTurn(tmp_path, SystemClock()).take()


async def test_the_folder_may_have_a_long_path(tmp_path: Path) -> None:
    turn = NodeTurn(tmp_path / ("long" * 30), SystemClock())
    await turn.take()
    turn.end()


def test_a_successor_acts_though_the_end_of_its_predecessor_left_the_connection_open(tmp_path: Path) -> None:
    async def story() -> None:
        first, second = NodeTurn(tmp_path, LoopClock(0)), NodeTurn(tmp_path, LoopClock(0))
        await first.take()
        taking = asyncio.create_task(second.take())
        await _met(second, first)
        assert first._lock is not None
        os.close(first._lock)  # as the kernel does for a process that ended
        first._lock = None
        async with asyncio.timeout(2 * LOCK_RECHECK):
            await taking
        second.end()
        first.end()

    run_virtual(story())
