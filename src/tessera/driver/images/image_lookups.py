"""Looks images up in the background, and again when the answer may have changed.

The resolver caches by reference and paces its requests. This module keeps the latest answer to each query, since the
planner cannot wait, and reports each new answer. Queries that no pool needs are dropped.
"""

import asyncio
import random
from collections.abc import Callable, Iterable, Mapping

from tessera.clock import Clock
from tessera.driver.resolution import ImageQuery, Outcome, Resolution, Resolver
from tessera.kube.backoff import Backoff

#: Seconds after which a query is repeated: found images rarely change, but a missing one may be pushed at any moment.
FOUND_FOR = 1800.0
MISSING_FOR = 120.0
#: Pauses while a registry does not answer, seconds.
_FIRST_PAUSE, _LONGEST_PAUSE = 5.0, 60.0


class ImageLookups:
    """Queries and their latest answers.

    Args:
        resolver: looks images up.
        clock: the time.
        rng: random numbers that spread queries over time.
        answered: called after each answer, also after an unchanged one, since the query then has a new time.
    """

    def __init__(self, resolver: Resolver, clock: Clock, *, rng: random.Random, answered: Callable[[], None]) -> None:
        self._resolver = resolver
        self._clock = clock
        self._rng = rng
        self._answered = answered
        #: Latest answer of each query.
        self._answers: dict[ImageQuery, Resolution] = {}
        #: When a query is looked up again, monotonic seconds. Each key has an answer.
        self._due: dict[ImageQuery, float] = {}
        #: The time since which a query's registry is unreachable, monotonic seconds.
        self._unanswered_since: dict[ImageQuery, float] = {}
        #: Pauses of queries in ``_unanswered_since``.
        self._backoffs: dict[ImageQuery, Backoff] = {}
        #: Queries in progress.
        self._running: set[ImageQuery] = set()

    @property
    def answers(self) -> Mapping[ImageQuery, Resolution]:
        """The latest answers; a query without an entry was never answered."""
        return dict(self._answers)

    def unanswered_for(self, queries: Iterable[ImageQuery]) -> float:
        """Seconds for which at least one of the queries has had no answer from its registry; 0 if all have one."""
        since = [self._unanswered_since[query] for query in queries if query in self._unanswered_since]
        return self._clock.monotonic() - min(since) if since else 0.0

    def retain(self, queries: Iterable[ImageQuery]) -> None:
        """Drops all other queries."""
        kept = set(queries)
        for memory in (self._answers, self._due, self._unanswered_since, self._backoffs):
            for query in memory.keys() - kept:
                del memory[query]

    def start(self, queries: Iterable[ImageQuery], group: asyncio.TaskGroup) -> None:
        """Starts queries that were never answered, or that are due again."""
        now = self._clock.monotonic()
        due = [query for query, when in self._due.items() if when <= now]
        for query in dict.fromkeys([*queries, *due]):
            if query not in self._running and self._due.get(query, now) <= now:
                self._running.add(query)
                group.create_task(self._look_up(query, fresh=query in self._answers))

    def recheck_image(self, image: str) -> None:
        """Repeats at once the queries that led to an image."""
        self._recheck(query for query, answer in self._answers.items() if image in {answer.pinned, answer.reference})

    def recheck_repository(self, repository: str) -> None:
        """Repeats at once all queries about a repository."""
        self._recheck(query for query in self._answers if query.source.repository == repository)

    def _recheck(self, queries: Iterable[ImageQuery]) -> None:
        for query in list(queries):
            self._due[query] = self._clock.monotonic()

    def seconds_until_due(self) -> float | None:
        """Seconds until a query is due again; None if none is."""
        times = [when for query, when in self._due.items() if query not in self._running]
        return max(0.0, min(times) - self._clock.monotonic()) if times else None

    async def _look_up(self, query: ImageQuery, *, fresh: bool) -> None:
        try:
            answer = await self._resolver.resolve(query, fresh=fresh)
        finally:
            self._running.discard(query)
        self._answers[query] = answer
        self._schedule(query, answer)
        self._answered()

    def _schedule(self, query: ImageQuery, answer: Resolution) -> None:
        now = self._clock.monotonic()
        if answer.outcome is Outcome.UNREACHABLE or answer.stale:
            self._unanswered_since.setdefault(query, now)
            backoff = self._backoffs.setdefault(
                query, Backoff(self._rng, shortest=_FIRST_PAUSE, longest=_LONGEST_PAUSE)
            )
            self._due[query] = now + backoff.next()
            return
        self._unanswered_since.pop(query, None)
        self._backoffs.pop(query, None)
        seconds = FOUND_FOR if answer.outcome is Outcome.FOUND else MISSING_FOR
        self._due[query] = now + seconds * self._rng.uniform(0.9, 1.1)
