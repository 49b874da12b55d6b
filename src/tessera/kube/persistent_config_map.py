"""A ConfigMap in which one process keeps data that must outlive it: read once, written soon after each change.

A write replaces the given entries. The caller defines and bounds the entries, and skips those that it cannot read.

An API server that has just started answers before it has read all roles, and refuses for a moment what is allowed. If
that counted as a missing right, the next write would replace the entries that were not read. So a refusal counts only
once it has lasted for a while.

A ConfigMap of a newer version is neither read nor written: the process works without it, and the newer version finds it
as it was.
"""

import asyncio
import logging
import random
from collections.abc import Callable, Mapping

from tessera.clock import Clock
from tessera.kube.client import Client
from tessera.kube.errors import ApiError, Forbidden, NotFound
from tessera.kube.resources import CONFIGMAPS
from tessera.kube.resources.meta import FORMAT_ANNOTATION, is_known_format
from tessera.kube.retries import Backoff
from tessera.limits import ECHOED

_log = logging.getLogger(__name__)

#: The version of the entries' formats that this code reads and writes. It changes if code of the version before would
#: misread an entry, not if it would skip it.
RECORDS_FORMAT = 1
#: Seconds in which changes gather before they are written.
SETTLE = 5.0
#: Seconds after which a refusal to read is a missing right. kube-apiserver 1.36.2 refused service accounts for about a
#: second after its restart, on a busy machine.
REFUSED_FOR = 20.0


class PersistentConfigMap:
    """Loads the ConfigMap, and writes it after changes.

    Args:
        client: the client that reads and writes: get, create, and patch of this name.
        clock: for pauses.
        namespace: where it lives.
        name: its name.
        data: returns the entries to write; called at each write.
        rng: for jitter.
        may_act: returns True while this process may write; called before each write.
    """

    def __init__(
        self,
        client: Client,
        clock: Clock,
        *,
        namespace: str,
        name: str,
        data: Callable[[], Mapping[str, str]],
        rng: random.Random,
        may_act: Callable[[], bool] = lambda: True,
    ) -> None:
        self._client = client
        self._clock = clock
        self._namespace = namespace
        self._name = name
        self._data = data
        self._may_act = may_act
        self._backoff = Backoff(rng)
        self._changed = asyncio.Event()
        self._writing = asyncio.Lock()
        #: True if a newer version has written the ConfigMap.
        self._refused = False

    async def load(self) -> Mapping[str, str]:
        """Reads the entries; tries until the server answers. Empty without the right to read."""
        latest = self._clock.monotonic() + REFUSED_FOR
        while True:
            try:
                found = await self._client.get(CONFIGMAPS, self._name, self._namespace)
            except NotFound:
                return {}
            except Forbidden as error:
                if self._clock.monotonic() < latest:
                    await self._pause(error)
                    continue
                _log.warning("%s is not kept, grant get, create and patch of it: %s", self._label, error)
                return {}
            except (ApiError, ConnectionError, TimeoutError) as error:
                await self._pause(error)
            else:
                self._backoff.reset()
                self._refused = not is_known_format(found.metadata, RECORDS_FORMAT)
                if self._refused:
                    _log.warning("%s", self._newer_text(found.metadata.annotations[FORMAT_ANNOTATION]))
                return {} if self._refused else found.data

    def mark_changed(self) -> None:
        """Schedules a write."""
        self._changed.set()

    async def run(self) -> None:
        """Writes until cancelled."""
        while True:
            await self._changed.wait()
            await self._clock.sleep(SETTLE)
            try:
                await self.flush()
            except Forbidden:
                continue  # logged by load(); the next change tries again
            except (ApiError, ConnectionError, TimeoutError) as error:
                self._changed.set()
                await self._pause(error)

    async def flush(self) -> None:
        """Writes now.

        Raises:
            ConnectionError: there was no answer, or this process must not write any more.
            ApiError: the server refused.
        """
        async with self._writing:
            if not self._may_act():
                raise ConnectionError("this replica does not lead any more; nothing was sent")
            self._changed.clear()
            if self._refused:
                return
            stamp = {"annotations": {FORMAT_ANNOTATION: str(RECORDS_FORMAT)}}
            data = {"data": dict(self._data())}
            try:
                await self._client.merge_patch(CONFIGMAPS, self._name, {"metadata": stamp, **data}, self._namespace)
            except NotFound:
                await self._client.create(
                    CONFIGMAPS, {"metadata": {"name": self._name, **stamp}, **data}, self._namespace
                )
            self._backoff.reset()

    def _newer_text(self, version: str) -> str:
        return (
            f"{self._label}: annotation {FORMAT_ANNOTATION} is {version[:ECHOED]!r}, this version knows formats up to"
            f" {RECORDS_FORMAT}: a newer version wrote it, and it stays as it is. Install the newer version again, or"
            " delete the ConfigMap to begin anew"
        )

    @property
    def _label(self) -> str:
        return f"ConfigMap {self._namespace}/{self._name}"

    async def _pause(self, error: Exception) -> None:
        pause = self._backoff.next()
        _log.info("%s: %s; again in %.1f s", self._label, error, pause)
        await self._clock.sleep(pause)
