"""An event loop whose time is simulated, so that minutes of a cluster replay in milliseconds.

Two ways to run it:

* **Without sockets** (:func:`run_virtual`). When nothing is ready to run, time jumps to the next timer. Everything in
  the process that waits does so through the loop, so the jump can lose nothing: ``asyncio.timeout``, ``call_later``
  and the injected clock all run on the same simulated time, and the same program gives the same trace each time.
  Nothing ready and no timer means that nobody can ever wake up: that is an error and it names the waiting tasks.
* **With sockets** (``VirtualTimeLoop(may_leap=...)``), for a lab that kubectl talks to. Input comes first: time
  leaps only after ``quiet`` real seconds without any, and only while ``may_leap()`` says that simulated work is
  pending (a container that will end, an image that is being pulled). Otherwise the loop waits like any other.

Time starts at zero and is shown as dates by :class:`tessera.clock.LoopClock`.

:class:`CountedClock` counts the simulated waits that are sure to end: while there are any, a lab on virtual time may
jump ahead.

Why no library: async-solipsism has no real sockets, and looptime moves time in configured steps, also while input from
a socket is under way (their documentation).
"""

import asyncio
import gc
import math
import selectors
import time
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import Executor
from contextlib import contextmanager
from contextvars import Context
from typing import Any, Protocol, TypeVar, TypeVarTuple

from tessera.clock import Clock

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

#: Real seconds without input after which a loop with sockets may leap. Loopback answers arrive in far less.
QUIET = 0.005
#: After so many leaps in a row that nobody answered late, a loop with sockets listens more briefly before each.
CALM = 50
#: Real seconds of listening then. Timers of this process (leases are renewed every two seconds) make a simulated hour
#: some thousand leaps.
BRIEF = 0.0003


#: Thresholds of the garbage collector's generations while a cluster runs on virtual time; Python's are 700, 10, 10.
_COLLECT = (300_000, 20, 20)


class Deadlock(RuntimeError):  # noqa: N818 - the word says what happened
    """Every task waits for another one and no timer is left: virtual time cannot go on."""


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """An asyncio event loop on simulated time.

    Args:
        may_leap: None for a program without sockets, which always leaps. Otherwise asked each time nothing is
            ready: whether simulated work is pending, so that time may leap to the next timer.
        quiet: real seconds without input before a leap; used with ``may_leap`` only.
    """

    def __init__(self, may_leap: Callable[[], bool] | None = None, quiet: float = QUIET) -> None:
        self._pace: _Pace = _Leaping(self) if may_leap is None else _LeapingTime(may_leap, quiet)
        self._single_thread = may_leap is None
        super().__init__(_Selector(self._pace))

    def time(self) -> float:
        """Simulated seconds since the loop was made."""
        return self._pace.now

    @property
    def _clock_resolution(self) -> float:
        """Returns how early asyncio fires timers: here less than the clock can show.

        With a larger value a task that waits for a time would wake before it, find that the time has not come, and wait
        again for no time, in an endless loop, since virtual time does not advance by itself.
        """
        return math.ulp(self.time())

    @_clock_resolution.setter
    def _clock_resolution(self, value: float) -> None:
        """Ignores the resolution of the machine's clock, which asyncio sets."""

    def call_later(
        self, delay: float, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.TimerHandle:
        """Calls back at a later time, also if the sum is rounded to the present time: else time might never pass."""
        when = self.time() + delay
        if delay > 0:
            when = max(when, math.nextafter(self.time(), math.inf))
        return self.call_at(when, callback, *args, context=context)

    def run_in_executor(self, executor: Executor | None, func: Callable[[*Ts], T], *args: *Ts) -> asyncio.Future[T]:
        """Runs ``func`` in a thread; refused where time leaps without looking at input.

        Raises:
            RuntimeError: time would leap while the thread is at work.
        """
        if self._single_thread:
            raise RuntimeError(
                f"run_in_executor({getattr(func, '__qualname__', func)}) on a VirtualTimeLoop without sockets: time "
                "leaps while a thread works, so threads are not allowed here; call the function in the loop instead"
            )
        return super().run_in_executor(executor, func, *args)


def run_virtual(main: Coroutine[Any, Any, T]) -> T:
    """Runs ``main`` to its end on simulated time that starts at zero.

    Raises:
        Deadlock: all tasks wait and no timer is left.
    """
    with collect_garbage_seldom(), asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        return runner.run(main)


@contextmanager
def collect_garbage_seldom() -> Iterator[None]:
    """Lets the garbage collector look less often inside the block.

    A cluster in one process keeps some hundred thousand objects and makes as many that live for an instant. Looking
    through them as often as Python does took a third of an experiment's time.
    """
    before = gc.get_threshold()
    gc.set_threshold(*_COLLECT)
    try:
        yield
    finally:
        gc.set_threshold(*before)


class _Pace(Protocol):
    """Passage of time while no task is ready."""

    @property
    def now(self) -> float: ...

    def wait(self, inner: selectors.BaseSelector, timeout: float | None) -> list[tuple[selectors.SelectorKey, int]]: ...


class _Leaping:
    """Time passes by leaps only."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self.now = 0.0

    def wait(self, inner: selectors.BaseSelector, timeout: float | None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = inner.select(0)
        if ready or timeout == 0:
            return ready
        if timeout is None:
            raise Deadlock(self._deadlock_text())
        self.now += timeout
        return []

    def _deadlock_text(self) -> str:
        tasks = sorted(str(task.get_coro()) for task in asyncio.all_tasks(self._loop) if not task.done())
        names = "; ".join(name.removeprefix("<coroutine object ").split(" at 0x")[0] for name in tasks)
        return f"deadlock at {self.now:.6f} s of virtual time: nothing is ready and no timer is set. Waiting: {names}"


class _LeapingTime:
    """Time passes as it does, and leaps while simulated work is pending and no input comes."""

    def __init__(self, may_leap: Callable[[], bool], quiet: float) -> None:
        self._may_leap = may_leap
        self._quiet = quiet
        self._zero = time.monotonic()
        self._leapt = 0.0
        self._calm = 0

    @property
    def now(self) -> float:
        return time.monotonic() - self._zero + self._leapt

    def wait(self, inner: selectors.BaseSelector, timeout: float | None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is not None and timeout <= 0:
            return inner.select(0)
        if timeout is None or not self._may_leap():
            self._calm = 0
            return inner.select(timeout)
        due = self.now + timeout
        ready = inner.select(0)
        if ready:  # was there at once: this process answers itself
            return ready
        ready = self._listen(inner, timeout)
        if ready:
            self._calm = 0
            return ready
        self._calm += 1
        self._leapt += max(0.0, due - self.now)
        return []

    def _listen(self, inner: selectors.BaseSelector, timeout: float) -> list[tuple[selectors.SelectorKey, int]]:
        """Waits briefly for input from outside or from a thread; the wait gets shorter while none comes."""
        if self._calm < CALM:
            return inner.select(min(self._quiet, timeout))
        time.sleep(min(BRIEF, timeout))  # a selector would round up to whole milliseconds
        return inner.select(0)


class _Selector(selectors.BaseSelector):
    """The platform's selector; a pace does the waiting."""

    def __init__(self, pace: _Pace) -> None:
        self._pace = pace
        self._inner = selectors.DefaultSelector()

    def register(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        return self._inner.register(fileobj, events, data)

    def unregister(self, fileobj: Any) -> selectors.SelectorKey:
        return self._inner.unregister(fileobj)

    def modify(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        return self._inner.modify(fileobj, events, data)

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        return self._pace.wait(self._inner, timeout)

    def close(self) -> None:
        self._inner.close()

    def get_key(self, fileobj: Any) -> selectors.SelectorKey:
        return self._inner.get_key(fileobj)

    def get_map(self) -> Any:
        return self._inner.get_map()


class CountedClock:
    """A clock that counts the sleeps on it; for simulated hardware, where each sleep is a call in progress.

    Attributes:
        pending: number of present sleeps.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.pending = 0

    def now(self) -> float:
        """See :meth:`.Clock.now`."""
        return self._clock.now()

    def monotonic(self) -> float:
        """See :meth:`.Clock.monotonic`."""
        return self._clock.monotonic()

    async def sleep(self, seconds: float) -> None:
        """See :meth:`.Clock.sleep`."""
        self.pending += 1
        try:
            await self._clock.sleep(seconds)
        finally:
            self.pending -= 1

    async def rest(self, seconds: float) -> None:
        """Sleeps without being counted, for waits that lead to no event by themselves."""
        await self._clock.sleep(seconds)
