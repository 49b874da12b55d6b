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
from tessera.driver.registry.client import Found, RegistryClient
from tessera.driver.registry.errors import RegistryError, Unreachable
from tessera.driver.registry.keyring import CredentialsError, Keyring
from tessera.driver.registry.reference import Reference, ReferenceFormatError, parse
from tessera.driver.resolution import ImageQuery, Outcome, Resolution, Tried
from tessera.kube.backoff import Backoff
from tessera.limits import REMEMBERED_REFERENCES

#: Seconds for which an answer is believed, by outcome.
FOUND_FOR = 1800.0
MISSING_FOR = 60.0

#: Pauses before a registry that did not answer is asked again, seconds.
FIRST_PAUSE = 5.0
LONGEST_PAUSE = 600.0


#: Failures, those first that say least about what is there.
_LEAST_KNOWN = (Outcome.UNREACHABLE, Outcome.UNAUTHORIZED, Outcome.WRONG_ARCHITECTURE, Outcome.NOT_FOUND)


class LastGood(msgspec.Struct, frozen=True, kw_only=True):
    """What was found last under a reference, for an architecture."""

    reference: str
    architecture: str
    top: str
    digest: str
    size_bytes: int
    checked: float


class _Look(msgspec.Struct, frozen=True, kw_only=True):
    """What became of one reference.

    Attributes:
        outcome: of the last answer.
        text: it in a sentence.
        good: what was found, now or, if the registry does not answer, last.
        until: the clock's monotonic seconds up to which this needs no asking.
    """

    outcome: Outcome
    text: str
    good: LastGood | None
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
        self._places = asyncio.Semaphore(parallel)
        self._found_for = found_for
        self._missing_for = missing_for
        self._looks: OrderedDict[_Key, _Look] = OrderedDict()
        self._flights: dict[_Key, asyncio.Task[_Look]] = {}
        self._pauses: dict[str, tuple[Backoff, float]] = {}
        self._restored: dict[tuple[str, str], LastGood] = {}

    async def resolve(self, query: ImageQuery, *, fresh: bool = False) -> Resolution:
        """The answer; ``fresh`` asks the registry whatever is remembered."""
        try:
            names = candidates(query)
        except SourceError as error:
            return self._nothing(Outcome.NOT_FOUND, str(error))
        if not names:
            return self._nothing(Outcome.NOT_FOUND, f"{query.source.version!r} has no image of a {query.kind.value}")
        tried: list[Tried] = []
        silent = False
        for each in names:
            look = await self._look(each.reference, query, fresh=fresh and not silent)
            tried.append(Tried(reference=each.reference, outcome=look.outcome, text=look.text))
            silent = silent or look.outcome is Outcome.UNREACHABLE
            if look.good is not None:
                return _answer(each, look.good, tuple(tried), stale=silent)
            if look.outcome is Outcome.UNAUTHORIZED:
                break
        return Resolution(outcome=_telling(tried), tried=tuple(tried), checked=self._clock.now())

    async def close(self) -> None:
        """Ends what is under way and frees the connections."""
        flights = list(self._flights.values())
        for each in flights:
            each.cancel()
        await asyncio.gather(*flights, return_exceptions=True)
        await self._client.close()

    def last_good(self) -> tuple[LastGood, ...]:
        """All that was found last, to be kept by whoever outlives this process."""
        found = {**self._restored, **{key[:2]: look.good for key, look in self._looks.items() if look.good}}
        return tuple(found.values())

    def restore(self, kept: Iterable[LastGood]) -> None:
        """Takes back what :meth:`last_good` gave. It counts only while its registry does not answer."""
        self._restored.update({(each.reference, each.architecture): each for each in kept})

    def _nothing(self, outcome: Outcome, text: str) -> Resolution:
        tried = (Tried(reference="", outcome=outcome, text=text),)
        return Resolution(outcome=outcome, tried=tried, checked=self._clock.now())

    async def _look(self, text: str, query: ImageQuery, *, fresh: bool) -> _Look:
        key = (text, query.pool.architecture, query.source.pull_secrets)
        known = self._looks.get(key)
        if known is not None and not fresh and self._clock.monotonic() < known.until:
            self._looks.move_to_end(key)
            return known
        flight = self._flights.get(key)
        if flight is None:
            flight = asyncio.create_task(self._flight(key, fresh=fresh), name=f"look for {text}")
            self._flights[key] = flight
            flight.add_done_callback(lambda done: self._landed(key, done))
        # Whoever waits may be cancelled; the others still want the answer.
        return await asyncio.shield(flight)

    def _landed(self, key: _Key, flight: asyncio.Task[_Look]) -> None:
        del self._flights[key]
        if flight.cancelled() or flight.exception() is not None:
            return
        self._looks[key] = flight.result()
        self._looks.move_to_end(key)
        while len(self._looks) > REMEMBERED_REFERENCES:
            self._looks.popitem(last=False)

    async def _flight(self, key: _Key, *, fresh: bool) -> _Look:
        text, architecture, secrets = key
        try:
            reference = parse(text)
        except ReferenceFormatError as error:
            return self._missing(key, Outcome.NOT_FOUND, str(error))
        good = self._good(key)
        _, until = self._pauses.get(reference.repository, (None, 0.0))
        if not fresh and self._clock.monotonic() < until:
            wait = round(until - self._clock.monotonic())
            text = f"{reference.registry} did not answer; it is asked again in {wait} s"
            return _Look(outcome=Outcome.UNREACHABLE, text=text, good=good, until=until)
        async with self._places:
            try:
                keyring = await self._secrets(secrets)
                found = await self._asked(reference, architecture, keyring, good)
            except RegistryError as error:
                if error.outcome is Outcome.UNREACHABLE:
                    return self._silent(reference, error, good)
                self._pauses.pop(reference.repository, None)
                return self._missing(key, error.outcome, str(error))
            except CredentialsError as error:
                return self._missing(key, Outcome.UNAUTHORIZED, f"{reference.registry}: {error}")
            except OSError as error:  # the pull secrets cannot be read now
                return self._silent(reference, Unreachable(str(error)), good)
        self._pauses.pop(reference.repository, None)
        return self._found(text, architecture, found)

    async def _asked(
        self, reference: Reference, architecture: str, keyring: Keyring, good: LastGood | None
    ) -> Found | LastGood:
        """What is there; of what was found before, only the digest is asked for, and all if that has changed."""
        if good is not None and await self._client.digest(reference, keyring) == good.top:
            return good
        return await self._client.image(reference, architecture, keyring)

    def _found(self, text: str, architecture: str, found: Found | LastGood) -> _Look:
        good = LastGood(
            reference=text,
            architecture=architecture,
            top=found.top,
            digest=found.digest,
            size_bytes=found.size_bytes,
            checked=self._clock.now(),
        )
        self._restored.pop((text, architecture), None)
        until = self._clock.monotonic() + self._found_for
        return _Look(outcome=Outcome.FOUND, text=f"found, {good.digest}", good=good, until=until)

    def _missing(self, key: _Key, outcome: Outcome, text: str) -> _Look:
        """A clear answer, which ends what was known before."""
        self._restored.pop(key[:2], None)
        return _Look(outcome=outcome, text=text, good=None, until=self._clock.monotonic() + self._missing_for)

    def _silent(self, reference: Reference, error: RegistryError, good: LastGood | None) -> _Look:
        """No answer: a pause for all names of the repository, and what was known goes on to count."""
        backoff, _ = self._pauses.get(reference.repository, (None, 0.0))
        if backoff is None:
            backoff = Backoff(self._rng, shortest=FIRST_PAUSE, longest=LONGEST_PAUSE)
        until = self._clock.monotonic() + max(backoff.next(), min(error.after, LONGEST_PAUSE))
        self._pauses[reference.repository] = (backoff, until)
        return _Look(outcome=Outcome.UNREACHABLE, text=str(error), good=good, until=until)

    def _good(self, key: _Key) -> LastGood | None:
        known = self._looks.get(key)
        return known.good if known is not None else self._restored.get(key[:2])


def _answer(name: Candidate, good: LastGood, tried: tuple[Tried, ...], *, stale: bool) -> Resolution:
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


def _telling(tried: Sequence[Tried]) -> Outcome:
    """Of several failures the one that says least about what is there: it must not be taken for "there is none"."""
    found = {each.outcome for each in tried}
    return next(each for each in _LEAST_KNOWN if each in found)
