"""Fills the ConfigMaps of sharing profiles and MIG layouts with what this version brings, so that no edit is ever lost.

The manifests make the two ConfigMaps without entries, so that no tool that applies manifests ever overwrites one. The
controller fills them in, and an annotation has the digest of each entry that it wrote. It follows both, and sends
nothing while they are as they should be. A ConfigMap that does not exist is not made: an installation without it wants
none. A write that fails is tried again with growing pauses; one that meets a newer object is decided anew.

Rules:

- An entry whose text has the digest in the annotation is as Tessera wrote it. It is replaced when a new version brings
  another text, and removed when a new version does not have it any more.
- An entry with another text was edited. It stays, and so does its digest: it is edited until it has that text again.
- An entry with a digest that is not there was removed by somebody. It stays away.
- A ConfigMap without the annotation that has entries is somebody's own: nothing is added. An additional profile could
  change which profile nodes without a label have, and an additional layout could have the name of another.
"""

import asyncio
import hashlib
import logging
from collections.abc import Mapping

import msgspec

from tessera.api.names import OWN_LAYOUTS, OWN_PROFILES
from tessera.controller.defaults.default_files import LAYOUTS_KEY, default_layouts, default_profiles
from tessera.kube.backoff import Backoff
from tessera.kube.client.errors import ApiError
from tessera.kube.resources import CONFIGMAPS, ConfigMap
from tessera.kube.runtime import KubeRuntime
from tessera.kube.watch.informer import Informer

#: Most characters: the annotation with the digests of the profiles and layouts that Tessera brought. It has 30
#: characters for each of its entries; a longer one is somebody's, and all entries count as edited.
DEFAULT_ENTRIES = 16_384


#: Digests of the entries that Tessera wrote, as a JSON object.
ANNOTATION = "tessera.dev/default-entries"


class EntryChanges(msgspec.Struct, frozen=True):
    """A change of a ConfigMap.

    Attributes:
        data: new text by key; ``None`` removes the entry.
        digests: the annotation's value afterwards.
    """

    data: Mapping[str, str | None]
    digests: str


def plan_entries(present: Mapping[str, str], annotation: str | None, wanted: Mapping[str, str]) -> EntryChanges | None:
    """Returns the change of a ConfigMap; ``None`` if it is as it should be.

    Args:
        present: its entries.
        annotation: the annotation's value; ``None`` if it has none.
        wanted: the entries that this version brings.
    """
    if annotation is None and present:
        return None
    written = _read_digests(annotation or "{}")
    data: dict[str, str | None] = {}
    digests: dict[str, str] = {}
    for key, text in wanted.items():
        if key not in written and key in present:
            continue  # somebody's own entry, with a name that this version brings too
        if key not in written or (present.get(key) != text and _is_as_written(present, key, written)):
            data[key] = text
        digests[key] = digest(text) if key in data or present.get(key) == text else written[key]
    for key in written.keys() - wanted.keys():
        if _is_as_written(present, key, written):
            data[key] = None
        elif key in present:
            digests[key] = written[key]
    encoded = msgspec.json.encode(dict(sorted(digests.items()))).decode()
    if not data and encoded == annotation:
        return None
    return EntryChanges(data=data, digests=encoded)


def _is_as_written(present: Mapping[str, str], key: str, written: Mapping[str, str]) -> bool:
    return key in present and digest(present[key]) == written[key]


def digest(text: str) -> str:
    """The digest of an entry: enough of SHA-256 to tell edits, not to withstand an attack of the entry's own author."""
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _read_digests(annotation: str) -> Mapping[str, str]:
    """The digests in an annotation; none if somebody spoiled it, so that all present entries count as edited."""
    if len(annotation) > DEFAULT_ENTRIES:
        return {}
    try:
        return msgspec.json.decode(annotation.encode(), type=dict[str, str])
    except (msgspec.DecodeError, UnicodeEncodeError):
        return {}


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
