"""Requests that fail or are slow: the pauses between them, the log of an outage, and the executor of a decider.

Pauses after failures grow and are jittered, so that many clients do not return at the same moment.

An API server under load answers slowly, and the cost of writing a large object hardly depends on how much of it
changes. So a writer of states that nobody waits for pauses for a multiple of the duration of its last write: it writes
to a fast server at once, and to a slow one less often and more at a time. A write that a pod waits for never pauses:
changes that come while one is on its way share the next.

An :class:`Executor` carries out a decider's instructions as writes to the API server, one at a time per key.

A decider (pure) returns the due instructions on each call. The executor keeps the state between two decisions that the
decider need not know: the writes in flight, the keys that pause after a failure, and the answered writes that no watch
has shown yet. Rules:

1. One instruction per key is in flight. A second one is neither started nor queued: the decider returns it again.
2. The doer returns the hold of the key that follows: :data:`FREE`, :func:`hold_for`, :func:`until_observed`, or
   :meth:`Executor.back_off` after a failure. Nothing is started for a held key.
3. Pauses after failures double and have jitter (:class:`Backoff`); a success makes them short again.
4. ``wake`` is called after each answer, and when time ends a hold, so that the decider decides again.
5. A change of the object in the watch frees its key, also if the watch shows it before the answer to the write.
6. This state may be lost at any moment: a new process decides from its own observations.

The client's transport checks just before each write if this process may write at all
(:mod:`tessera.kube.requests`): the doer's client must be a fenced one.

Hand-written because controller libraries for Python (kopf, for instance) run one handler per object, and store its
progress in the object: four patches more for each pod (measured). Here one decision over all objects leads to many
writes. An instruction costs one task and one entry of a dictionary.
"""

import asyncio
import logging
import random
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from tessera.clock import Clock
from tessera.kube.errors import ApiError, BrokenAnswer
from tessera.text import age, one_line

#: Shortest and longest pause after failures of requests, seconds.
SHORTEST = 0.2
LONGEST = 30.0


class Backoff:
    """Doubling pauses.

    Args:
        rng: makes the jitter; seeded in tests.
        shortest: lower bound of every pause, seconds.
        longest: upper bound of every pause, seconds.
    """

    def __init__(self, rng: random.Random, *, shortest: float = SHORTEST, longest: float = LONGEST) -> None:
        self._rng = rng
        self._shortest = shortest
        self._longest = longest
        self._failures = 0

    @property
    def failures(self) -> int:
        """Failures in a row."""
        return self._failures

    def reset(self) -> None:
        """Resets the count of failures after a success: the next pause is short again."""
        self._failures = 0

    def next(self) -> float:
        """Counts a failure; returns the due pause in seconds, between half of the doubled one and all of it."""
        # The exponent is capped: after a thousand failures 2**n would overflow a float.
        doubled = self._shortest * 2.0 ** min(self._failures + 1, 32)
        self._failures += 1
        return min(self._longest, self._rng.uniform(doubled / 2, doubled))


#: Pause as a multiple of the last write's duration: the writer writes at most a fifth of the time.
_MULTIPLE = 4.0
#: Longest pause after a write, seconds: a state without a waiting reader may be this late.
_LATEST = 1.0
#: A server that answers within this time, in seconds, is not busy.
_QUICK = 0.01


def pause_after_write(write_seconds: float) -> float:
    """Seconds until a state may be written again, after a write that took so many seconds."""
    return 0.0 if write_seconds < _QUICK else min(_LATEST, write_seconds * _MULTIPLE)


#: Seconds without a failure after which an answer ends the outage. A server that answers some requests and not others
#: would else be told to fail and to answer again with each of them.
QUIET = 10.0
#: From this HTTP status on, the server itself is in trouble; 429 means that it is overloaded.
_SERVER_ERRORS, _OVERLOADED = 500, 429


class OutageLog:
    """Joins the failed requests of one outage.

    Args:
        log: the logger of the requests' sender.
        what: the requests, ``writes of slices``.
        clock: the time.
    """

    def __init__(self, log: logging.Logger, what: str, clock: Clock) -> None:
        self._log = log
        self._what = what
        self._clock = clock
        #: Requests that have failed in the present outage; 0 while there is none.
        self._failed = 0
        #: Monotonic times of the first and the last of them.
        self._began = self._last = 0.0

    def note_failure(self, error: Exception) -> bool:
        """Takes in that a request failed.

        Returns:
            True if the server was in trouble, which is logged here. False if it answered, and refused this request.
        """
        if isinstance(error, ApiError) and not _is_trouble(error):
            self.note_answer()
            return False
        self._last = self._clock.monotonic()
        if not self._failed:
            self._began = self._last
            self._log.warning("%s fail, further failures are counted until they succeed: %s", self._what, _text(error))
        self._failed += 1
        return True

    def note_answer(self) -> None:
        """Takes in that the server answered a request."""
        now = self._clock.monotonic()
        if self._failed and now >= self._last + QUIET:
            self._log.warning(
                "%s succeed again: %d failed in %s", self._what, self._failed, age(self._last - self._began)
            )
            self._failed = 0


def _is_trouble(error: ApiError) -> bool:
    return not isinstance(error, BrokenAnswer) and (error.code >= _SERVER_ERRORS or error.code == _OVERLOADED)


def _text(error: Exception) -> str:
    return one_line(str(error) or type(error).__name__)


Instruction = TypeVar("Instruction")
_Given_contra = TypeVar("_Given_contra", contravariant=True)

#: Failures that a doer may raise: the server refused, did not answer, or the fence held the write back.
RequestError = ApiError | ConnectionError | TimeoutError


@dataclass(frozen=True, slots=True)
class Hold:
    """A time in which nothing is started for a key, after an instruction has ended.

    Attributes:
        seconds: how long; None for no limit.
        ends_when_observed: True if the hold ends as soon as the watch shows a change of the object.
        failed: True if the hold follows a failure; the count of failures in a row then goes on.
    """

    seconds: float | None
    ends_when_observed: bool = False
    failed: bool = False


#: The key is free at once.
FREE = Hold(0.0)


def hold_for(seconds: float) -> Hold:
    """The key is free after so many seconds."""
    return Hold(seconds) if seconds > 0 else FREE


def until_observed(at_most: float | None) -> Hold:
    """The key is free once the watch shows a change of the object, at the latest after so many seconds."""
    return Hold(at_most, ends_when_observed=True)


class Doer(Protocol[_Given_contra]):
    """Carries out one kind of instructions."""

    async def perform(self, instruction: _Given_contra) -> Hold:
        """Sends the writes of an instruction and takes in the answer.

        Raises:
            ApiError: the server refused.
            ConnectionError: there was no answer, or this process must not write any more.
            TimeoutError: there was no answer in time.
        """
        ...

    def handle_failure(self, instruction: _Given_contra, error: RequestError) -> Hold:
        """Handles an error of :meth:`perform`; returns the hold that follows."""
        ...

    def handle_release(self, instruction: _Given_contra, hold: Hold) -> None:
        """Handles the end of a hold other than :data:`FREE`."""
        ...


@dataclass(slots=True)
class _HeldKey(Generic[Instruction]):
    """The last instruction of a held key (None after :meth:`Executor.postpone`), its hold, and the timer of its end."""

    instruction: Instruction | None
    hold: Hold
    timer: asyncio.TimerHandle | None


class Executor(Generic[Instruction]):
    """Starts instructions and remembers which keys are busy.

    Args:
        doer: carries out one instruction.
        wake: called when the decider should decide again.
        rng: for jitter of pauses.
    """

    def __init__(self, doer: Doer[Instruction], *, wake: Callable[[], None], rng: random.Random) -> None:
        self._doer = doer
        self._wake = wake
        self._rng = rng
        #: Instructions that were started and not answered, by key.
        self._in_flight: dict[Hashable, Instruction] = {}
        #: Keys in flight whose object has changed in the watch meanwhile. A subset of ``_in_flight``.
        self._overtaken: set[Hashable] = set()
        #: Keys that are held after an answer. None of them is in ``_in_flight``.
        self._held: dict[Hashable, _HeldKey[Instruction]] = {}
        #: Failures in a row, by key; without an entry there was none.
        self._backoffs: dict[Hashable, Backoff] = {}
        #: Timers of :meth:`call_later` that have not fired.
        self._timers: set[asyncio.TimerHandle] = set()

    def start(self, key: Hashable, instruction: Instruction, group: asyncio.TaskGroup) -> bool:
        """Starts an instruction as a task of the group; returns False and does nothing if its key is busy."""
        if key in self._in_flight or key in self._held:
            return False
        self._in_flight[key] = instruction
        group.create_task(self._carry_out(key, instruction))
        return True

    def is_in_flight(self, key: Hashable) -> bool:
        """True if an instruction of this key was started and not answered."""
        return key in self._in_flight

    def awaits_observation(self, key: Hashable) -> bool:
        """True if an instruction of this key was answered, and the watch has not shown its outcome yet."""
        held = self._held.get(key)
        return held is not None and held.hold.ends_when_observed

    def is_busy(self, key: Hashable) -> bool:
        """True if an instruction of this key would not be started now."""
        return key in self._in_flight or key in self._held

    def objects_changed(self, keys: Iterable[Hashable]) -> None:
        """Frees keys whose objects have changed in the watch. Does not call ``wake``: the caller decides next."""
        for key in keys:
            if key in self._in_flight:
                self._overtaken.add(key)
            elif self.awaits_observation(key):
                self._release(key)

    def postpone(self, key: Hashable, seconds: float) -> None:
        """Holds a free key for some seconds without an instruction; a busy key stays as it is."""
        if not self.is_busy(key):
            self._hold(key, None, Hold(seconds))

    def back_off(self, key: Hashable) -> Hold:
        """Counts a failure; returns the hold with the next pause."""
        return Hold(self._backoffs.setdefault(key, Backoff(self._rng)).next(), failed=True)

    def call_later(self, seconds: float, act: Callable[[], object]) -> None:
        """After so many seconds, calls ``act`` and then ``wake``; :meth:`stop` cancels this."""

        def fire() -> None:
            self._timers.discard(timer)
            act()
            self._wake()

        timer = asyncio.get_running_loop().call_later(seconds, fire)
        self._timers.add(timer)

    def stop(self) -> None:
        """Cancels all timers. Instructions in flight end with the group that they were started in."""
        for timer in (*self._timers, *(held.timer for held in self._held.values())):
            if timer is not None:
                timer.cancel()
        self._timers.clear()
        self._held.clear()

    async def _carry_out(self, key: Hashable, instruction: Instruction) -> None:
        try:
            try:
                hold = await self._doer.perform(instruction)
            except (ApiError, ConnectionError, TimeoutError) as error:
                hold = self._doer.handle_failure(instruction, error)
        finally:
            del self._in_flight[key]
            overtaken = key in self._overtaken
            self._overtaken.discard(key)
        if not hold.failed:
            self._backoffs.pop(key, None)
        if hold.ends_when_observed and overtaken:
            self._doer.handle_release(instruction, hold)
        elif hold is not FREE:
            self._hold(key, instruction, hold)
        self._wake()

    def _hold(self, key: Hashable, instruction: Instruction | None, hold: Hold) -> None:
        timer = None
        if hold.seconds is not None:
            timer = asyncio.get_running_loop().call_later(hold.seconds, self._expire, key)
        self._held[key] = _HeldKey(instruction, hold, timer)

    def _expire(self, key: Hashable) -> None:
        self._release(key)
        self._wake()

    def _release(self, key: Hashable) -> None:
        held = self._held.pop(key)
        if held.timer is not None:
            held.timer.cancel()
        if held.instruction is not None:
            self._doer.handle_release(held.instruction, held.hold)
