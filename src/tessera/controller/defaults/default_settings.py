"""Fills the ConfigMaps of sharing profiles and MIG layouts with what this version brings.

It follows the two ConfigMaps, which hold a few texts and change seldom, and sends nothing while they are as they should
be. A ConfigMap that does not exist is not made: an installation without it wants none. A write that fails is tried
again with growing pauses; one that meets a newer object is decided anew.
"""

import asyncio
import logging
from collections.abc import Mapping

from tessera.api.mig_layouts.default_layouts import LAYOUTS_KEY, default_layouts
from tessera.api.names import OWN_LAYOUTS, OWN_PROFILES
from tessera.api.sharing.default_profiles import default_profiles
from tessera.controller.defaults.entries import ANNOTATION, plan_entries
from tessera.kube.backoff import Backoff
from tessera.kube.client.errors import ApiError
from tessera.kube.resources import CONFIGMAPS, ConfigMap
from tessera.kube.runtime import KubeRuntime
from tessera.kube.watch.informer import Informer

_log = logging.getLogger(__name__)


def default_entries() -> Mapping[str, Mapping[str, str]]:
    """The entries that this version brings, by the name of the ConfigMap."""
    return {OWN_PROFILES: default_profiles(), OWN_LAYOUTS: {LAYOUTS_KEY: default_layouts()}}


class DefaultSettings:
    """Fills the ConfigMaps, as long as a term of leadership lasts.

    Args:
        runtime: access to the cluster; its identity needs list, watch and patch of the two ConfigMaps.
        namespace: Tessera's own.
        entries: the entries by the name of the ConfigMap; those of this version unless a test gives others.
    """

    def __init__(
        self, runtime: KubeRuntime, *, namespace: str, entries: Mapping[str, Mapping[str, str]] | None = None
    ) -> None:
        self._runtime = runtime
        self._client = runtime.client
        self._namespace = namespace
        self._entries = default_entries() if entries is None else entries

    async def run(self) -> None:
        """Follows and writes until cancelled."""
        async with asyncio.TaskGroup() as group:
            for name, wanted in self._entries.items():
                group.create_task(self._follow(name, wanted))

    async def _follow(self, name: str, wanted: Mapping[str, str]) -> None:
        runtime = self._runtime
        changed = asyncio.Event()
        informer: Informer[ConfigMap] = Informer(
            self._client,
            CONFIGMAPS,
            namespace=self._namespace,
            field_selector=f"metadata.name={name}",
            clock=runtime.clock,
            rng=runtime.rng,
        )
        informer.add_handler(lambda _event: changed.set())
        backoff = Backoff(runtime.rng)
        async with asyncio.TaskGroup() as group:
            group.create_task(informer.run())
            while True:
                await changed.wait()
                changed.clear()
                for present in list(informer.cache.values()):
                    if await self._fill(present, wanted):
                        backoff.reset()
                    else:
                        changed.set()
                        await runtime.clock.sleep(backoff.next())

    async def _fill(self, present: ConfigMap, wanted: Mapping[str, str]) -> bool:
        """Writes the changes of one ConfigMap; returns False if that failed."""
        meta = present.metadata
        changes = plan_entries(present.data, meta.annotations.get(ANNOTATION), wanted)
        if changes is None or not self._runtime.may_act():
            return True
        patch = {"metadata": {"annotations": {ANNOTATION: changes.digests}}, "data": dict(changes.data)}
        try:
            await self._client.merge_patch(
                CONFIGMAPS, meta.name, patch, self._namespace, uid=meta.uid, resource_version=meta.resource_version
            )
        except (ApiError, ConnectionError, TimeoutError) as error:
            _log.info("ConfigMap %s/%s: the entries cannot be written: %s", self._namespace, meta.name, error)
            return False
        _log.info("ConfigMap %s/%s: wrote %s", self._namespace, meta.name, ", ".join(sorted(changes.data)) or "digests")
        return True
