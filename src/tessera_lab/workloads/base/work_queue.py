"""A work queue of keys, and expectations: the machinery by which a controller never repeats its own writes.

The queue has one worker per key at a time and each key at most once; it retries failures after a pause. A handler
learns only *that* something about a key changed and reads the newest state itself. A key that was added while a worker
handled it is handled once more. Timers are the event loop's, so they follow virtual time where the loop does.

A controller decides from its mirror, and the mirror is always a little behind its own writes. So before it creates or
deletes, it records the change as an expectation (:class:`Expectations`); while an expectation is open, it does not
count again. An expectation that is not met expires after five minutes (``pkg/controller/controller_utils.go``).
"""

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Hashable, Iterable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from tessera.clock import Clock
from tessera.kube.retries import LONGEST, SHORTEST, Backoff

K = TypeVar("K", bound=Hashable)

_log = logging.getLogger(__name__)


class WorkQueue(Generic[K]):
    """A queue with its workers.

    Args:
        handle: works on one key; returns seconds after which it wants the key again, or ``None``. An exception is
            logged and counted, and the key comes again after a growing, jittered pause.
        rng: for jitter.
        workers: keys worked on at the same time.
        shortest: first pause after a failure, seconds.
        longest: longest pause after a failure, seconds.

    Attributes:
        failures: handler calls that raised.
        handled: handler calls that did not.
    """

    def __init__(
        self,
        handle: Callable[[K], Awaitable[float | None]],
        *,
        rng: random.Random,
        workers: int = 8,
        shortest: float = SHORTEST,
        longest: float = LONGEST,
    ) -> None:
        self.failures = 0
        self.handled = 0
        self._handle = handle
        self._rng = rng
        self._workers = workers
        self._bounds = (shortest, longest)
        self._ready: asyncio.Queue[K] = asyncio.Queue()
        self._waiting: set[K] = set()
        self._active: set[K] = set()
        self._again: set[K] = set()
        self._timers: dict[K, asyncio.TimerHandle] = {}
        self._backoffs: dict[K, Backoff] = {}

    def __len__(self) -> int:
        """Keys that are ready and not yet worked on."""
        return len(self._waiting) + len(self._again)

    @property
    def idle(self) -> bool:
        """Nothing is ready or being worked on; a key may still wait for its timer."""
        return not (self._waiting or self._active)

    @property
    def delayed_keys(self) -> int:
        """Keys that wait for their timer."""
        return len(self._timers)

    def add(self, key: K) -> None:
        """Queues the key; a worker handles it after this call, even if one handles it now."""
        if key in self._active:
            self._again.add(key)
        elif key not in self._waiting:
            self._waiting.add(key)
            self._ready.put_nowait(key)

    def add_after(self, key: K, seconds: float) -> None:
        """Adds the key after a while; of several timers of one key the earliest counts."""
        loop = asyncio.get_running_loop()
        timer = self._timers.get(key)
        if timer is not None:
            if timer.when() <= loop.time() + seconds:
                return
            timer.cancel()
        self._timers[key] = loop.call_later(seconds, self._add_delayed, key)

    async def run(self) -> None:
        """Works until cancelled; keys being worked on are then cancelled too."""
        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(self._workers):
                    group.create_task(self._work())
        finally:
            for timer in self._timers.values():
                timer.cancel()
            self._timers.clear()

    def _add_delayed(self, key: K) -> None:
        del self._timers[key]
        self.add(key)

    async def _work(self) -> None:
        while True:
            key = await self._ready.get()
            self._waiting.discard(key)
            self._active.add(key)
            try:
                await self._once(key)
            finally:
                self._active.discard(key)
                if key in self._again:
                    self._again.discard(key)
                    self.add(key)

    async def _once(self, key: K) -> None:
        try:
            again = await self._handle(key)
        except Exception as error:  # noqa: BLE001 - one key's failure, whatever it is, must not stop the other keys
            self.failures += 1
            pause = self._backoffs.setdefault(key, self._new_backoff()).next()
            _log.warning("%s failed, again in %.1f s: %s: %s", key, pause, type(error).__name__, error)
            _log.debug("%s failed", key, exc_info=error)
            self.add_after(key, pause)
        else:
            self.handled += 1
            self._backoffs.pop(key, None)
            if again is not None:
                self.add_after(key, again)

    def _new_backoff(self) -> Backoff:
        shortest, longest = self._bounds
        return Backoff(self._rng, shortest=shortest, longest=longest)


#: Lifetime of an expectation, seconds.
GIVE_UP_AFTER = 300.0


@dataclass
class _Expected:
    creations: int = 0
    deletions: set[str] = field(default_factory=set)
    since: float = 0.0


class Expectations:
    """Expectations of one controller, by the key of the reconciled object.

    Args:
        clock: for the expiry.
        requeue: queues a key whose expectation has expired.
    """

    def __init__(self, clock: Clock, requeue: Callable[[str], None]) -> None:
        self._clock = clock
        self._look_again = requeue
        self._expected: dict[str, _Expected] = {}

    def are_met(self, key: str) -> bool:
        """True if nothing is expected (any more)."""
        expected = self._expected.get(key)
        if expected is None:
            return True
        if expected.creations > 0 or expected.deletions:
            return self._clock.monotonic() - expected.since >= GIVE_UP_AFTER
        return True

    def expect(self, key: str, *, creations: int = 0, deletions: Iterable[str] = ()) -> None:
        """Records creations and deletions (UIDs) before their requests. Replaces an expired expectation."""
        self._expected[key] = _Expected(creations, set(deletions), self._clock.monotonic())
        asyncio.get_running_loop().call_later(GIVE_UP_AFTER, self._look_again, key)

    def note_created(self, key: str, number: int = 1) -> None:
        """Counts creations that were seen, or failed."""
        expected = self._expected.get(key)
        if expected is not None:
            expected.creations -= number

    def note_deleted(self, key: str, uid: str) -> None:
        """Removes the expected deletion of a UID: the object is gone, is being deleted, or could not be deleted."""
        expected = self._expected.get(key)
        if expected is not None:
            expected.deletions.discard(uid)

    def forget(self, key: str) -> None:
        """Drops the expectations of a removed object."""
        self._expected.pop(key, None)
