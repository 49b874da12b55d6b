"""What a person may see on the page: reviews of rights, remembered and bounded.

1. Who may not list nodes gets no names of nodes; a pod's names go to those who may list pods in its namespace.
2. A right that could not be asked for counts as missing: names stay hidden. Answers that are in use have a pace of
   their own, so that many new visitors do not let those of others run out.
3. Rights are asked for the namespaces that the documents name. A namespace counts for some minutes after its last
   document, so that a short job's coming and going does not give its readers a new snapshot each time.
"""

import asyncio
import contextlib
from collections.abc import Callable, Sequence

from tessera.clock import Clock
from tessera.dashboard.access.pace import Pace
from tessera.dashboard.access.review_cache import BusyError, ReviewCache, SilentError
from tessera.dashboard.access.reviewer import Person, Reviewer, Right
from tessera.dashboard.visibility import Visibility
from tessera.limits.access import PAGE_NAMESPACES, PAGE_REVIEWS, PAGE_RIGHTS, RIGHTS_LIFE

#: Seconds for which a namespace counts after its last document.
_REMEMBERED = 600.0
_NODES, _PODS = Right("list", "nodes"), Right("list", "pods")


class Rights:
    """Decides what persons see.

    Args:
        reviewer: asks the API server.
        clock: the time.
        namespaces: the namespaces that the documents name now.
    """

    def __init__(self, reviewer: Reviewer, clock: Clock, namespaces: Callable[[], frozenset[str]]) -> None:
        self._reviewer = reviewer
        self._clock = clock
        #: For answers that must not run out, and for new ones.
        self._renewals, self._first = Pace(PAGE_REVIEWS), Pace(PAGE_REVIEWS)
        self._namespaces = namespaces
        self._answers: ReviewCache[tuple[Person, Right], bool] = ReviewCache(clock, RIGHTS_LIFE, PAGE_RIGHTS)
        #: The time of the last document about each namespace, the longest ago first.
        self._named: dict[str, float] = {}

    async def visibility(self, person: Person) -> Visibility:
        """What the person may see now."""
        return await self._visibility(person, self._current())

    async def visibility_in(self, person: Person, namespace: str) -> Visibility:
        """What the person may see now, of pods only in one namespace or in all."""
        return await self._visibility(person, [namespace])

    async def _visibility(self, person: Person, names: Sequence[str]) -> Visibility:
        nodes, everywhere = await self._may(person, [_NODES, _PODS])
        if everywhere:
            return Visibility(nodes=nodes, namespaces=None)
        found = await self._may(person, [_PODS._replace(namespace=name) for name in names])
        allowed = frozenset(name for name, may in zip(names, found, strict=True) if may)
        return Visibility(nodes=nodes, namespaces=allowed)

    def _current(self) -> list[str]:
        """The namespaces that count, at most :data:`PAGE_NAMESPACES`; those with the newest documents first."""
        now = self._clock.monotonic()
        for name in self._namespaces():
            self._named.pop(name, None)
            self._named[name] = now
        for name in [name for name, last in self._named.items() if now - last > _REMEMBERED]:
            del self._named[name]
        for name in list(self._named)[:-PAGE_NAMESPACES]:
            del self._named[name]
        return list(reversed(self._named))

    async def _may(self, person: Person, rights: Sequence[Right]) -> list[bool]:
        """Whether the person has each right; those without a fresh answer are asked for at the same time."""
        missing = [right for right in rights if self._answers.fresh((person, right)) is None]
        if missing:
            await asyncio.gather(*(self._ask(person, right) for right in missing))
        return [bool(self._answers.peek((person, right))) for right in rights]

    async def _ask(self, person: Person, right: Right) -> None:
        pace = self._first if self._answers.peek((person, right)) is None else self._renewals
        with contextlib.suppress(BusyError, SilentError):
            await self._answers.get((person, right), lambda: self._reviewer.review_access(person, right), pace)
