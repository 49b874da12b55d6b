"""Runs work that calls NVIDIA's driver, which may hang for ever."""

import os
import threading
from collections.abc import Callable
from typing import TypeVar

from tessera.cli.base.console import say

T = TypeVar("T")


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
