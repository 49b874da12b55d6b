"""Looks driver images up: finds the first candidate that a registry has, by digest, and caches the answer.

Rules:

1. Candidates are looked up in sequence. If one is missing, or exists only for another architecture, the next one
   follows. A refused one ends the search. After one without an answer, only cached answers count for the rest: the next
   name might exist but is worse, and nodes would change their driver because of a short outage.
2. A found image is valid for :data:`FOUND_FOR`; then only its digest is requested (``HEAD``). A missing one stays
   missing for :data:`MISSING_FOR`, since it may be pushed at any moment.
3. Each reference has at most one request in flight, for all callers together.
4. A registry that does not answer gets a pause that grows and is random. During the pause and after it, the last found
   image counts, marked ``stale``. A clear answer (gone, refused, other architecture) ends that.
5. The last found images can be exported and restored as plain data, so a restart during an outage forgets nothing.

:class:`PersistentResolver` keeps found images in the ConfigMap ``driver-images``, so that a registry outage does not
hit a new controller harder. The newest images that fit are kept; content that cannot be decoded is ignored and
replaced.
"""

import asyncio
import logging
import random
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec

from tessera.api.image_reference import Reference, ReferenceFormatError, parse
from tessera.clock import Clock
from tessera.driver.images import (
    Candidate,
    ImageQuery,
    Outcome,
    Resolution,
    Resolver,
    SourceError,
    TriedReference,
    candidates,
)
from tessera.driver.limits import DRIVER_MEMORY
from tessera.driver.registry.client import RegistryClient, RegistryImage, RegistryOptions
from tessera.driver.registry.credentials import CredentialsError, Keyring, PullSecrets, read_authorities
from tessera.driver.registry.wire import RegistryError, RegistryHttp, RegistryUnreachable, Trust
from tessera.kube.client import Client
from tessera.kube.persistent_config_map import PersistentConfigMap
from tessera.kube.retries import Backoff

if TYPE_CHECKING:
    from tessera.controller.satellite import Process

#: References in the cache, one for each pool, strategy and mirror; the longest unused is forgotten, and asked again.
_REFERENCES = 4_096
#: Requests in flight at the same time.
_PARALLEL = 8
#: Seconds for which an answer is valid, by outcome.
FOUND_FOR = 1800.0
MISSING_FOR = 60.0

#: Pauses before a registry that did not answer is asked again, seconds.
FIRST_PAUSE = 5.0
LONGEST_PAUSE = 600.0


#: Failures; first those that say least about what the registry has.
_BY_UNCERTAINTY = (Outcome.UNREACHABLE, Outcome.UNAUTHORIZED, Outcome.WRONG_ARCHITECTURE, Outcome.NOT_FOUND)


class CachedImage(msgspec.Struct, frozen=True, kw_only=True):
    """The last image found under a reference, for an architecture."""

    reference: str
    architecture: str
    top: str
    digest: str
    size_bytes: int
    checked: float


class _LookupResult(msgspec.Struct, frozen=True, kw_only=True):
    """Result of looking up one reference.

    Attributes:
        outcome: outcome of the last answer.
        text: a sentence about it.
        image: the found image; if the registry does not answer, the last one.
        until: the clock's monotonic seconds up to which this is valid.
    """

    outcome: Outcome
    text: str
    image: CachedImage | None
    until: float


_Key = tuple[str, str, tuple[str, ...]]

#: Reads the credentials in pull secrets, by the secrets' names.
Secrets = Callable[[tuple[str, ...]], Awaitable[Keyring]]


class RegistryResolver:
    """Resolves against registries; implements :class:`~tessera.driver.images.Resolver`.

    Args:
        clock: the time, for the age of answers.
        client: the client of registries.
        secrets: reads the credentials in a source's pull secrets. ``CredentialsError`` means that they are invalid,
            ``OSError`` that they cannot be read now.
        rng: random numbers for pauses; seeded in tests.
    """

    def __init__(
        self,
        clock: Clock,
        *,
        client: RegistryClient,
        secrets: Secrets,
        rng: random.Random,
    ) -> None:
        self._clock = clock
        self._client = client
        self._secrets = secrets
        self._rng = rng
        self._slots = asyncio.Semaphore(_PARALLEL)
        #: Newest results, least recently used first; at most :data:`_REFERENCES`.
        self._results: OrderedDict[_Key, _LookupResult] = OrderedDict()
        #: Lookups in flight: one per key, for all its callers.
        self._flights: dict[_Key, asyncio.Task[_LookupResult]] = {}
        #: The back-off of each repository, and the end of its pause, monotonic seconds.
        self._pauses: dict[str, tuple[Backoff, float]] = {}
        #: Images from an earlier process, by reference and architecture; a clear answer removes its entry.
        self._restored: dict[tuple[str, str], CachedImage] = {}

    async def resolve(self, query: ImageQuery, *, fresh: bool = False) -> Resolution:
        """The answer; ``fresh`` asks the registry even if an answer is cached."""
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
                return _resolution_of(each, look.image, tuple(tried), stale=silent)
            if look.outcome is Outcome.UNAUTHORIZED:
                break
        return Resolution(outcome=_decisive_outcome(tried), tried=tuple(tried), checked=self._clock.now())

    async def close(self) -> None:
        """Cancels lookups in flight and frees the connections."""
        flights = list(self._flights.values())
        for each in flights:
            each.cancel()
        await asyncio.gather(*flights, return_exceptions=True)
        await self._client.close()

    def cached_images(self) -> tuple[CachedImage, ...]:
        """The last found images, so that a caller can store them."""
        found = {**self._restored, **{key[:2]: look.image for key, look in self._results.items() if look.image}}
        return tuple(found.values())

    def restore(self, images: Iterable[CachedImage]) -> None:
        """Restores images from :meth:`cached_images`. They count only while their registry does not answer."""
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
        # One caller may be cancelled; the others still want the answer.
        return await asyncio.shield(flight)

    def _finish_flight(self, key: _Key, flight: asyncio.Task[_LookupResult]) -> None:
        del self._flights[key]
        if flight.cancelled() or flight.exception() is not None:
            return
        self._results[key] = flight.result()
        self._results.move_to_end(key)
        while len(self._results) > _REFERENCES:
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
            text = f"{reference.registry} did not answer; the next request is in {wait} s"
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
        return self._result_of(text, architecture, found)

    async def _fetch_image(
        self, reference: Reference, architecture: str, keyring: Keyring, good: CachedImage | None
    ) -> RegistryImage | CachedImage:
        """Looks one reference up. For an image found before, the digest comes first; all of it if that changed."""
        if good is not None and await self._client.find_digest(reference, keyring) == good.top:
            return good
        return await self._client.find_image(reference, architecture, keyring)

    def _result_of(self, text: str, architecture: str, found: RegistryImage | CachedImage) -> _LookupResult:
        good = CachedImage(
            reference=text,
            architecture=architecture,
            top=found.top,
            digest=found.digest,
            size_bytes=found.size_bytes,
            checked=self._clock.now(),
        )
        self._restored.pop((text, architecture), None)
        until = self._clock.monotonic() + FOUND_FOR
        return _LookupResult(outcome=Outcome.FOUND, text=f"found, {good.digest}", image=good, until=until)

    def _missing_result(self, key: _Key, outcome: Outcome, text: str) -> _LookupResult:
        """The result of a clear failure; it removes the image found before."""
        self._restored.pop(key[:2], None)
        return _LookupResult(outcome=outcome, text=text, image=None, until=self._clock.monotonic() + MISSING_FOR)

    def _unreachable_result(
        self, reference: Reference, error: RegistryError, good: CachedImage | None
    ) -> _LookupResult:
        """The result without an answer: pauses all names of the repository, and keeps the image found before."""
        backoff, _ = self._pauses.get(reference.repository, (None, 0.0))
        if backoff is None:
            backoff = Backoff(self._rng, shortest=FIRST_PAUSE, longest=LONGEST_PAUSE)
        until = self._clock.monotonic() + max(backoff.next(), min(error.after, LONGEST_PAUSE))
        self._pauses[reference.repository] = (backoff, until)
        return _LookupResult(outcome=Outcome.UNREACHABLE, text=str(error), image=good, until=until)

    def _cached_image(self, key: _Key) -> CachedImage | None:
        known = self._results.get(key)
        return known.image if known is not None else self._restored.get(key[:2])


def _resolution_of(name: Candidate, good: CachedImage, tried: tuple[TriedReference, ...], *, stale: bool) -> Resolution:
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
    """Of several failures, the one that says least about the registry; it must not count as "the image is missing"."""
    found = {each.outcome for each in tried}
    return next(each for each in _BY_UNCERTAINTY if each in found)


_log = logging.getLogger(__name__)

CONFIG_MAP = "driver-images"
KEY = "images.json"
#: Images in the ConfigMap, the newest: one has half a kilobyte of JSON, and a ConfigMap holds 1 MiB.
_STORED = 500


class PersistentResolver:
    """A :class:`~tessera.driver.images.Resolver` whose answers outlive the process.

    Args:
        resolver: looks images up in registries.
        client: reads and writes the ConfigMap.
        clock: the time, for pauses.
        namespace: namespace of the ConfigMap.
        rng: random numbers for jitter.
    """

    def __init__(
        self, resolver: RegistryResolver, client: Client, clock: Clock, *, namespace: str, rng: random.Random
    ) -> None:
        self._resolver = resolver
        self._loading: asyncio.Task[None] | None = None
        self._remembered: frozenset[tuple[str, str]] = frozenset()
        self._map = PersistentConfigMap(client, clock, namespace=namespace, name=CONFIG_MAP, data=self._data, rng=rng)

    async def run(self) -> None:
        """Writes found images to the ConfigMap until cancelled."""
        await self._map.run()

    async def resolve(self, query: ImageQuery, *, fresh: bool = False) -> Resolution:
        """See :meth:`.Resolver.resolve`."""
        if self._loading is None:
            self._loading = asyncio.create_task(self._load())
        await asyncio.shield(self._loading)
        answer = await self._resolver.resolve(query, fresh=fresh)
        if answer.outcome is Outcome.FOUND and not answer.stale:
            self._remember(answer)
        return answer

    def _remember(self, answer: Resolution) -> None:
        found = (answer.reference, answer.digest)
        if found not in self._remembered:
            self._remembered |= {found}
            self._map.mark_changed()

    async def _load(self) -> None:
        text = (await self._map.load()).get(KEY, "[]")
        try:
            images = msgspec.json.decode(text[:DRIVER_MEMORY], type=list[CachedImage])
        except (msgspec.DecodeError, RecursionError) as error:
            _log.warning(
                "the images in ConfigMap %s cannot be decoded, they are looked up again: %s", CONFIG_MAP, error
            )
            return
        self._resolver.restore(images[:_STORED])

    def _data(self) -> Mapping[str, str]:
        newest = sorted(self._resolver.cached_images(), key=lambda each: each.checked, reverse=True)[:_STORED]
        kept = sorted(newest, key=lambda each: (each.reference, each.architecture))
        return {KEY: msgspec.json.encode(kept).decode()}


def open_image_resolver(options: RegistryOptions, namespace: str, process: "Process") -> Resolver:
    """Returns a resolver that lasts as long as the process. It connects to a registry only at the first look-up.

    Raises:
        AuthoritiesError: the file of authorities cannot be read, or has none.
    """
    client, clock, rng = process.client, process.clock, process.rng
    authorities = read_authorities(options.ca) if options.ca is not None else ""
    registry = RegistryClient(RegistryHttp(Trust(authorities=authorities, plain=options.plain_http)), clock)
    resolver = RegistryResolver(clock, client=registry, secrets=PullSecrets(client, namespace), rng=rng)
    memory = PersistentResolver(resolver, client, clock, namespace=namespace, rng=rng)
    writing = asyncio.create_task(memory.run(), name="image memory")

    async def close() -> None:
        writing.cancel()
        await asyncio.wait([writing])
        await resolver.close()

    process.at_end.push_async_callback(close)
    return memory
