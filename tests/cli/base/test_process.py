"""Ctrl-C while a command works."""

import asyncio
import os
import signal
from typing import Any

import pytest

from tessera.cli.base.process import run_command


def press() -> None:
    os.kill(os.getpid(), signal.SIGINT)


def test_ctrl_c_in_the_middle_of_a_callback_ends_a_command_in_order() -> None:
    wrong: list[dict[str, Any]] = []
    ended: list[str] = []

    async def work() -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _loop, context: wrong.append(context))
        answer = loop.create_future()

        def receive() -> None:
            if not answer.done():
                press()
                answer.set_result("connected")

        loop.call_soon(receive)
        try:
            await answer
            await asyncio.sleep(600)
        finally:
            await asyncio.sleep(0)
            ended.append("in order")

    with pytest.raises(KeyboardInterrupt):
        run_command(work())
    assert (wrong, ended) == ([], ["in order"])
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_second_ctrl_c_does_not_wait() -> None:
    async def work() -> None:
        press()
        press()
        await asyncio.sleep(600)

    with pytest.raises(KeyboardInterrupt):
        run_command(work())


def test_a_background_job_that_ignores_ctrl_c_goes_on() -> None:
    async def work() -> str:
        press()
        await asyncio.sleep(0)
        return "done"

    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        assert run_command(work()) == "done"
    finally:
        signal.signal(signal.SIGINT, before)


def test_a_coroutine_that_cancels_itself_was_not_interrupted() -> None:
    async def work() -> None:
        raise asyncio.CancelledError

    with pytest.raises(asyncio.CancelledError):
        run_command(work())


def test_ctrl_c_in_the_last_step_counts() -> None:
    async def work() -> str:
        await asyncio.sleep(0)
        press()
        return "done"

    with pytest.raises(KeyboardInterrupt):
        run_command(work())


def test_after_two_presses_at_any_point_the_next_command_is_interruptible() -> None:
    async def work() -> None:
        asyncio.get_running_loop().call_later(0.01, press)
        try:
            await asyncio.sleep(600)
        finally:
            asyncio.get_running_loop().call_later(0.01, press)
            await asyncio.sleep(600)

    with pytest.raises(KeyboardInterrupt):
        run_command(work())
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
