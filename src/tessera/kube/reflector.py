"""Mirrors a set of objects from the API server and never loses a change of state.

Hand-written because no async Python library is correct here: of ten that were measured, each missed deletes after an
expired version, retried without a pause, or crashed. The rules:

1. List, then watch from the list's version with bookmarks; on a clean end or a broken connection watch again from the
   last version seen.
2. After an expired version (410, as the HTTP status or as an ERROR in the stream), list again. The difference to the
cache, by key and uid, becomes events, so a delete that no watch showed is still a DELETED.
3. After every failure comes a pause of 0.2-30 s that grows and is jittered; the first good event resets it. A
successful LIST does not, or a server whose watches fail would be listed in a hot loop.
4. Each watch asks the server to end it after a random 300-600 s, so that watchers spread over API servers. The
transport detects silence (about 90 s; bookmarks come every minute).
5. An object that does not decode is logged, counted and skipped; the version still advances. If the object was known,
its last good state stays until the object is deleted. The listener is told when it becomes unreadable or readable.
6. After other failures of a watch the version is kept; after five in a row comes a list.
7. A watch that had lasted for a while before it broke restarts the count: load balancers cut idle connections every
minute or so, and the pauses must not grow from that.
8. A list with a smaller version than the last one comes from an etcd that was restored from a backup. The rollback is
reported before its objects, since earlier versions say nothing about their order. A server that has not reached our
version yet (its cause ``ResourceVersionTooLarge``, or a bookmark before it) is listed at once: until then it would show
no change to a watch that is ahead of it.
9. A watch that seems well may have lost a line, in a proxy for instance, and would never show it. So a list follows the
first watch that ends 10 to 20 minutes after the last list; watches last up to 10 minutes. It costs little: a list by a
selector comes from the server's cache in one piece, one of all objects in pages, and what is as it was gives no event.
If it fails, the next watch goes on without it.
"""

import asyncio
import logging
import math
import random
from collections.abc import Iterable
from typing import Generic, Protocol, TypeVar

import msgspec

from tessera.clock import Clock
from tessera.kube.cache import Cache, EventKind, WatchEvent
from tessera.kube.client import Client
from tessera.kube.codec import BookmarkLine, ChangeLine, Codec, ErrorLine, LineSplitter, Undecodable, WatchLine
from tessera.kube.errors import ApiError, Expired, NotFound, Status, error_from_response, error_from_status
from tessera.kube.requests import Stream
from tessera.kube.resources.meta import ObjectMeta, Resource, key, key_of, uid_of, version_number, version_of
from tessera.kube.retries import LONGEST, Backoff

__all__ = ["EVERYTHING", "Cache", "EventKind", "Reflector", "WatchEvent", "WatchListener", "WatchScope"]

T = TypeVar("T")

_log = logging.getLogger(__name__)

#: Bounds of timeoutSeconds, as client-go spreads its watches.
_WATCH_SECONDS = (300, 600)

#: Seconds after a list from which the end of a watch is followed by another one (rule 9).
_LIST_AGAIN = (600.0, 1200.0)

#: A watch that ends within this time without a line is counted as a failure, seconds; as in client-go.
_SHORT_WATCH = 1.0

#: A watch that lasted this long before it broke counts as good, seconds. Load balancers let idle connections live
#: longer than that (HAProxy's example configurations have 50 s).
_STEADY_WATCH = 20.0

#: Cause of a refusal by a server that has not reached the version yet (apimachinery, CauseTypeResourceVersionTooLarge).
_TOO_LARGE = "ResourceVersionTooLarge"

#: Failed watches in a row after which the reflector lists again.
_FAILURES_BEFORE_LIST = 5


class WatchScope(msgspec.Struct, frozen=True, kw_only=True):
    """The objects of a resource that a reflector mirrors; without values, all of them.

    An object that stops matching a selector gives DELETED.

    Attributes:
        namespace: mirror this namespace only.
        label_selector: mirror only objects with matching labels.
        field_selector: mirror only objects with matching fields, e.g. ``spec.nodeName=n1``.
    """

    namespace: str | None = None
    label_selector: str | None = None
    field_selector: str | None = None


EVERYTHING = WatchScope()


class WatchListener(Protocol[T]):
    """Receives what a reflector learns, in order.

    Each method must be quick and must not raise: it runs between two lines of the watch, and an exception ends
    :meth:`Reflector.run`.
    """

    def object_changed(self, event: WatchEvent[T]) -> None:
        """Handles one change; the cache already has it."""
        ...

    def object_unreadable(self, key: str, error: str | None) -> None:
        """Handles an object that does not decode; the error is None once it decodes again or is gone.

        Comes before the event that follows from that.
        """
        ...

    def versions_went_back(self) -> None:
        """Handles a list whose version is smaller than that of the cache; comes before the events of that list."""
        ...

    def kind_missing(self, *, missing: bool) -> None:
        """Handles that the server has ceased to know the kind, or knows it again; then what the list changed is told.

        Objects of a kind that is deleted may be told as deleted first, or not at all: nothing is known of them.
        """
        ...


class Reflector(Generic[T]):
    """One list+watch loop that feeds one cache.

    Args:
        client: the client that lists and watches.
        resource: the mirrored resource.
        listener: receives every change.
        clock: for pauses.
        rng: for jitter; seeded in tests.
        scope: the mirrored objects.
        cache: the cache to feed; a new one without indexes if left out.

    Attributes:
        cache: the mirrored state.
        synced: set once all events of the first LIST were sent; never cleared.
        attempted: set once the first LIST was processed or has failed; set whenever ``synced`` is.
        error: the error of the last try, while the first LIST is missing; ``None`` once it succeeded.
        missing: True if the server did not know the kind at the last try that it answered.
        skipped: objects skipped because they did not decode; only grows.
        unreadable: keys of the objects that do not decode now, with the error.
        relists: lists made, the first included; only grows.
        failures: failures in a row, 0 while all is well.
    """

    def __init__(
        self,
        client: Client,
        resource: Resource[T],
        *,
        listener: WatchListener[T],
        clock: Clock,
        rng: random.Random,
        scope: WatchScope = EVERYTHING,
        cache: Cache[T] | None = None,
    ) -> None:
        self.cache: Cache[T] = Cache() if cache is None else cache
        self.synced = asyncio.Event()
        self.attempted = asyncio.Event()
        self.error: Exception | None = None
        self.missing = False
        self.skipped = 0
        self.unreadable: dict[str, str] = {}
        self.relists = 0
        self._client = client
        self._resource = resource
        self._scope = scope
        self._listener = listener
        self._clock = clock
        self._rng = rng
        self._codec: Codec[T] = client.codec(resource)
        #: Failures in a row. A good event resets them; a LIST does not (rule 3).
        self._backoff = Backoff(rng)
        #: resourceVersion up to which the cache has all changes; empty while a LIST is due.
        self._version = ""
        #: The greatest number of ``_version`` since the last rollback. A LIST below it is a rollback (rule 8).
        self._newest = 0
        #: Monotonic time from which the end of a watch is followed by a list (rule 9).
        self._list_due = math.inf
        #: Monotonic time at which the server accepted the current watch; infinite while there is none (rule 7).
        self._watching_since = math.inf

    @property
    def version(self) -> str:
        """Returns the resourceVersion of the cache; ``""`` while a list is due."""
        return self._version

    @property
    def failures(self) -> int:
        """Failures since the last good event."""
        return self._backoff.failures

    async def run(self) -> None:
        """Mirrors until cancelled."""
        while True:
            self._watching_since = math.inf
            try:
                if not self._version or self._clock.monotonic() >= self._list_due:
                    await self._list()
                useful = await self._watch()
            except (ApiError, ConnectionError, TimeoutError, ValueError) as error:  # ValueError: no JSON
                await self._pause_after(error)
            else:
                if useful:
                    self._backoff.reset()
                else:
                    await self._clock.sleep(self._backoff.next())

    # Listing

    async def _list(self) -> None:
        self._list_due = self._clock.monotonic() + self._rng.uniform(*_LIST_AGAIN)
        selects = self._scope.label_selector is not None or self._scope.field_selector is not None
        listing = await self._client.list(
            self._resource,
            self._scope.namespace,
            label_selector=self._scope.label_selector,
            field_selector=self._scope.field_selector,
            not_older_than=self._version if selects else "",
        )
        self.relists += 1
        self._set_version(listing.resource_version, listed=True)
        bad = {name: poison.error for poison in listing.undecodable if (name := self._log_skipped(poison))}
        for name in [name for name in self.unreadable if name not in bad]:
            self._mark_readable(name)
        for name, error in bad.items():
            self._mark_unreadable(name, error)
        for event in self.cache.replace(listing.items, self._keys_to_keep(listing.undecodable)):
            self._listener.object_changed(event)
        self._set_missing(False)
        self.error = None
        self.synced.set()
        self.attempted.set()

    def _keys_to_keep(self, poisoned: Iterable[Undecodable]) -> set[str]:
        """Returns the keys of known objects that still exist but cannot be read now."""
        metas = [poison.metadata for poison in poisoned if poison.metadata]
        return {key(meta.namespace, meta.name) for meta in metas if self._is_known(meta)}

    def _is_known(self, meta: ObjectMeta) -> bool:
        known = self.cache.get(key(meta.namespace, meta.name))
        return known is not None and uid_of(known) == meta.uid

    # Watching

    async def _watch(self) -> bool:
        """Follows one stream to its end; False if it ended at once and empty, so that an immediate retry would spin."""
        began = self._clock.monotonic()
        fruitful = False
        async with self._client.watch(
            self._resource,
            self._scope.namespace,
            resource_version=self._version,
            timeout_seconds=self._rng.randint(*_WATCH_SECONDS),
            label_selector=self._scope.label_selector,
            field_selector=self._scope.field_selector,
        ) as stream:
            await _raise_for_status(stream)
            self._watching_since = self._clock.monotonic()
            lines = LineSplitter()
            async for chunk in stream.chunks():
                for line in lines.feed(chunk):
                    self._handle_line(self._codec.decode_line(line))
                    fruitful = True
        return fruitful or self._clock.monotonic() - began >= _SHORT_WATCH

    def _handle_line(self, line: WatchLine[T]) -> None:
        if isinstance(line, ChangeLine):
            self._apply_change(line.type, line.object)
            self._set_version(version_of(line.object))
        elif isinstance(line, BookmarkLine):
            if version_number(line.version) < version_number(self._version):
                text = f"the watch from {self._version} stands at {line.version} only"
                raise error_from_status(Status(code=410, reason="Expired", message=text))
            self._set_version(line.version)
        elif isinstance(line, ErrorLine):
            raise error_from_status(line.status)
        else:
            self._handle_undecodable(line)
        self._backoff.reset()

    def _set_version(self, version: str, *, listed: bool = False) -> None:
        self._version = version
        number = version_number(version)
        if listed and number < self._newest:
            _log.warning("%s: versions went back to %s: restored from a backup?", self._resource.label, version)
            self._listener.versions_went_back()
            self._newest = number
        self._newest = max(self._newest, number)

    def _apply_change(self, kind: str, item: T) -> None:
        self._mark_readable(key_of(item))
        changes = self.cache.remove(key_of(item), item) if kind == "DELETED" else self.cache.upsert(item)
        for event in changes:
            self._listener.object_changed(event)

    def _handle_undecodable(self, poison: Undecodable) -> None:
        name = self._log_skipped(poison)
        meta = poison.metadata
        if meta is None:
            return
        if poison.type == "DELETED":
            self._mark_readable(name)
        else:
            self._mark_unreadable(name, poison.error)
        if poison.type == "DELETED" or not self._is_known(meta):
            for event in self.cache.remove(name):
                self._listener.object_changed(event)
        self._set_version(meta.resource_version or self._version)

    def _mark_unreadable(self, name: str, error: str) -> None:
        if self.unreadable.get(name) != error:
            self.unreadable[name] = error
            self._listener.object_unreadable(name, error)

    def _mark_readable(self, name: str) -> None:
        if self.unreadable.pop(name, None) is not None:
            self._listener.object_unreadable(name, None)

    # Failing

    def _set_missing(self, missing: bool) -> None:
        if missing is not self.missing:
            self.missing = missing
            self._listener.kind_missing(missing=missing)

    def _log_skipped(self, poison: Undecodable) -> str:
        """Logs that an object is skipped; returns its key, empty if not even that can be read."""
        self.skipped += 1
        meta = poison.metadata
        name = key(meta.namespace, meta.name) if meta else ""
        shown = name or "of unknown name"
        _log.warning("%s %s is skipped, it does not decode: %s", self._resource.kind, shown, poison.error)
        return name

    async def _pause_after(self, error: Exception) -> None:
        if not self.synced.is_set():
            self.error = error
        if isinstance(error, NotFound):  # neither a list nor a watch names an object
            self._set_missing(True)
        self.attempted.set()
        steady = self._clock.monotonic() - self._watching_since >= _STEADY_WATCH
        if steady:
            self._backoff.reset()
        pause = max(self._backoff.next(), _requested_pause(error))
        if _version_is_lost(error) or self._backoff.failures % _FAILURES_BEFORE_LIST == 0:
            self._version = ""
        level = logging.DEBUG if steady and isinstance(error, ConnectionError) else logging.INFO  # idle ones end so
        _log.log(level, "%s: %s; again in %.1f s", self._resource.label, error, pause)
        await self._clock.sleep(pause)


async def _raise_for_status(stream: Stream) -> None:
    if stream.status >= 400:
        raise error_from_response(stream.status, stream.headers, await stream.read())


def _version_is_lost(error: Exception) -> bool:
    """True for 410; for 400 and 422 too, since then the server does not understand the version (another etcd).

    And for 404: objects of a kind that was deleted and came back are other objects.
    """
    if not isinstance(error, ApiError):
        return False
    ahead = any(cause.reason == _TOO_LARGE for cause in error.causes)
    return isinstance(error, (Expired, NotFound)) or error.code in {400, 422} or ahead


def _requested_pause(error: Exception) -> float:
    """The pause that the server asks for (429, 503), within our own bound, seconds."""
    requested = error.retry_after if isinstance(error, ApiError) else None
    return min(requested or 0.0, LONGEST)
