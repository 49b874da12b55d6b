"""A resolver whose found images survive a restart, so that a registry outage does not hit a new controller harder.

It loads the ConfigMap ``driver-images`` before the first query and rewrites it after a query found a new image. The
newest images that fit are kept; content that cannot be decoded is ignored and replaced.
"""

import asyncio
import logging
import random
from collections.abc import Mapping

import msgspec

from tessera.clock import Clock
from tessera.driver.images.resolver import CachedImage, RegistryResolver
from tessera.driver.resolution import ImageQuery, Outcome, Resolution
from tessera.kube.client.client import Client
from tessera.kube.persistent_config_map import PersistentConfigMap
from tessera.limits.drivers import DRIVER_MEMORY, REMEMBERED_IMAGES

_log = logging.getLogger(__name__)

CONFIG_MAP = "driver-images"
KEY = "images.json"


class PersistentResolver:
    """A :class:`~tessera.driver.resolution.Resolver` whose answers outlive the process.

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
                "what ConfigMap %s says of images cannot be read, they are asked for anew: %s", CONFIG_MAP, error
            )
            return
        self._resolver.restore(images[:REMEMBERED_IMAGES])

    def _data(self) -> Mapping[str, str]:
        newest = sorted(self._resolver.cached_images(), key=lambda each: each.checked, reverse=True)[:REMEMBERED_IMAGES]
        kept = sorted(newest, key=lambda each: (each.reference, each.architecture))
        return {KEY: msgspec.json.encode(kept).decode()}
