"""Keeps the parts of a lab running: a part that fails ends itself and no other part, and starts again after a pause.

A real cluster survives its own programs: systemd starts a kubelet again, a kubelet starts scheduler and controller
manager again, each after growing pauses. Here an error that a part did not foresee is logged with its traceback, ends
that part, and the part starts again from what the API server has. An object that a part cannot handle only stops that
part's work on that object.

The pauses are kubelet's. The first restart is immediate, then 10 s, 20 s, ... up to five minutes; a run of ten minutes
makes the next restart immediate again (``pkg/kubelet/kubelet.go``: ``backOffPeriod``, ``MaxContainerBackOff``). A
container that could not even be created is tried again after 10 s, without growth (``backOffPeriod`` of pod workers).
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any, Never, TypeVar

from tessera.clock import Clock
from tessera.kube.informer import EventKind, Informer, WatchEvent
from tessera.kube.resources.meta import key_of

#: Seconds.
FIRST = 10.0
LONGEST = 300.0
FORGIVEN_AFTER = 600.0
CREATE_RETRY = 10.0


class CrashBackoff:
    """The back-off of one container."""

    def __init__(self) -> None:
        self._next = 0.0

    def next_delay(self, ran: float) -> float:
        """Seconds to wait after a run of ``ran`` seconds."""
        if ran >= FORGIVEN_AFTER:
            self._next = 0.0
        pause = self._next
        self._next = min(LONGEST, pause * 2 or FIRST)
        return pause


class PullBackoff:
    """The back-off of one container's image: 10 s after the first failure, then twice as long, up to five minutes.

    Attributes:
        due: when the next pull may begin, monotonic seconds.
        why: what the last one failed with.
    """

    def __init__(self) -> None:
        self.due = 0.0
        self.why = ""
        self._next = FIRST

    def record_failure(self, now: float, reason: str) -> None:
        """A pull failed."""
        self.due, self.why = now + self._next, reason
        self._next = min(LONGEST, self._next * 2)


T = TypeVar("T")

_log = logging.getLogger(__name__)


async def supervise(
    name: str, run: Callable[[], Coroutine[Any, Any, object]], clock: Clock, *, least: float = 0.0
) -> Never:
    """Runs a part, and again after each end, until cancelled.

    Args:
        name: of the part, for the log.
        run: makes and runs the part; called anew for every start.
        clock: for the pauses.
        least: shortest pause before a start, seconds; from there it grows as that of a container does.
    """
    backoff = CrashBackoff()
    while True:
        began = clock.monotonic()
        error = await collect_result(run())
        if error is not None:
            _log.error("%s ended by an error", name, exc_info=error)
        pause = max(least, backoff.next_delay(clock.monotonic() - began))
        _log.error("%s starts again in %g s", name, pause)
        await clock.sleep(pause)


async def collect_result(work: Coroutine[Any, Any, object]) -> Exception | None:
    """Runs the work in a task of its own: the error that it ended with, or None; cancelling this cancels it.

    So a cancellation is never taken for an error, nor swallowed by work that fails while it is being cancelled.
    """
    task = asyncio.create_task(work)
    try:
        await asyncio.wait([task])
    except asyncio.CancelledError:
        task.cancel()
        await asyncio.wait([task])
        if not task.cancelled():
            task.exception()  # no caller is left to get it
        raise
    error = RuntimeError("it was cancelled by something of its own") if task.cancelled() else task.exception()
    if error is None or isinstance(error, Exception):
        return error
    raise error


class LabInformer(Informer[T]):
    """An informer whose handlers may fail with an object: they get it again after a pause, and others meanwhile."""

    def add_handler(
        self,
        handler: Callable[[WatchEvent[T]], None],
        *,
        only: Callable[[T], bool] | None = None,
        reads: Callable[[T], object] | None = None,
    ) -> Callable[[], None]:
        """See :meth:`.Informer.add_handler`."""

        def handle(event: WatchEvent[T], failures: int = 0) -> None:
            try:
                handler(event)
            except Exception:  # noqa: BLE001 - one object's error, whatever it is, must not end the mirror
                _log.exception("an object cannot be handled: %.500s", event.object)
                pause = min(LONGEST, FIRST * 2**failures)
                asyncio.get_running_loop().call_later(pause, again, event, failures + 1)

        def again(event: WatchEvent[T], failures: int) -> None:
            now = self.cache.get(key_of(event.object))
            handle(
                WatchEvent(EventKind.DELETED, event.object) if now is None else WatchEvent(EventKind.ADDED, now),
                failures,
            )

        return super().add_handler(handle, only=only, reads=reads)


def is_being_cancelled() -> bool:
    """True if this task's cancellation was requested: an error then must not keep it running."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def describe_error(error: BaseException) -> str:
    """Returns the text of the first error inside exception groups, for a status or an event."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
