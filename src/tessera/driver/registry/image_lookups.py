"""Looks images up in the background, again when an answer may have changed; keeps pulls that failed on nodes.

The resolver caches by reference and paces its requests. This module keeps the latest answer to each query, since the
planner cannot wait, and reports each new answer. Queries that no pool needs are dropped. An image that a kubelet
recently failed to pull counts as missing, even if its registry has it.
"""

import asyncio
import random
from collections.abc import Callable, Iterable, Mapping

from tessera.clock import Clock
from tessera.driver.images import ImageQuery, Outcome, Resolution, Resolver
from tessera.kube.retries import Backoff

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


#: Seconds for which an image counts as missing after a kubelet failed to pull it.
PULL_FAILURE_SECONDS = 600.0


class ImagePullFailures:
    """Images that could not be pulled, each for a limited time.

    Args:
        clock: the time.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._known: dict[str, tuple[str, float]] = {}  # image -> kubelet's words, and until when, monotonic

    @property
    def reasons(self) -> Mapping[str, str]:
        """Reasons that images cannot be pulled, in kubelet's words, by image."""
        self._expire()
        return {image: text for image, (text, _) in self._known.items()}

    def add(self, image: str, text: str) -> bool:
        """Records that a kubelet could not pull an image; returns True if that is new."""
        self._expire()
        news = image not in self._known
        self._known[image] = (text, self._clock.monotonic() + PULL_FAILURE_SECONDS)
        return news

    def forget(self, image: str) -> None:
        """Forgets an image's failure, since a node runs it."""
        self._known.pop(image, None)

    def seconds_until_due(self) -> float | None:
        """Seconds until a failure expires; None if there is none."""
        self._expire()
        now = self._clock.monotonic()
        return min((until - now for _, until in self._known.values()), default=None)

    def _expire(self) -> None:
        now = self._clock.monotonic()
        self._known = {image: known for image, known in self._known.items() if known[1] > now}
