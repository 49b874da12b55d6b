"""Sends the feed to one reader, for as long as the reader may see it.

1. A reader's rights are looked at every few seconds. If they have changed, the reader changes to the feed of its new
   rights, which begins with a snapshot that replaces what it has.
2. Texts are sent in pieces. A reader holds one piece, and is cut off if it does not take it in time.
"""

import asyncio

from aiohttp import web

from tessera.dashboard.feed import Feed, FeedGroup, Update
from tessera.dashboard.visitors import Visitor
from tessera.serving.connection import Connection
from tessera.visibility import Visibility

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
