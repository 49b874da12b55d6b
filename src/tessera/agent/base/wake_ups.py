"""When a part of an agent acts again: at a change of a fact that it depends on, or some time after a failed call.

One signal serves all parts. A part says which facts it depends on (:meth:`ChangeNotifier.about`), and wakes at no
others. It reads the facts themselves, so the signal does not say what the new value is, and several changes may cause
one wake-up. A part that waits may have caused a change by its own writes. So a part that must pause, as after a
failure, waits with :meth:`ChangeNotifier.wait_differs`: it names the values that end its pause.

A call that changes a card and fails is tried again after a delay that doubles with each failure in a row
(:class:`CallRetries`, pure). A compute instance that cannot be created leaves its GPU instance half made; that GPU
instance must go before the next attempt. ``now`` is an argument everywhere, monotonic seconds.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Hashable, Iterator
from enum import Enum, Flag, auto
from typing import Generic, TypeVar

import msgspec

from tessera.clock import until_set

T = TypeVar("T")


class Fact(Flag):
    """A kind of change that a part of an agent, or the watch of an object, announces."""

    #: Labels and annotations of the agent's domains on the Node, and the Node's conditions.
    NODE = auto()
    #: Annotations of the Node, of an agent's domains.
    NODE_ANNOTATIONS = auto()
    #: Capacity, allocatable, or the machine in the Node's status; another Node of the same name.
    NODE_STATUS = auto()
    #: The pods of the node that ask for devices.
    PODS = auto()
    #: A pod that was told of its card's health.
    TOLD_PODS = auto()
    #: The desired sharing profile.
    DESIRED_PROFILE = auto()
    #: The desired MIG layout.
    DESIRED_LAYOUT = auto()
    #: How the slices of the node are given: by ResourceClaims or by the device plugin.
    DEVICE_API = auto()
    #: The repairs of cards and nodes that the administrator allows.
    REPAIRS = auto()
    #: The driver: its markers, its module, and whether it may be used.
    DRIVER = auto()
    #: The reading of the cards.
    CARDS = auto()
    #: The side of the agent that has each card, or is to get it.
    OWNERS = auto()
    #: Faults of cards, and the probes that are due.
    HEALTH = auto()
    #: The state of the MIG layout: goals, fences, and the status of each card.
    LAYOUT = auto()
    #: Slices on demand: promises, instances, and the cards that are cut.
    SLICES = auto()
    #: The resources that are served on demand, and the cards behind them: which they are, and if they answer.
    SLICE_RESOURCES = auto()
    #: The MPS daemons.
    MPS = auto()
    #: The offer of the static cards, and the cards that ResourceClaims get in shares.
    OFFER = auto()
    #: The entries of the offer that are held or withheld, and what is wrong with it.
    ENTRIES = auto()
    #: Devices that a container has just got, or starts with.
    ALLOCATIONS = auto()
    #: Kubelet has read a list of devices, or refused a resource.
    LISTS = auto()


#: All facts.
EVERY = ~Fact(0)


class _Signal:
    """The changes of all facts, and those who wait for some; facts are bits, of which every change tests many."""

    def __init__(self) -> None:
        self.counts: Counter[int] = Counter()
        self.waiters: dict[asyncio.Event, int] = {}


class ChangeNotifier:
    """Wakes the parts that wait for a fact.

    Args:
        facts: the facts for which :attr:`count` and the waits stand.
    """

    def __init__(self, facts: Fact = EVERY) -> None:
        self._facts: int = facts.value
        self._signal = _Signal()

    def about(self, facts: Fact) -> "ChangeNotifier":
        """The same signal for one who depends on these facts only."""
        found = ChangeNotifier(facts)
        found._signal = self._signal
        return found

    @property
    def count(self) -> int:
        """The number of changes so far; equal counts mean that nothing happened in between."""
        return sum(count for fact, count in self._signal.counts.items() if fact & self._facts)

    def notify(self, facts: Fact = EVERY) -> None:
        """Announces that facts changed."""
        happened: int = facts.value
        self._signal.counts[happened] += 1
        for waiter, wanted in self._signal.waiters.items():
            if wanted & happened:
                waiter.set()

    async def wait(self, count: int, seconds: float | None = None) -> None:
        """Returns at the first change after ``count`` (an earlier :attr:`count`), or after ``seconds``."""
        if self.count != count:
            return
        waiter = asyncio.Event()
        self._signal.waiters[waiter] = self._facts
        try:
            await until_set(waiter, seconds)
        finally:
            del self._signal.waiters[waiter]

    async def wait_differs(self, facts: Callable[[], T], before: T, seconds: float | None = None) -> None:
        """Returns once ``facts()`` is no longer ``before``, or after ``seconds``; no other change ends the wait."""
        await self.wait_until(lambda: facts() != before, seconds)

    async def wait_until(self, condition: Callable[[], bool], seconds: float | None) -> bool:
        """Waits until a condition holds; ``False`` if it does not hold within ``seconds``."""
        try:
            async with asyncio.timeout(seconds):
                while not condition():
                    await self.wait(self.count)
        except TimeoutError:
            return condition()
        return True


K = TypeVar("K", bound=Hashable)


class CallFailure(Enum):
    """Reason for a failed call, as far as the next step depends on it."""

    #: A pod or process still uses the card or instance.
    BUSY = "busy"
    #: Any other reason.
    REFUSED = "refused"
    #: The card must be reset before it works again.
    NEEDS_RESET = "needs-reset"


class RetryDelays(msgspec.Struct, frozen=True):
    """Delays between attempts in seconds: ``first``, doubled with each further attempt, at most ``most``."""

    first: float
    most: float

    def after(self, attempts: int) -> float:
        """The delay after so many failed attempts in a row, 1 or more."""
        return min(self.most, self.first * 2.0 ** min(attempts - 1, 16))


class FailedCall(msgspec.Struct, frozen=True):
    """A call that failed.

    Attributes:
        attempts: failures in a row.
        retry_at: time at which the next attempt is due.
        text: why the call failed, for people.
        failure: the kind of failure.
        half_made: true if a compute instance could not be created, so that its GPU instance must be destroyed first.
        undo_failed: true if the last call destroyed that GPU instance, and failed.
    """

    attempts: int
    retry_at: float
    text: str
    failure: CallFailure
    half_made: bool = False
    undo_failed: bool = False


class CallRetries(Generic[K]):
    """The failed calls of one card, or of all cards of a node.

    Args:
        refused: delays after a failure.
        busy: delays while a process still uses the device; it ends soon after its pod.
    """

    def __init__(self, refused: RetryDelays, busy: RetryDelays) -> None:
        self._refused = refused
        self._busy = busy
        #: By key, the calls that failed and are still to be made. The caller drops those that are no longer needed.
        self._failed: dict[K, FailedCall] = {}

    def record(
        self, key: K, failure: CallFailure, text: str, now: float, *, half_made: bool = False, undo_failed: bool = False
    ) -> FailedCall:
        """Counts a failed call.

        Args:
            key: the place of the call on its card, or its kind.
            failure: the kind of failure.
            text: why it failed, for people.
            now: time of the failure.
            half_made: true if the call created a compute instance.
            undo_failed: true if the call destroyed a GPU instance.
        """
        before = self._failed.get(key)
        attempts = before.attempts + 1 if before is not None else 1
        delays = self._busy if failure is CallFailure.BUSY else self._refused
        failed = self._failed[key] = FailedCall(
            attempts=attempts,
            retry_at=now + delays.after(attempts),
            text=text,
            failure=failure,
            half_made=half_made or (before is not None and before.half_made),
            undo_failed=undo_failed,
        )
        return failed

    def last_failure(self, key: K) -> FailedCall | None:
        """The last failure of a call; ``None`` if it did not fail."""
        return self._failed.get(key)

    def is_due(self, key: K, now: float) -> bool:
        """True if the next attempt may be made now."""
        failed = self._failed.get(key)
        return failed is None or failed.retry_at <= now

    def is_half_made(self, key: K) -> bool:
        """True if the GPU instance there must go because its compute instance could not be created."""
        failed = self._failed.get(key)
        return failed is not None and failed.half_made

    def can_undo(self, key: K) -> bool:
        """True if the GPU instance there must go, and no attempt to destroy it has just failed."""
        failed = self._failed.get(key)
        return failed is not None and failed.half_made and not failed.undo_failed

    def retry_now(self, key: K) -> None:
        """Makes the next attempt due at once, and counts anew."""
        failed = self._failed.get(key)
        if failed is not None:
            self._failed[key] = msgspec.structs.replace(failed, attempts=0, retry_at=0.0)

    def forget_instance(self, key: K) -> None:
        """Takes in that there is no GPU instance any longer, so none is half made."""
        failed = self._failed.get(key)
        if failed is not None:
            self._failed[key] = msgspec.structs.replace(failed, half_made=False, undo_failed=False)

    def drop(self, key: K) -> None:
        """Forgets the failures of a call that succeeded or is no longer needed."""
        self._failed.pop(key, None)

    def clear(self) -> None:
        """Forgets all failures, so that everything is tried at once."""
        self._failed.clear()

    def failed_keys(self) -> tuple[K, ...]:
        """The keys of all failed calls."""
        return tuple(self._failed)

    def retry_times(self) -> Iterator[tuple[K, float]]:
        """By key, the time at which the next attempt is due."""
        return ((key, failed.retry_at) for key, failed in self._failed.items())

    def most_frequent_failure(self) -> tuple[K, FailedCall] | None:
        """The call that failed most often in a row."""
        return max(self._failed.items(), key=lambda item: item[1].attempts, default=None)
