"""Keeps the documents of the live page, and hands out what changed to any number of readers.

1. A change gets the next version. Its text is encoded once, however many readers there are.
2. A reader has a version. It gets the changes since then if they are still kept, else a snapshot of everything; so a
   slow reader costs nothing but a snapshot, and nothing is queued for it.
3. Only the last :data:`~tessera.limits.processes.FEED_CHANGES` changes are kept.
"""

import asyncio
from collections import deque
from collections.abc import Mapping
from typing import NamedTuple

import msgspec

from tessera.dashboard.documents import Document
from tessera.limits.processes import FEED_CHANGES


class Update(NamedTuple):
    """An answer to a reader: the name of the event, the version after it, and its JSON texts in order."""

    event: str
    version: int
    texts: tuple[bytes, ...]


class Feed:
    """The documents and their last changes."""

    def __init__(self) -> None:
        #: The encoded documents by key.
        self._documents: dict[str, bytes] = {}
        #: The last changes as JSON, oldest first; the newest has the number :attr:`version`.
        self._changes: deque[bytes] = deque(maxlen=int(FEED_CHANGES))
        self._snapshot: bytes | None = None
        self._changed = asyncio.Event()
        self.version = 0

    def publish(self, documents: Mapping[str, Document]) -> None:
        """Makes these the documents; wakes the readers if any differs."""
        encoded = {key: msgspec.json.encode(document) for key, document in documents.items()}
        changed = {key: msgspec.Raw(text) for key, text in encoded.items() if self._documents.get(key) != text}
        gone = [key for key in self._documents if key not in encoded]
        if not changed and not gone:
            return
        self._documents = encoded
        self._snapshot = None
        self.version += 1
        self._changes.append(msgspec.json.encode({"set": changed, "gone": gone}))
        self._changed.set()
        self._changed = asyncio.Event()

    def read(self, version: int | None) -> Update | None:
        """Returns the changes since ``version``, or a snapshot for a reader without one; None if nothing changed."""
        if version == self.version:
            return None
        missing = None if version is None else self.version - version
        if missing is None or not 0 < missing <= len(self._changes):
            return Update("snapshot", self.version, (self._whole(),))
        return Update("change", self.version, tuple(self._changes)[-missing:])

    async def wait(self, version: int | None) -> None:
        """Returns once there is anything that a reader at ``version`` lacks."""
        while version == self.version:
            await self._changed.wait()

    def _whole(self) -> bytes:
        if self._snapshot is None:
            documents = {key: msgspec.Raw(text) for key, text in self._documents.items()}
            self._snapshot = msgspec.json.encode({"set": documents, "gone": []})
        return self._snapshot
