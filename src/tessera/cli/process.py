"""What the three long-running commands share: an event loop, an orderly end, and a log on standard error."""

import asyncio
import gc
import logging
import signal
import sys
from collections.abc import Coroutine
from typing import Any

import click

LEVELS = ("debug", "info", "warning", "error")


def run_process(main: Coroutine[Any, Any, Any]) -> None:
    """Runs a process's main coroutine until it ends, or until SIGTERM or SIGINT has it cancelled and awaited."""
    import uvloop

    collect_seldom()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_until_asked(main))


def collect_seldom() -> None:
    """Makes collections of garbage rare, and those of all objects very rare.

    What mirrors a cluster lives long and is in no circles, yet CPython's defaults walk all of it whenever it has grown
    by a quarter: a third of a burst's CPU time in the lab, in pauses of up to 0.7 s (bench/slices.py, a million
    objects). Circles are still collected, a while later.
    """
    gc.freeze()
    gc.set_threshold(10_000, 10, 1_000)


async def _until_asked(main: Coroutine[Any, Any, Any]) -> None:
    task = asyncio.ensure_future(main)
    asked = False

    def ask() -> None:
        nonlocal asked
        asked = True
        task.cancel()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, ask)
    try:
        await task
    except asyncio.CancelledError:
        if not asked:
            raise


def start_log(level: str) -> None:
    """Logs to standard error, one line an entry."""
    logging.basicConfig(
        stream=sys.stderr, level=level.upper(), format="%(asctime)s %(levelname)s %(name)s %(message)s", force=True
    )


log_option = click.option(
    "--log-level", type=click.Choice(LEVELS), default="info", show_default=True, help="What to write to the log."
)
