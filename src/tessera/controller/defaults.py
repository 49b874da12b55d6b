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

An installation brings MIG layouts for every known model, and sharing profiles.

NVIDIA's MIG manager ships a file with ``all-disabled``, ``all-enabled``, ``all-balanced`` and ``all-<profile>`` for
each profile (mig-parted, ``config-default.yaml``). This one has the same names and counts, but it is made from the
geometry in :mod:`tessera.mig.models`, so it has every model with known placements. Each entry selects its cards by PCI
id, and by model for cards whose id is not in the table: a node of several models gets what fits each of its cards.

The names and the form of the profiles are those of CERN's articles on shared GPUs: ``slice-4`` makes four shares of
each whole card, a container gets one, and the resource is called ``nvidia.com/gpu.shared``. Shares by MPS are
``nvidia.com/gpu.mps``, so that both kinds can be in one cluster and a pod can tell them apart.

A controller that leads for the first time exempts the add-ons that it finds from the policy for pods, once, by a label
on their namespaces.

An add-on that owns its nodes (a network, a storage driver) runs privileged pods. Its namespace has a usual name, but a
name is no right: whoever may create namespaces could take one that does not exist. So the namespaces of these names
that exist when a controller first leads get the label, and the ConfigMap :data:`RECORD` says which. Where it exists,
nothing is labelled: an add-on that comes later is exempted by an administrator, whom ``tessera doctor`` tells.

A controller that dies between the labels and the record writes both again. A label with another value stays.
"""

import asyncio
import hashlib
import logging
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import cache

import msgspec

from tessera.api.mig_layouts import BALANCED, DISABLED, ENABLED, LayoutCardModel, generated_layouts
from tessera.api.names import ADD_ONS, DEVICE_ACCESS_ALLOWED, DEVICE_ACCESS_LABEL, OWN_LAYOUTS, OWN_PROFILES
from tessera.kube.errors import AlreadyExists, ApiError, NotFound
from tessera.kube.informer import ObjectInformer
from tessera.kube.leader_election import KubeRuntime
from tessera.kube.resources import CONFIGMAPS, NAMESPACES, ConfigMap
from tessera.kube.retries import Backoff
from tessera.mig.geometry import GpuModel
from tessera.mig.models import MODELS
from tessera.mig.names import resource_spelling

_log = logging.getLogger(__name__)

#: The ConfigMap that says which namespaces were exempted; its key has their names, one a line.
RECORD, RECORD_KEY = "exempt-namespaces", "namespaces"


async def exempt_add_ons(runtime: KubeRuntime, *, namespace: str) -> None:
    """Labels the namespaces, unless a controller has done so; tries again with growing pauses until it succeeds.

    Args:
        runtime: access to the cluster; its identity needs list of namespaces, patch of those of add-ons, and get and
            create of ConfigMaps in ``namespace``.
        namespace: Tessera's own.
    """
    backoff = Backoff(runtime.rng)
    while True:
        try:
            return await _exempt(runtime, namespace)
        except (ApiError, ConnectionError, TimeoutError) as error:
            _log.warning("the namespaces of add-ons cannot be exempted from the policy for pods yet: %s", error)
        await runtime.clock.sleep(backoff.next())


async def _exempt(runtime: KubeRuntime, namespace: str) -> None:
    client = runtime.client
    with suppress(NotFound):
        await client.get(CONFIGMAPS, RECORD, namespace)
        return
    found = await client.list(NAMESPACES.metadata_only(), label_selector=f"!{DEVICE_ACCESS_LABEL}")
    present = [each.metadata for each in found.items if each.metadata.name in ADD_ONS]
    label = {"metadata": {"labels": {DEVICE_ACCESS_LABEL: DEVICE_ACCESS_ALLOWED}}}
    for meta in present:
        await client.merge_patch(NAMESPACES, meta.name, label, uid=meta.uid)
    names = [meta.name for meta in present]
    record = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": RECORD, "namespace": namespace, "labels": {"app.kubernetes.io/part-of": "tessera"}},
        "data": {RECORD_KEY: "\n".join(names)},
    }
    with suppress(AlreadyExists):  # the answer to an earlier create was lost
        await client.create(CONFIGMAPS, record, namespace)
    _log.info("exempt from the policy for pods: %s", ", ".join(names) or "no namespace of an add-on exists")


#: The key of the file in its ConfigMap, as in NVIDIA's.
LAYOUTS_KEY = "config.yaml"
_NVIDIA = "10DE"
_HEADER = """\
# MIG layouts of Tessera, by the names of NVIDIA's MIG manager. A node has the one that its label names:
#   kubectl label node NODE nvidia.com/mig.config=all-balanced
# Tessera renews this text with each version until somebody changes it. Write your own layouts under another key.
version: v1
mig-configs:
"""


@cache
def default_layouts() -> str:
    """Returns the file."""
    return _HEADER + "".join(_layout_text(name, cards) for name, cards in _layouts().items())


def _layouts() -> Mapping[str, Mapping[tuple[tuple[str, int], ...], list[GpuModel]]]:
    """The models of each layout, grouped by the instances that a card has in it."""
    found: dict[str, dict[tuple[tuple[str, int], ...], list[GpuModel]]] = {DISABLED: {}, ENABLED: {}, BALANCED: {}}
    for model in MODELS:
        if model.table is None:
            continue
        made = generated_layouts([LayoutCardModel(0, model.table)])
        for name, (entry,) in made.items():
            if name in {DISABLED, ENABLED}:
                continue
            instances = tuple(sorted(entry.counts.items()))
            for spelling in (name, *_aliases(model, name)):
                found.setdefault(spelling, {}).setdefault(instances, []).append(model)
    return found


def _aliases(model: GpuModel, name: str) -> Iterator[str]:
    """Other names of a layout, for boards whose memory NVIDIA's tools round in two ways."""
    assert model.table is not None
    for profile in model.table.profiles:
        if name == f"all-{profile.spelling}":
            yield from (f"all-{resource_spelling(alias)}" for alias in profile.aliases)


def _layout_text(name: str, groups: Mapping[tuple[tuple[str, int], ...], list[GpuModel]]) -> str:
    if name == DISABLED:
        return f"  {name}:\n  - devices: all\n    mig-enabled: false\n"
    if name == ENABLED:
        return f"  {name}:\n  - devices: all\n    mig-enabled: true\n    mig-devices: {{}}\n"
    return f"  {name}:\n" + "".join(_entry_text(instances, models) for instances, models in groups.items())


def _entry_text(instances: tuple[tuple[str, int], ...], models: list[GpuModel]) -> str:
    wanted = ", ".join(f'"{profile}": {count}' for profile, count in instances)
    selected = ", ".join(f'"{each}"' for model in models for each in _filters(model))
    return f"  - devices: all\n    device-filter: [{selected}]\n    mig-enabled: true\n    mig-devices: {{{wanted}}}\n"


def _filters(model: GpuModel) -> Iterator[str]:
    yield model.short_name
    yield from (f"0x{each}{_NVIDIA}" for each in model.pci_device_ids)


#: Shares of a card in the profiles.
TIME_SLICES = (2, 4, 8, 10)
#: NVIDIA's limit is 48 clients of a card from compute capability 7.0 on; each gets its part of memory and threads.
MPS_SHARES = (2, 4, 8)

_PROFILE = """\
# {count} shares of each whole card, {how}. A node has the profile that its label names:
#   kubectl label node NODE nvidia.com/device-plugin.config={name}
# Tessera renews this text with each version until somebody changes it. Write your own profiles under other keys.
version: v1
sharing:
  {kind}:
{flags}    resources:
    - name: nvidia.com/gpu
      rename: {rename}
      replicas: {count}
"""


def default_profiles() -> Mapping[str, str]:
    """Returns the profiles by their name, which is their key in the ConfigMap."""
    slices = {f"slice-{count}": _time_slices(f"slice-{count}", count) for count in TIME_SLICES}
    return slices | {f"mps-{count}": _mps(f"mps-{count}", count) for count in MPS_SHARES}


def _time_slices(name: str, count: int) -> str:
    flags = "    failRequestsGreaterThanOne: true\n"
    how = "which take turns on it; nothing limits their memory (tessera agent --memory-limits does)"
    return _PROFILE.format(
        name=name, count=count, kind="timeSlicing", flags=flags, rename="nvidia.com/gpu.shared", how=how
    )


def _mps(name: str, count: int) -> str:
    how = "which run side by side; each has its part of memory and threads"
    return _PROFILE.format(name=name, count=count, kind="mps", flags="", rename="nvidia.com/gpu.mps", how=how)


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
        informer = ObjectInformer(
            self._client, CONFIGMAPS, name, namespace=self._namespace, clock=runtime.clock, rng=runtime.rng
        )
        informer.add_handler(lambda _event: changed.set())
        backoff = Backoff(runtime.rng)
        async with asyncio.TaskGroup() as group:
            group.create_task(informer.run())
            while True:
                await changed.wait()
                changed.clear()
                present = informer.object
                if present is None or await self._fill(present, wanted):
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
