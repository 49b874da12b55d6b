"""Looks driver images up: the first candidate that a registry has, by digest, remembered as long as it may be trusted.

Rules:

1. Candidates are asked in order. One that is not there, or only for another architecture, leads to the next. One that
   is refused ends the search. Behind one that gets no answer, only what is remembered counts: the next name might be
   there, but is worse, and nodes would change their driver because a registry had a bad minute.
2. What was found is believed for :data:`FOUND_FOR`, then its digest alone is asked for (``HEAD``); what was not there,
   for :data:`MISSING_FOR`, since it may be pushed any moment.
3. One reference is asked for once at a time, however many wait for it.
4. A registry that does not answer is not asked again before a pause that grows and is spread at random. Meanwhile, and
   after, the last image that was found counts, marked ``stale``. A clear answer (gone, refused, other architecture)
   ends that.
5. What was found last can be taken out and put back as plain data, so that a restart during an outage forgets nothing.
"""

import asyncio
import random
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable, Sequence

import msgspec

from tessera.clock import Clock
from tessera.driver.image_tags import Candidate, SourceError, candidates
from tessera.driver.registry.client import RegistryClient, RegistryImage
from tessera.driver.registry.errors import RegistryError, RegistryUnreachable
from tessera.driver.registry.keyring import CredentialsError, Keyring
from tessera.driver.registry.reference import Reference, ReferenceFormatError, parse
from tessera.driver.resolution import ImageQuery, Outcome, Resolution, TriedReference
from tessera.kube.backoff import Backoff
from tessera.limits import REMEMBERED_REFERENCES

#: Seconds for which an answer is believed, by outcome.
FOUND_FOR = 1800.0
MISSING_FOR = 60.0

#: Pauses before a registry that did not answer is asked again, seconds.
FIRST_PAUSE = 5.0
LONGEST_PAUSE = 600.0


#: Failures, those first that say least about what is there.
_BY_UNCERTAINTY = (Outcome.UNREACHABLE, Outcome.UNAUTHORIZED, Outcome.WRONG_ARCHITECTURE, Outcome.NOT_FOUND)


class CachedImage(msgspec.Struct, frozen=True, kw_only=True):
    """What was found last under a reference, for an architecture."""

    reference: str
    architecture: str
    top: str
    digest: str
    size_bytes: int
    checked: float


class _LookupResult(msgspec.Struct, frozen=True, kw_only=True):
    """What became of one reference.

    Attributes:
        outcome: of the last answer.
        text: it in a sentence.
        good: what was found, now or, if the registry does not answer, last.
        until: the clock's monotonic seconds up to which this needs no asking.
    """

    outcome: Outcome
    text: str
    image: CachedImage | None
    until: float


_Key = tuple[str, str, tuple[str, ...]]

#: From the names of pull secrets to what is in them.
Secrets = Callable[[tuple[str, ...]], Awaitable[Keyring]]


async def no_secrets(names: tuple[str, ...]) -> Keyring:
    """Nobody's credentials, whatever is named."""
    del names
    return Keyring()


class RegistryResolver:
    """Resolves against registries; implements :class:`~tessera.driver.resolution.Resolver`.

    Args:
        clock: tells how old answers are.
        client: asks.
        secrets: the credentials in a source's pull secrets. ``CredentialsError`` means that they are not as they
            should be, ``OSError`` that they cannot be read now.
        rng: spreads pauses; seeded in tests.
        parallel: requests that may be under way at once.
        found_for: seconds, see :data:`FOUND_FOR`.
        missing_for: seconds, see :data:`MISSING_FOR`.
    """

    def __init__(
        self,
        clock: Clock,
        *,
        client: RegistryClient,
        secrets: Secrets = no_secrets,
        rng: random.Random,
        parallel: int = 8,
        found_for: float = FOUND_FOR,
        missing_for: float = MISSING_FOR,
    ) -> None:
        self._clock = clock
        self._client = client
        self._secrets = secrets
        self._rng = rng
        self._slots = asyncio.Semaphore(parallel)
        self._found_for = found_for
        self._missing_for = missing_for
        #: Newest results, least recently used first; at most :data:`REMEMBERED_REFERENCES`.
        self._results: OrderedDict[_Key, _LookupResult] = OrderedDict()
        #: Lookups in flight: one per key, however many callers wait.
        self._flights: dict[_Key, asyncio.Task[_LookupResult]] = {}
        #: By repository: its back-off, and until when it is not asked, monotonic seconds.
        self._pauses: dict[str, tuple[Backoff, float]] = {}
        #: Images from an earlier process, by reference and architecture; a clear answer removes its entry.
        self._restored: dict[tuple[str, str], CachedImage] = {}

    async def resolve(self, query: ImageQuery, *, fresh: bool = False) -> Resolution:
        """The answer; ``fresh`` asks the registry whatever is remembered."""
        try:
            names = candidates(query)
        except SourceError as error:
            return self._failed_resolution(Outcome.NOT_FOUND, str(error))
        if not names:
            return self._failed_resolution(
                Outcome.NOT_FOUND, f"{query.source.version!r} has no image of a {query.kind.value}"
            )
        tried: list[TriedReference] = []
        silent = False
        for each in names:
            look = await self._look_up(each.reference, query, fresh=fresh and not silent)
            tried.append(TriedReference(reference=each.reference, outcome=look.outcome, text=look.text))
            silent = silent or look.outcome is Outcome.UNREACHABLE
            if look.image is not None:
                return _found_resolution(each, look.image, tuple(tried), stale=silent)
            if look.outcome is Outcome.UNAUTHORIZED:
                break
        return Resolution(outcome=_decisive_outcome(tried), tried=tuple(tried), checked=self._clock.now())

    async def close(self) -> None:
        """Ends what is under way and frees the connections."""
        flights = list(self._flights.values())
        for each in flights:
            each.cancel()
        await asyncio.gather(*flights, return_exceptions=True)
        await self._client.close()

    def cached_images(self) -> tuple[CachedImage, ...]:
        """All that was found last, to be kept by whoever outlives this process."""
        found = {**self._restored, **{key[:2]: look.image for key, look in self._results.items() if look.image}}
        return tuple(found.values())

    def restore(self, images: Iterable[CachedImage]) -> None:
        """Takes back what :meth:`cached_images` gave. It counts only while its registry does not answer."""
        self._restored.update({(each.reference, each.architecture): each for each in images})

    def _failed_resolution(self, outcome: Outcome, text: str) -> Resolution:
        tried = (TriedReference(reference="", outcome=outcome, text=text),)
        return Resolution(outcome=outcome, tried=tried, checked=self._clock.now())

    async def _look_up(self, text: str, query: ImageQuery, *, fresh: bool) -> _LookupResult:
        key = (text, query.pool.architecture, query.source.pull_secrets)
        known = self._results.get(key)
        if known is not None and not fresh and self._clock.monotonic() < known.until:
            self._results.move_to_end(key)
            return known
        flight = self._flights.get(key)
        if flight is None:
            flight = asyncio.create_task(self._fetch(key, fresh=fresh), name=f"look for {text}")
            self._flights[key] = flight
            flight.add_done_callback(lambda done: self._finish_flight(key, done))
        # Whoever waits may be cancelled; the others still want the answer.
        return await asyncio.shield(flight)

    def _finish_flight(self, key: _Key, flight: asyncio.Task[_LookupResult]) -> None:
        del self._flights[key]
        if flight.cancelled() or flight.exception() is not None:
            return
        self._results[key] = flight.result()
        self._results.move_to_end(key)
        while len(self._results) > REMEMBERED_REFERENCES:
            self._results.popitem(last=False)

    async def _fetch(self, key: _Key, *, fresh: bool) -> _LookupResult:
        text, architecture, secrets = key
        try:
            reference = parse(text)
        except ReferenceFormatError as error:
            return self._missing_result(key, Outcome.NOT_FOUND, str(error))
        good = self._cached_image(key)
        _, until = self._pauses.get(reference.repository, (None, 0.0))
        if not fresh and self._clock.monotonic() < until:
            wait = round(until - self._clock.monotonic())
            text = f"{reference.registry} did not answer; it is asked again in {wait} s"
            return _LookupResult(outcome=Outcome.UNREACHABLE, text=text, image=good, until=until)
        async with self._slots:
            try:
                keyring = await self._secrets(secrets)
                found = await self._fetch_image(reference, architecture, keyring, good)
            except RegistryError as error:
                if error.outcome is Outcome.UNREACHABLE:
                    return self._unreachable_result(reference, error, good)
                self._pauses.pop(reference.repository, None)
                return self._missing_result(key, error.outcome, str(error))
            except CredentialsError as error:
                return self._missing_result(key, Outcome.UNAUTHORIZED, f"{reference.registry}: {error}")
            except OSError as error:  # the pull secrets cannot be read now
                return self._unreachable_result(reference, RegistryUnreachable(str(error)), good)
        self._pauses.pop(reference.repository, None)
        return self._found_result(text, architecture, found)

    async def _fetch_image(
        self, reference: Reference, architecture: str, keyring: Keyring, good: CachedImage | None
    ) -> RegistryImage | CachedImage:
        """What is there; of what was found before, only the digest is asked for, and all if that has changed."""
        if good is not None and await self._client.find_digest(reference, keyring) == good.top:
            return good
        return await self._client.find_image(reference, architecture, keyring)

    def _found_result(self, text: str, architecture: str, found: RegistryImage | CachedImage) -> _LookupResult:
        good = CachedImage(
            reference=text,
            architecture=architecture,
            top=found.top,
            digest=found.digest,
            size_bytes=found.size_bytes,
            checked=self._clock.now(),
        )
        self._restored.pop((text, architecture), None)
        until = self._clock.monotonic() + self._found_for
        return _LookupResult(outcome=Outcome.FOUND, text=f"found, {good.digest}", image=good, until=until)

    def _missing_result(self, key: _Key, outcome: Outcome, text: str) -> _LookupResult:
        """A clear answer, which ends what was known before."""
        self._restored.pop(key[:2], None)
        return _LookupResult(outcome=outcome, text=text, image=None, until=self._clock.monotonic() + self._missing_for)

    def _unreachable_result(
        self, reference: Reference, error: RegistryError, good: CachedImage | None
    ) -> _LookupResult:
        """No answer: a pause for all names of the repository, and what was known goes on to count."""
        backoff, _ = self._pauses.get(reference.repository, (None, 0.0))
        if backoff is None:
            backoff = Backoff(self._rng, shortest=FIRST_PAUSE, longest=LONGEST_PAUSE)
        until = self._clock.monotonic() + max(backoff.next(), min(error.after, LONGEST_PAUSE))
        self._pauses[reference.repository] = (backoff, until)
        return _LookupResult(outcome=Outcome.UNREACHABLE, text=str(error), image=good, until=until)

    def _cached_image(self, key: _Key) -> CachedImage | None:
        known = self._results.get(key)
        return known.image if known is not None else self._restored.get(key[:2])


def _found_resolution(
    name: Candidate, good: CachedImage, tried: tuple[TriedReference, ...], *, stale: bool
) -> Resolution:
    return Resolution(
        outcome=Outcome.FOUND,
        reference=good.reference,
        digest=good.digest,
        tag=name.tag,
        tried=tried,
        stale=stale,
        checked=good.checked,
        size_bytes=good.size_bytes,
    )


def _decisive_outcome(tried: Sequence[TriedReference]) -> Outcome:
    """Of several failures the one that says least about what is there: it must not be taken for "there is none"."""
    found = {each.outcome for each in tried}
    return next(each for each in _BY_UNCERTAINTY if each in found)
