"""What registries said last, kept in the cluster: an outage that meets a fresh controller takes nothing away.

A resolver in front of another one. Before the first question it puts back what the ConfigMap ``driver-images`` holds;
after an answer that found another image it writes that down, a moment later. What is written is the newest that fits;
content that cannot be read is passed over and replaced.
"""

import asyncio
import contextlib
import logging

import msgspec

from tessera.clock import Clock
from tessera.driver.resolution import ImageQuery, Outcome, Resolution
from tessera.driver.resolver import LastGood, RegistryResolver
from tessera.kube.client import Client
from tessera.kube.errors import ApiError, NotFound
from tessera.kube.resources import CONFIGMAPS

_log = logging.getLogger(__name__)

CONFIG_MAP = "driver-images"
KEY = "images.json"
#: Seconds in which answers gather before they are written.
SETTLE = 5.0
#: Images that are kept; one is half a kilobyte of JSON, and a ConfigMap holds a megabyte.
MOST = 500
#: Characters of the ConfigMap that are read.
_LONGEST = 512 * 1024


class ImageMemory:
    """A :class:`~tessera.driver.resolution.Resolver` whose answers outlive the process.

    Args:
        resolver: who asks registries.
        client: keeps the ConfigMap.
        clock: for pauses.
        namespace: where the ConfigMap lives.
    """

    def __init__(self, resolver: RegistryResolver, client: Client, clock: Clock, *, namespace: str) -> None:
        self._resolver = resolver
        self._client = client
        self._clock = clock
        self._namespace = namespace
        self._loading: asyncio.Task[None] | None = None
        self._unwritten = asyncio.Event()
        self._known: frozenset[tuple[str, str]] = frozenset()

    async def run(self) -> None:
        """Writes down what was found, until cancelled."""
        while True:
            await self._unwritten.wait()
            await self._clock.sleep(SETTLE)
            self._unwritten.clear()
            await self._write()

    async def resolve(self, query: ImageQuery, *, fresh: bool = False) -> Resolution:
        """See :meth:`.Resolver.resolve`."""
        if self._loading is None:
            self._loading = asyncio.create_task(self._load())
        await asyncio.shield(self._loading)
        answer = await self._resolver.resolve(query, fresh=fresh)
        if answer.outcome is Outcome.FOUND and not answer.stale:
            self._note(answer)
        return answer

    def _note(self, answer: Resolution) -> None:
        found = (answer.reference, answer.digest)
        if found not in self._known:
            self._known |= {found}
            self._unwritten.set()

    async def _load(self) -> None:
        try:
            kept = await self._client.get(CONFIGMAPS, CONFIG_MAP, self._namespace)
            images = msgspec.json.decode(kept.data.get(KEY, "[]")[:_LONGEST], type=list[LastGood])
        except NotFound:
            return
        except (msgspec.DecodeError, RecursionError) as error:
            _log.warning(
                "ConfigMap %s/%s is not as it was written, images are asked anew: %s",
                self._namespace,
                CONFIG_MAP,
                error,
            )
            return
        except (ApiError, ConnectionError, TimeoutError) as error:
            _log.warning(
                "ConfigMap %s/%s cannot be read, images are asked anew: %s", self._namespace, CONFIG_MAP, error
            )
            return
        self._resolver.restore(images[:MOST])

    async def _write(self) -> None:
        newest = sorted(self._resolver.last_good(), key=lambda each: each.checked, reverse=True)[:MOST]
        text = msgspec.json.encode(sorted(newest, key=lambda each: (each.reference, each.architecture))).decode()
        # The next image that is found writes again; until then the cluster knows a little less.
        with contextlib.suppress(ApiError, ConnectionError, TimeoutError):
            await self._client.apply(CONFIGMAPS.untyped(), CONFIG_MAP, {"data": {KEY: text}}, self._namespace)
