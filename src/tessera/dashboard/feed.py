"""Keeps the documents of the live page, hands out what changed to any number of readers, and sends it to each.

1. Readers with the same rights share a :class:`Feed`, and a document is encoded once for all rights to which it looks
   the same. So the cost grows with the number of different rights, not of readers.
2. A change gets the next version. Its text is made once, however many readers the feed has.
3. A reader has a version. It gets the changes since then if they are still kept, else a snapshot of everything; so a
   slow reader costs nothing but a snapshot, and nothing is queued for it.
4. A feed keeps at most :data:`FEED_CHANGES` changes and
   :data:`FEED_BYTES` of them. One without readers ends after as many changes as it keeps.
5. The number of feeds is bounded. The user with most of them gives one up to a user with less, and the feed of those
   who see everything, who are administrators, always has a place.

A :class:`FeedStream` sends to one reader, for as long as the reader may see it:

1. A reader's rights are looked at every few seconds. If they have changed, the reader changes to the feed of its new
   rights, which begins with a snapshot that replaces what it has.
2. Texts are sent in pieces. A reader holds one piece, and is cut off if it does not take it in time.
"""

import asyncio
import secrets
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import zip_longest
from typing import NamedTuple

import msgspec
from aiohttp import web

from tessera.dashboard.documents import Document
from tessera.dashboard.visitors import Visitor
from tessera.serving.connection import Connection
from tessera.serving.fair_shares import find_giver
from tessera.visibility import About, Redactor, Visibility, find_namespaces

#: Most changes that the live page keeps for readers that were away; others get a snapshot. A minute of a busy cluster,
#: at four a second.
FEED_CHANGES = 240
#: Most bytes: changes that the live page keeps, for readers with the same rights. A change of all of 1,600 cards has 2
#: MB; older changes are dropped, and their readers get a snapshot.
FEED_BYTES = 8 * 2**20
#: Most kinds of rights: different rights of readers of the live page at one time. Each costs its own texts of the
#: documents that look different; teams share theirs. The next takes the place of one of the user with most, or is
#: refused with 503; those who may see everything always have a place.
PAGE_VIEWS = 32


class TooManyViewsError(Exception):
    """There are readers with so many different rights that this one cannot be served, or not any longer."""


class Update(NamedTuple):
    """An answer to a reader: the name of the event, the version after it, and its JSON texts in order."""

    event: str
    version: int
    texts: tuple[bytes, ...]


class Feed:
    """The documents and their last changes, for readers with the same rights.

    Attributes:
        name: names this feed in event ids: versions of another feed mean nothing here.
        version: number of the last change.
        ended: true once its readers must go.
    """

    def __init__(self) -> None:
        #: The encoded documents by key.
        self._documents: dict[str, bytes] = {}
        #: The last changes as JSON, oldest first; the newest has the number :attr:`version`.
        self._changes: deque[bytes] = deque()
        self._size = 0
        self._snapshot: bytes | None = None
        self._changed = asyncio.Event()
        self.name = secrets.token_hex(4)
        self.version = 0
        self.ended = False

    def end(self) -> None:
        """Sends the readers away."""
        self.ended = True
        self._changed.set()

    def publish(self, documents: Mapping[str, Document]) -> None:
        """Makes these the documents; wakes the readers if any differs."""
        self.publish_encoded({key: msgspec.json.encode(document) for key, document in documents.items()})

    def publish_encoded(self, encoded: dict[str, bytes]) -> None:
        """As :meth:`publish`, with the documents as JSON."""
        self.change(encoded, [key for key in self._documents if key not in encoded])

    def change(self, encoded: Mapping[str, bytes], gone: Sequence[str]) -> None:
        """Sets these documents and removes others; wakes the readers if that makes a difference."""
        changed = {key: msgspec.Raw(text) for key, text in encoded.items() if self._documents.get(key) != text}
        gone = [key for key in gone if key in self._documents]
        if not changed and not gone:
            return
        for key in gone:
            del self._documents[key]
        self._documents.update({key: encoded[key] for key in changed})
        self._snapshot = None
        self.version += 1
        self._keep(msgspec.json.encode({"set": changed, "gone": gone}))
        self._changed.set()
        self._changed = asyncio.Event()

    def _keep(self, change: bytes) -> None:
        self._changes.append(change)
        self._size += len(change)
        while len(self._changes) > FEED_CHANGES or (self._size > FEED_BYTES and len(self._changes) > 1):
            self._size -= len(self._changes.popleft())

    def read(self, version: int | None) -> Update | None:
        """Returns the changes since ``version``, or a snapshot for a reader without one; None if nothing changed."""
        if version == self.version:
            return None
        missing = None if version is None else self.version - version
        if missing is None or not 0 < missing <= len(self._changes):
            return Update("snapshot", self.version, (self._whole(),))
        return Update("change", self.version, tuple(self._changes)[-missing:])

    async def wait(self, version: int | None) -> None:
        """Returns once there is anything that a reader at ``version`` lacks.

        Raises:
            TooManyViewsError: the feed has ended.
        """
        while version == self.version and not self.ended:
            await self._changed.wait()
        if self.ended:
            raise TooManyViewsError

    def _whole(self) -> bytes:
        if self._snapshot is None:
            documents = {key: msgspec.Raw(text) for key, text in self._documents.items()}
            self._snapshot = msgspec.json.encode({"set": documents, "gone": []})
        return self._snapshot


class _Encodings:
    """A document with its texts for the rights that were asked for."""

    def __init__(self, key: str, document: Document) -> None:
        self.document = document
        self.about = find_namespaces(document)
        self._key = key
        self._texts: dict[Visibility, tuple[str, bytes]] = {}

    def encode(self, redactor: Redactor, visibility: Visibility) -> Iterator[tuple[str, bytes]]:
        """Yields the key and the JSON text for readers with these rights; nothing if they do not get the document."""
        if visibility.shows(self.document):
            yield self._encode(redactor, visibility.narrow(self.about))

    def _encode(self, redactor: Redactor, rights: Visibility) -> tuple[str, bytes]:
        found = self._texts.get(rights)
        if found is None:
            text = msgspec.json.encode(redactor.redact(self.document, rights))
            found = self._texts[rights] = (redactor.redact_key(self._key, self.document, rights), text)
        return found


class _SharedFeed:
    """A feed, the number of its readers by user, and of publications since it had one."""

    def __init__(self) -> None:
        self.feed = Feed()
        self.readers: Counter[str] = Counter()
        self.unread = 0


class FeedGroup:
    """The feeds of all readers, one for each kind of rights.

    Attributes:
        about: the namespaces that the documents are about.
        redactor: hides names.
    """

    def __init__(self) -> None:
        self.redactor = Redactor(secrets.token_bytes(32))
        self._documents: dict[str, _Encodings] = {}
        self._feeds: dict[Visibility, _SharedFeed] = {}
        self.about = About()

    @property
    def readers(self) -> int:
        """Number of readers of all feeds."""
        return sum(each.readers.total() for each in self._feeds.values())

    @property
    def workload_namespaces(self) -> Sequence[str]:
        """The namespaces whose Workloads of Kueue present readers may list, but for those who may list all.

        They are in turns, one of each reader, so that the first ones are not all of a reader with many.
        """
        present = (rights.workloads for rights, each in self._feeds.items() if each.readers)
        turns = zip_longest(*(sorted(each) for each in present if each is not None))
        return tuple(dict.fromkeys(name for turn in turns for name in turn if name is not None))

    def publish(self, documents: Mapping[str, Document]) -> None:
        """Makes these the documents of all feeds; wakes the readers that see a difference."""
        known = self._documents
        changed = {
            key: _Encodings(key, document)
            for key, document in documents.items()
            if (old := known.get(key)) is None or old.document != document
        }
        self._documents = {key: changed.get(key) or known[key] for key in documents}
        before = [each for key, each in known.items() if key in changed or key not in documents]
        self.about = About(
            frozenset[str]().union(*(each.about.pods for each in self._documents.values())),
            frozenset[str]().union(*(each.about.workloads for each in self._documents.values())),
        )
        for visibility, shared in list(self._feeds.items()):
            shared.unread = 0 if shared.readers else shared.unread + 1
            if shared.unread > FEED_CHANGES:
                del self._feeds[visibility]
            else:
                self._change(shared.feed, visibility, changed.values(), before)

    def _change(
        self, feed: Feed, visibility: Visibility, after: Iterable[_Encodings], before: Iterable[_Encodings]
    ) -> None:
        """Changes a feed by the documents that differ; one may have another key than before for the same reader."""
        encoded = self._encode(after, visibility)
        keys = self._encode(before, visibility)
        feed.change(encoded, [key for key in keys if key not in encoded])

    def _encode(self, documents: Iterable[_Encodings], visibility: Visibility) -> dict[str, bytes]:
        return dict(one for each in documents for one in each.encode(self.redactor, visibility))

    @contextmanager
    def join(self, visibility: Visibility, key: str) -> Iterator[Feed]:
        """The feed for readers with these rights; the caller is one of its readers until the end of the block.

        Args:
            visibility: the rights.
            key: the same for all readers that count as one user.

        Raises:
            TooManyViewsError: see there.
        """
        shared = self._feeds.get(visibility)
        if shared is None:
            self._make_room(visibility, key)
            shared = self._feeds[visibility] = _SharedFeed()
            shared.feed.publish_encoded(self._encode(self._documents.values(), visibility))
        shared.readers[key] += 1
        try:
            yield shared.feed
        finally:
            shared.readers -= Counter({key: 1})

    def _make_room(self, wanted: Visibility, key: str) -> None:
        bounded = {rights: shared for rights, shared in self._feeds.items() if not _sees_all(rights)}
        if _sees_all(wanted) or len(bounded) < PAGE_VIEWS:
            return
        unread = next((rights for rights, shared in bounded.items() if not shared.readers), None)
        if unread is None:
            unread = self._end_one(bounded, key)
        del self._feeds[unread]

    @staticmethod
    def _end_one(feeds: Mapping[Visibility, _SharedFeed], key: str) -> Visibility:
        """Ends the newest feed of the user who has most for itself alone."""
        own = {rights: next(iter(shared.readers)) for rights, shared in feeds.items() if len(shared.readers) == 1}
        giver = find_giver(Counter(own.values()), key)
        if giver is None:
            raise TooManyViewsError
        newest = [rights for rights, owner in own.items() if owner == giver][-1]
        feeds[newest].feed.end()
        return newest


def _sees_all(rights: Visibility) -> bool:
    """True for two kinds of rights, with and without the Workloads of Kueue."""
    return rights.full and not rights.workloads


#: Most ms: the time in which a reader of the page takes 64 KiB; a slower one is cut off. 3 kB/s; a reader that stands
#: still holds 64 KiB.
PAGE_WRITE_TIME = 20_000

#: Seconds between two looks at a reader's rights; the answers themselves are remembered.
RECHECK = 5.0
#: Seconds after which a feed without changes sends a comment, so that proxies keep the connection.
_HEARTBEAT = 15.0
#: Bytes of a piece.
_PIECE = 64 * 1024


class FeedStream:
    """One reader.

    Args:
        feeds: all feeds.
        visitor: the reader.
        response: its answer.
        connection: its connection.
        recheck: seconds between two looks at its rights.
    """

    def __init__(
        self,
        feeds: FeedGroup,
        visitor: Visitor,
        response: web.StreamResponse,
        connection: Connection,
        recheck: float = RECHECK,
    ) -> None:
        self._feeds = feeds
        self._visitor = visitor
        self._response = response
        self._connection = connection
        self._recheck = recheck
        self._loop = asyncio.get_running_loop()
        #: The loop's time of the last bytes.
        self._sent = self._loop.time()

    async def run(self, visibility: Visibility, event_id: str) -> None:
        """Sends what the reader lacks, until it goes.

        Args:
            visibility: what it may see now.
            event_id: the last event that it has, as its header says.

        Raises:
            LoginNeededError: the reader's token is not valid any more.
            NotNowError: it cannot be judged.
            TooManyViewsError: see there.
            ConnectionError: the reader has gone.
        """
        while True:
            with self._feeds.join(visibility, self._visitor.key) as feed:
                version = _parse_event_id(feed, event_id)
                before, event_id = visibility, ""
                while visibility == before:
                    version = await self._follow(feed, version)
                    visibility = await self._visitor.visibility()

    async def _follow(self, feed: Feed, version: int | None) -> int | None:
        """Sends updates until the reader's rights are due; returns its version."""
        due = self._loop.time() + self._recheck
        while (left := due - self._loop.time()) > 0:
            update = feed.read(version)
            if update is not None:
                await self._send(feed, update)
                version = update.version
                continue
            try:
                async with asyncio.timeout(left):
                    await feed.wait(version)
            except TimeoutError:
                break
        if self._loop.time() - self._sent >= _HEARTBEAT:
            await self._write(b": still here\n\n")
        return version

    async def _send(self, feed: Feed, update: Update) -> None:
        first = update.version - len(update.texts) + 1
        for number, text in enumerate(update.texts, first):
            head = b"id: %s.%d\nevent: %s\ndata: " % (feed.name.encode(), number, update.event.encode())
            await self._write(head, text, b"\n\n")

    async def _write(self, *texts: bytes) -> None:
        for text in texts:
            for start in range(0, len(text), _PIECE):
                self._connection.set_deadline(PAGE_WRITE_TIME, "too slow a reader")
                await self._response.write(text[start : start + _PIECE])
        self._connection.clear_deadline()
        self._sent = self._loop.time()


def _parse_event_id(feed: Feed, text: str) -> int | None:
    """The version in an event id of this feed; None for any other text."""
    name, _, number = text.partition(".")
    return int(number[:15]) if name == feed.name and number.isascii() and number.isdecimal() else None
