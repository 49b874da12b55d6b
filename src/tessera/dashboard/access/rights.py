"""What a person may see on the page: reviews of rights, remembered and bounded.

1. Who may not list nodes gets no names of nodes; a pod's names go to those who may list pods in its namespace.
2. A right that could not be asked for counts as missing: names stay hidden. Answers that are in use have a pace of
   their own, so that many new visitors do not let those of others run out.
3. A Workload of Kueue is for those who may list Workloads in its namespace; without any, nobody is asked about.
4. Rights are asked for the namespaces that the documents name. A namespace counts for some minutes after its last
   document, so that a short job's coming and going does not give its readers a new snapshot each time.
"""

import asyncio
import contextlib
from collections.abc import Callable, Sequence

from tessera.clock import Clock
from tessera.dashboard.access.pace import Pace
from tessera.dashboard.access.review_cache import BusyError, ReviewCache, SilentError
from tessera.dashboard.access.reviewer import Person, Reviewer, Right
from tessera.dashboard.visibility import About, Visibility
from tessera.kueue.names import GROUP
from tessera.limits.access import PAGE_NAMESPACES, PAGE_REVIEWS, PAGE_RIGHTS, RIGHTS_LIFE

#: Seconds for which a namespace counts after its last document.
_REMEMBERED = 600.0
_NODES, _PODS = Right("list", "nodes"), Right("list", "pods")
_WORKLOADS = Right("list", "workloads", group=GROUP)


class Rights:
    """Decides what persons see.

    Args:
        reviewer: asks the API server.
        clock: the time.
        about: the namespaces that the documents are about now.
    """

    def __init__(self, reviewer: Reviewer, clock: Clock, about: Callable[[], About]) -> None:
        self._reviewer = reviewer
        #: For answers that must not run out, and for new ones.
        self._renewals, self._first = Pace(PAGE_REVIEWS), Pace(PAGE_REVIEWS)
        self._about = about
        self._answers: ReviewCache[tuple[Person, Right], bool] = ReviewCache(clock, RIGHTS_LIFE, PAGE_RIGHTS)
        self._pods, self._workloads = _RecentNamespaces(clock), _RecentNamespaces(clock)

    async def visibility(self, person: Person) -> Visibility:
        """What the person may see now."""
        about = self._about()
        found = await self._visibility(person, self._pods.current(about.pods))
        workloads = self._workloads.current(about.workloads)
        return found._replace(workloads=await self._allowed(person, _WORKLOADS, workloads)) if workloads else found

    async def visibility_in(self, person: Person, namespace: str) -> Visibility:
        """What the person may see now, of pods only in one namespace or in all."""
        return await self._visibility(person, [namespace])

    async def _visibility(self, person: Person, names: Sequence[str]) -> Visibility:
        nodes, _ = await self._may(person, [_NODES, _PODS])
        return Visibility(nodes=nodes, namespaces=await self._allowed(person, _PODS, names))

    async def _allowed(self, person: Person, right: Right, names: Sequence[str]) -> frozenset[str] | None:
        """The namespaces of these in which the person has the right; None if it is for all."""
        (everywhere,) = await self._may(person, [right])
        if everywhere:
            return None
        found = await self._may(person, [right._replace(namespace=name) for name in names])
        return frozenset(name for name, may in zip(names, found, strict=True) if may)

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


class _RecentNamespaces:
    """The namespaces that documents of one kind have named of late."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        #: The time of the last document about each namespace, the longest ago first.
        self._named: dict[str, float] = {}

    def current(self, named: frozenset[str]) -> list[str]:
        """The namespaces that count, at most :data:`PAGE_NAMESPACES`; those with the newest documents first.

        Args:
            named: those that documents name now.
        """
        now = self._clock.monotonic()
        for name in named:
            self._named.pop(name, None)
            self._named[name] = now
        for name in [name for name, last in self._named.items() if now - last > _REMEMBERED]:
            del self._named[name]
        for name in list(self._named)[:-PAGE_NAMESPACES]:
            del self._named[name]
        return list(reversed(self._named))
