"""The book of records in its ConfigMap ``provisioning-records``: read once, written a moment after it changed.

One process writes it, the leader; what it writes replaces what is there. Lines that cannot be read are set aside within
the ConfigMap and told in an Event; they are no reason to stop.
"""

import asyncio
import logging
import random
from collections.abc import Callable

from tessera.clock import Clock
from tessera.kube.backoff import Backoff
from tessera.kube.client import Client
from tessera.kube.errors import ApiError, Forbidden, NotFound
from tessera.kube.events import EventRecorder, reference_to
from tessera.kube.resources import CONFIGMAPS
from tessera.provisioning.records import BROKEN_KEY, Book

_log = logging.getLogger(__name__)

RECORDS_NAME = "provisioning-records"
#: Seconds in which changes gather before they are written.
SETTLE = 5.0


class BookStore:
    """Keeps a book in the cluster.

    Args:
        client: who reads and writes.
        clock: for pauses.
        namespace: where the ConfigMap lives.
        most: records of nodes that are kept, and of pods.
        events: where broken content is told.
        rng: for jitter.
        may_act: whether this replica still leads.

    Attributes:
        book: what is kept.
    """

    def __init__(
        self,
        client: Client,
        clock: Clock,
        *,
        namespace: str,
        most: int,
        events: EventRecorder,
        rng: random.Random,
        may_act: Callable[[], bool],
    ) -> None:
        self.book = Book(most)
        self._client = client
        self._clock = clock
        self._namespace = namespace
        self._events = events
        self._may_act = may_act
        self._backoff = Backoff(rng)
        self._changed = asyncio.Event()
        self._written = asyncio.Lock()

    async def load(self) -> None:
        """Reads what is kept; insists until the server answers. Without the right to read, begins empty."""
        while True:
            try:
                found = await self._client.get(CONFIGMAPS, RECORDS_NAME, self._namespace)
            except NotFound:
                return
            except Forbidden as error:
                _log.warning("records of provisioning are not kept, grant get, create and patch of it: %s", error)
                return
            except (ApiError, ConnectionError, TimeoutError) as error:
                await self._pause(error)
            else:
                self._backoff.reset()
                self._tell(self.book.read(found.data))
                return

    def changed(self) -> None:
        """The book is to be written."""
        self._changed.set()

    async def run(self) -> None:
        """Writes until cancelled."""
        while True:
            await self._changed.wait()
            await self._clock.sleep(SETTLE)
            try:
                await self.flush()
            except Forbidden:
                continue  # said when it was read; the next change tries again
            except (ApiError, ConnectionError, TimeoutError) as error:
                self._changed.set()
                await self._pause(error)

    async def flush(self) -> None:
        """Writes now.

        Raises:
            ConnectionError: there was no answer, or this replica does not lead any more.
            ApiError: the server refused.
        """
        async with self._written:
            if not self._may_act():
                raise ConnectionError("this replica does not lead any more; nothing was sent")
            self._changed.clear()
            data = {"data": self.book.data()}
            try:
                await self._client.merge_patch(CONFIGMAPS, RECORDS_NAME, data, self._namespace)
            except NotFound:
                await self._client.create(CONFIGMAPS, {"metadata": {"name": RECORDS_NAME}, **data}, self._namespace)
            self._backoff.reset()

    def _tell(self, faults: list[str]) -> None:
        if not faults:
            return
        text = f"{len(faults)} records cannot be read and are set aside under {BROKEN_KEY}; the first: {faults[0]}"
        _log.warning("ConfigMap %s/%s: %s", self._namespace, RECORDS_NAME, text)
        about = reference_to(CONFIGMAPS, RECORDS_NAME, self._namespace)
        self._events.record(about, "RecordsUnreadable", text, type="Warning")
        self._changed.set()

    async def _pause(self, error: Exception) -> None:
        pause = self._backoff.next()
        _log.info("ConfigMap %s/%s: %s; again in %.1f s", self._namespace, RECORDS_NAME, error, pause)
        await self._clock.sleep(pause)
