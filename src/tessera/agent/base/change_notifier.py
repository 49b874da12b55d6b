"""One signal for all parts of an agent: a fact changed, check again.

A part says which facts it depends on (:meth:`ChangeNotifier.about`), and wakes at no others. It reads the facts
themselves, so the signal does not say what the new value is, and several changes may cause one wake-up.

A part that waits may have caused a change by its own writes. So a part that must pause, as after a failure, waits with
:meth:`ChangeNotifier.wait_differs`: it names the values that end its pause.
"""

import asyncio
from collections import Counter
from collections.abc import Callable
from enum import Flag, auto
from typing import TypeVar

T = TypeVar("T")


class Fact(Flag):
    """What one part of an agent, or the watch of one object, announces."""

    #: What an agent shows on the Node: labels and annotations of its domains, and conditions.
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
    #: What the administrator lets Tessera do about cards with faults.
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
    #: The resources that are served on demand.
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
            async with asyncio.timeout(seconds):
                await waiter.wait()
        except TimeoutError:
            return
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
