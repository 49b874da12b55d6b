"""Runs the three long-running commands: event loop, orderly end, and log on standard error."""

import asyncio
import gc
import logging
import signal
import sys
from collections.abc import Coroutine
from typing import Any

import click

from tessera.limits.messages import LOG_LINE
from tessera.limits.processes import RECORDED_DECISIONS
from tessera.text import lines, one_line

LEVELS = ("debug", "info", "warning", "error")


def run_process(main: Coroutine[Any, Any, Any], *, on_uvloop: bool = True) -> None:
    """Runs a process's main coroutine until it ends, or until SIGTERM or SIGINT has it cancelled and awaited.

    Args:
        main: what is run.
        on_uvloop: on uvloop's event loop, else on asyncio's own.
    """
    import uvloop

    reduce_garbage_collection()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop if on_uvloop else None) as runner:
        runner.run(_until_asked(main))


def reduce_garbage_collection() -> None:
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
    """Logs to standard error, one line an entry; what is text of others in it is escaped."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(EscapingFormatter("%(asctime)s %(levelname)s %(name)s %(message)s"))
    logging.basicConfig(handlers=[handler], level=level.upper(), force=True)


class EscapingFormatter(logging.Formatter):
    """Makes each entry one line of bounded length, and each line of a traceback one."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - the base class's name
        """The entry without its traceback."""
        return one_line(super().formatMessage(record), LOG_LINE)

    def formatException(self, ei: Any) -> str:  # noqa: N802 - the base class's name
        """The traceback, whose last line repeats the text of an error."""
        return "\n".join(lines(super().formatException(ei), LOG_LINE))


record_option = click.option(
    "--record",
    envvar="TESSERA_RECORD",
    type=click.IntRange(0, int(RECORDED_DECISIONS)),
    default=0,
    show_default=True,
    metavar="N",
    help="Keep at least the last N decisions of each decider for tessera debug record; 0 keeps none."
    "  [env: TESSERA_RECORD]",
)
log_option = click.option(
    "--log-level", type=click.Choice(LEVELS), default="info", show_default=True, help="What to write to the log."
)
