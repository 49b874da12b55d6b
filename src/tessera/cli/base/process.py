"""A command's process: event loop, shutdown on signals and log of a long-running one, and the end of one that hangs."""

import asyncio
import gc
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import click

from tessera.cli.base.console import say
from tessera.text import lines, one_line

T = TypeVar("T")

#: Most characters: one line of a process's log. Answers of the API server fit; a text of others cannot fill the log.
LOG_LINE = 8_000
#: Most decisions of each decider that a process keeps (`--record`). Minutes of a busy cluster; more would fill the
#: process's memory.
RECORDED_DECISIONS = 100_000

#: Form of an entry of the log.
ENTRY = "%(asctime)s %(levelname)s %(name)s %(message)s"
LEVELS = ("debug", "info", "warning", "error")


def run_process(main: Coroutine[Any, Any, Any], *, on_uvloop: bool = True) -> None:
    """Runs a process's main coroutine until it ends. SIGTERM and SIGINT cancel it and wait for its end.

    Args:
        main: the coroutine.
        on_uvloop: use uvloop's event loop, where uvloop is installed, instead of asyncio's own. False for a process
            whose loop serves what strangers send (:mod:`tessera.serving.bounded_port`).
    """
    reduce_garbage_collection()
    with asyncio.Runner(loop_factory=_uvloop() if on_uvloop else None) as runner:
        runner.run(_run_until_signal(main))


def run_command(main: Coroutine[Any, Any, T]) -> T:
    """The result of a command's coroutine. Ctrl-C cancels it and waits for its end; a second one does not wait.

    ``asyncio.run`` cancels from within the signal's handler, wherever the loop is then: where that is between a
    callback's look at a future and its result, a traceback is written to the user's terminal. Here the loop cancels.

    Raises:
        KeyboardInterrupt: the user pressed Ctrl-C.
    """
    task: asyncio.Task[T] | None = None
    interrupted = False

    async def run() -> T:
        nonlocal task
        task = asyncio.current_task()
        return await main

    def interrupt(_number: int, _frame: object) -> None:
        nonlocal interrupted
        if interrupted or task is None or task.done():
            raise KeyboardInterrupt
        interrupted = True
        task.get_loop().call_soon_threadsafe(task.cancel)

    with _calling_on_interrupt(interrupt):
        try:
            with asyncio.Runner() as runner:
                result = runner.run(run())
        except asyncio.CancelledError:
            if interrupted:
                raise KeyboardInterrupt from None
            raise
    if interrupted:  # in the last step of the coroutine, or it went on
        raise KeyboardInterrupt
    return result


@contextmanager
def _calling_on_interrupt(handler: Callable[[int, object], None]) -> Iterator[None]:
    """Calls the handler on Ctrl-C: not in another thread, which gets no signals, nor in a job that ignores this one."""
    usual = signal.default_int_handler
    if threading.current_thread() is not threading.main_thread() or signal.getsignal(signal.SIGINT) is not usual:
        yield
        return
    signal.signal(signal.SIGINT, handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, usual)


def _uvloop() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """What makes uvloop's event loop; None without uvloop: the kubectl plugin does not carry it."""
    try:
        import uvloop
    except ModuleNotFoundError:
        return None
    return uvloop.new_event_loop


def reduce_garbage_collection() -> None:
    """Makes garbage collections rare, and full ones very rare.

    The cache of a cluster lives long and has no reference cycles, but CPython's defaults walk all of it whenever it has
    grown by a quarter: a third of a burst's CPU time in the lab, in pauses of up to 0.7 s (bench/slices.py, a million
    objects). Cycles are still collected, somewhat later.
    """
    gc.freeze()
    gc.set_threshold(10_000, 10, 1_000)


async def _run_until_signal(main: Coroutine[Any, Any, Any]) -> None:
    task = asyncio.ensure_future(main)
    signalled = False

    def cancel() -> None:
        nonlocal signalled
        signalled = True
        task.cancel()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, cancel)
    try:
        await task
    except asyncio.CancelledError:
        if not signalled:
            raise
    except Exception:
        # The command line prints one line for an error; the log says where a process that ran for weeks met it.
        logging.getLogger(__name__).debug("the process ends", exc_info=True)
        raise


def start_log(level: str) -> None:
    """Logs to standard error, one line for each entry; control characters in foreign text are escaped."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(EscapingFormatter(ENTRY))
    logging.basicConfig(handlers=[handler], level=level.upper(), force=True)


class EscapingFormatter(logging.Formatter):
    """Formats each entry, and each line of a traceback, as one line of bounded length."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - the base class's name
        """The entry without its traceback."""
        return one_line(super().formatMessage(record), LOG_LINE)

    def formatException(self, ei: Any) -> str:  # noqa: N802 - the base class's name
        """The traceback; its last line repeats the error's text, so it is escaped too."""
        return "\n".join(lines(super().formatException(ei), LOG_LINE))


record_option = click.option(
    "--record",
    envvar="TESSERA_RECORD",
    type=click.IntRange(0, int(RECORDED_DECISIONS)),
    default=0,
    show_default=True,
    metavar="N",
    help="Keep at least the last N decisions of each state machine for tessera debug record; 0 keeps none."
    "  [env: TESSERA_RECORD]",
)
log_option = click.option(
    "--log-level",
    type=click.Choice(LEVELS),
    default="info",
    show_default=True,
    help="Lowest level of log entries to write.",
)

address_option = click.option(
    "--http-address",
    envvar="TESSERA_HTTP_ADDRESS",
    metavar="ADDRESS",
    hidden=True,  # a pod has an address of its own; the lab's processes share those of one machine
    help="Address to listen on.  [default: all]",
)


def metrics_access_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds ``--metrics-access``; the value is ``open_metrics``, true or false."""
    return click.option(
        "--metrics-access",
        "open_metrics",
        type=click.Choice(["reviewed", "open"]),
        default="reviewed",
        show_default=True,
        callback=lambda _context, _option, value: value == "open",
        help="Who may read /metrics, which names pods of all namespaces: accounts with the right to get /metrics, by"
        " their token, or everybody.",
    )(command)


def run_within(seconds: float, work: Callable[[], T], *, hung: str) -> T:
    """The result of ``work``; ends the process with 1 if there is none in time.

    Args:
        seconds: how long the work may take.
        work: calls the driver; its errors are raised here.
        hung: what to say about a driver that hangs.
    """
    results: list[T] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            results.append(work())
        except BaseException as error:  # noqa: BLE001 - raised by the caller's thread
            errors.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(seconds)
    if thread.is_alive():
        say(f"error: no answer within {seconds:g} seconds: {hung}", err=True)
        os._exit(1)  # a thread that hangs in the driver cannot be ended in order
    if errors:
        raise errors[0]
    return results[0]
