"""Follows the configuration of this node: its labels, and the ConfigMaps of profiles, layouts and repairs of cards.

Rules:

* A change of a label or of a ConfigMap changes the desired configuration at once, without a restart.
* A ConfigMap that does not exist counts as empty. One that the agent may not read is reported, and the node keeps what
  it has. Neither stops the agent: it keeps watching, so it is enough to grant the right later.
* The desired configuration is computed only when one of its inputs changed, and each text is parsed once.
* A file of repairs with a mistake, or that cannot be read, changes nothing: what was in force before stays in force.
* A Node object that is gone for a moment keeps its configuration: a kubelet that registers anew must not cost a layout.

The agent keeps a sharing profile with its text on disk once it is in force
(:meth:`ConfigWatcher.note_applied_profile`). So a node whose label names a profile with a mistake keeps the last good
one, also over a restart or an upgrade of the agent, even if the ConfigMap has lost it.

Profiles: :mod:`tessera.api.sharing.profile` has the rules. If the choice cannot be followed, because the name is
unknown, the file has mistakes or the ConfigMap cannot be read, the node keeps the profile that was in force before,
with the reason.

Layouts: a ConfigMap may hold several files of layouts; NVIDIA's holds one under ``config.yaml``. The names of all files
count together. A file with mistakes matters to a node only if it may hold the node's layout. A name in two files is
refused. This module knows neither layouts without a file nor the goals that a layout sets for each card.
"""

import asyncio
import logging
from collections.abc import Mapping
from difflib import get_close_matches
from functools import lru_cache
from pathlib import Path

import msgspec

from tessera.agent.base.node_files import StateFile
from tessera.agent.base.runtime import AgentRuntime
from tessera.agent.base.settings import AppliedProfile, ConfigMapName, DesiredLayout, DesiredSharing
from tessera.agent.base.wake_ups import Fact
from tessera.api.mig_layouts import LayoutEntry, MigLayouts, parse_layouts
from tessera.api.names import DEVICE_API_DRA, DEVICE_API_LABEL, MIG_CONFIG_DYNAMIC, MIG_CONFIG_LABEL, REPAIRS_KEY
from tessera.api.nodes.repairs import Repairs, parse_repairs
from tessera.api.problems import FileRefused
from tessera.api.sharing.profile import PROFILE_LABEL, SharingProfile, UnknownSharingProfile, choose_profile
from tessera.api.sharing.profile_parser import parse_profile
from tessera.kube.cache import WatchEvent
from tessera.kube.errors import Forbidden
from tessera.kube.informer import ObjectInformer
from tessera.kube.resources import CONFIGMAPS, ConfigMap

PROFILE_MISSING, PROFILE_REFUSED, PROFILES_UNREADABLE = "ProfileMissing", "ProfileRefused", "ProfilesUnreadable"
LAYOUTS_REFUSED, LAYOUT_AMBIGUOUS, LAYOUTS_UNREADABLE = "LayoutsRefused", "LayoutAmbiguous", "LayoutsUnreadable"

#: Largest number of characters in the value of a label (Kubernetes, labels and selectors).
LABEL_LENGTH = 63


class ConfigMapFiles(msgspec.Struct, frozen=True, kw_only=True):
    """The files of a ConfigMap.

    Attributes:
        source: its name in messages, ``ConfigMap kube-system/profiles``; empty if none is configured.
        texts: the files by key; empty if the ConfigMap does not exist.
        error: why the ConfigMap cannot be read; ``None`` if it can, or if none is configured.
    """

    source: str = ""
    texts: Mapping[str, str] = {}
    error: str | None = None


@lru_cache(maxsize=32)
def read_profile(text: str) -> SharingProfile | FileRefused:
    """Parses a profile; returns its mistakes instead if it has any."""
    try:
        return parse_profile(text)
    except FileRefused as refusal:
        return refusal


def select_profile(files: ConfigMapFiles, label: str, default: str, last: AppliedProfile | None) -> DesiredSharing:
    """Returns the profile that a node must follow.

    Args:
        files: the profiles.
        label: value of the node's label; empty if it has none.
        default: the cluster's default; empty if it has none.
        last: the profile that was in force before.
    """
    if files.error is not None:
        return _keep_last(last, f"{files.source}: {files.error}", PROFILES_UNREADABLE)
    try:
        chosen = choose_profile(files.texts, label, default)
    except UnknownSharingProfile as error:
        where = f" in {files.source}" if files.source else "; no ConfigMap of profiles is configured (--sharing-config)"
        meant = f'; did you mean "{error.closest}"?' if error.closest else ""
        return _keep_last(last, f"{error}{where}{meant}", PROFILE_MISSING)
    if not chosen.name:
        return DesiredSharing(reason=chosen.reason, last=last)
    profile = read_profile(chosen.text)
    if isinstance(profile, FileRefused):
        return _keep_last(last, f'profile "{chosen.name}" of {files.source}: {profile}', PROFILE_REFUSED)
    return DesiredSharing(name=chosen.name, text=chosen.text, profile=profile, reason=chosen.reason, last=last)


def _keep_last(last: AppliedProfile | None, problem: str, reason: str) -> DesiredSharing:
    kept = last or AppliedProfile()
    return DesiredSharing(
        name=kept.name,
        text=kept.text,
        profile=kept.profile,
        reason="nothing was in force before" if last is None else "it was in force before",
        problem=problem,
        problem_reason=reason,
        last=last,
    )


@lru_cache(maxsize=32)
def read_layouts(text: str) -> MigLayouts | FileRefused:
    """Parses a file of layouts; returns its mistakes instead if it has any."""
    try:
        return parse_layouts(text)
    except FileRefused as refusal:
        return refusal


def select_layout(files: ConfigMapFiles, label: str, default: str) -> DesiredLayout:
    """Returns the layout that a node must have.

    Args:
        files: the files of layouts.
        label: value of the node's label; empty if it has none.
        default: the cluster's default; empty if it has none.
    """
    name = label or default
    if not name:
        return DesiredLayout(reason="no label and no default")
    reason = f"the node's label {MIG_CONFIG_LABEL}" if label else "the cluster's default"
    if name == MIG_CONFIG_DYNAMIC:
        return DesiredLayout(name=name, reason=reason, is_default=not label)
    entries, problem, problem_reason = _find_layout(files, name)
    absent = entries is None and problem is None
    return DesiredLayout(
        name=name,
        entries=entries,
        reason=reason,
        is_default=not label,
        problem=problem,
        problem_reason=problem_reason,
        closest=_closest_name(files, name) if absent else "",
    )


def _closest_name(files: ConfigMapFiles, name: str) -> str:
    """The name of the layout in the files that is most like this one; empty if none is."""
    every = [read_layouts(text) for text in files.texts.values()]
    names = [each for layouts in every if isinstance(layouts, MigLayouts) for each in layouts.layouts]
    close = get_close_matches(name[:LABEL_LENGTH], [each for each in names if len(each) <= LABEL_LENGTH], n=1)
    return close[0] if close else ""


def _find_layout(files: ConfigMapFiles, name: str) -> tuple[tuple[LayoutEntry, ...] | None, str | None, str | None]:
    """The layout of that name, or message and reason of the problem; all ``None`` if no file has it."""
    if files.error is not None:
        return None, f"{files.source}: {files.error}", LAYOUTS_UNREADABLE
    found: dict[str, tuple[LayoutEntry, ...]] = {}
    refused: list[str] = []
    for key, text in sorted(files.texts.items()):
        layouts = read_layouts(text)
        if isinstance(layouts, FileRefused):
            refused.append(f"{files.source}, file {key}: {layouts}")
        elif name in layouts.layouts:
            found[key] = layouts.layouts[name]
    if len(found) > 1:
        text = f'{files.source}: the layout "{name}" is in the files {", ".join(found)}; keep it in one of them'
        return None, text, LAYOUT_AMBIGUOUS
    if found:
        return next(iter(found.values())), None, None
    return (None, "; ".join(refused), LAYOUTS_REFUSED) if refused else (None, None, None)


_log = logging.getLogger(__name__)

#: Name of the file with the last profile, in the agent's folder.
FILE_NAME = "sharing-profile.json"


class _StoredProfile(msgspec.Struct, frozen=True):
    """A profile's name and its text."""

    name: str
    text: str


class LastAppliedProfile:
    """The sharing profile that was in force last.

    Args:
        folder: folder of the agent's state.

    Attributes:
        profile: the last profile in force; ``None`` if there never was one. The same object until it changes.
    """

    def __init__(self, folder: Path) -> None:
        self._file = StateFile(folder / FILE_NAME, _StoredProfile)
        self.profile = self._load()

    def save(self, name: str, text: str) -> None:
        """Saves a profile that is in force. Cheap if it is the same as before.

        Raises:
            FileRefused: the text is not a profile, so it cannot be in force.
        """
        if self.profile is None or (self.profile.name, self.profile.text) != (name, text):
            profile = read_profile(text)
            if isinstance(profile, FileRefused):
                raise profile
            self.profile = AppliedProfile(name=name, text=text, profile=profile)
        self._file.save_if_possible(_StoredProfile(name, text), f'sharing profile "{name}" is not kept')

    def _load(self) -> AppliedProfile | None:
        kept = self._file.load()
        if kept is None:
            return None
        profile = read_profile(kept.text)
        if isinstance(profile, FileRefused):
            _log.warning('the sharing profile "%s", last in force, is no longer one: %s', kept.name, profile)
            return None
        return AppliedProfile(name=kept.name, text=kept.text, profile=profile)


class ConfigWatcher:
    """The desired configuration of one node.

    Args:
        runtime: the ConfigMaps, the defaults, and the Node as last seen. The mirror of the node announces labels.
    """

    def __init__(self, runtime: AgentRuntime) -> None:
        options = runtime.options
        self._mirror = runtime.mirror
        self._profiles = _ConfigMapWatcher(runtime, options.sharing_config, Fact.DESIRED_PROFILE)
        self._layouts = _ConfigMapWatcher(runtime, options.mig_config, Fact.DESIRED_LAYOUT)
        self._repairs = _ConfigMapWatcher(runtime, options.repairs, Fact.REPAIRS)
        self._profile_default = options.sharing_default
        self._layout_default = options.mig_default
        self._has_claim_driver = bool(options.claim_driver)
        self._last = LastAppliedProfile(options.state_dir)
        #: Values of the labels of profile, layout and :data:`DEVICE_API_LABEL`, as the Node last had them.
        self._labels = ("", "", "")
        #: The last results, each behind its inputs.
        self._sharing: tuple[object, DesiredSharing] | None = None
        self._layout: tuple[object, DesiredLayout] | None = None
        self._read_repairs: tuple[object, Repairs | None] | None = None

    async def run(self) -> None:
        """Mirrors the ConfigMaps until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._profiles.run())
            group.create_task(self._layouts.run())
            group.create_task(self._repairs.run())

    async def wait_first_read(self) -> None:
        """Waits until each ConfigMap has been read or refused once; :meth:`run` must be running."""
        await self._profiles.wait_first_read()
        await self._layouts.wait_first_read()
        await self._repairs.wait_first_read()

    @property
    def sharing(self) -> DesiredSharing:
        """The profile that the node must follow; the same object until something changes."""
        inputs = (self._label_values()[0], self._profiles.files, self._last.profile)
        if self._sharing is None or self._sharing[0] != inputs:
            label, files, last = inputs
            desired = select_profile(files, label, self._profile_default, last)
            self._sharing = (inputs, desired)
        return self._sharing[1]

    def layout(self) -> DesiredLayout:
        """The layout that the node must have; the same object until something changes."""
        _, label, api = self._label_values()
        profile = self.sharing.profile if self.sharing.profile.blocks else None
        by_claims = self._has_claim_driver and api == DEVICE_API_DRA
        sharing = profile if by_claims else None
        inputs = (label, self._layouts.files, by_claims, sharing)
        if self._layout is None or self._layout[0] != inputs:
            found = select_layout(self._layouts.files, label, self._layout_default)
            self._layout = (inputs, msgspec.structs.replace(found, whole_by_claims=by_claims, sharing=sharing))
        return self._layout[1]

    @property
    def repairs(self) -> Repairs | None:
        """The settings for cards with faults; None if they cannot be read or have a mistake."""
        files = self._repairs.files
        if self._read_repairs is None or self._read_repairs[0] != files:
            self._read_repairs = (files, _read_repairs(files))
        return self._read_repairs[1]

    @property
    def applied_profile(self) -> AppliedProfile:
        """The profile that is in force, from the last :meth:`note_applied_profile`."""
        return self._last.profile or AppliedProfile()

    def note_applied_profile(self, name: str, text: str) -> None:
        """Notes that the devices are advertised by this profile, and saves it. Cheap if it is the same as before.

        Args:
            name: name of the profile.
            text: text of the profile.

        Raises:
            FileRefused: the text is not a profile, so it cannot be in force.
        """
        self._last.save(name, text)

    def _label_values(self) -> tuple[str, str, str]:
        node = self._mirror.node()
        if node is not None:
            labels = node.metadata.labels
            self._labels = (
                labels.get(PROFILE_LABEL, ""),
                labels.get(MIG_CONFIG_LABEL, ""),
                labels.get(DEVICE_API_LABEL, ""),
            )
        return self._labels


def _read_repairs(files: ConfigMapFiles) -> Repairs | None:
    if files.error is not None:
        return None
    try:
        return parse_repairs(files.texts.get(REPAIRS_KEY, ""))
    except ValueError as error:
        _log.warning("%s; what was in force before stays in force", error)
        return None


class _ConfigMapWatcher:
    """The files of one ConfigMap, if one is configured."""

    def __init__(self, runtime: AgentRuntime, name: ConfigMapName | None, fact: Fact) -> None:
        self.files = ConfigMapFiles()
        self._changes, self._fact = runtime.changes, fact
        self._informer: ObjectInformer[ConfigMap] | None = None
        if name is not None:
            self.files = ConfigMapFiles(source=f"ConfigMap {name.namespace}/{name.name}", error="is not read yet")
            self._informer = ObjectInformer(
                runtime.client,
                CONFIGMAPS,
                name.name,
                namespace=name.namespace,
                clock=runtime.clock,
                rng=runtime.rng,
            )
            self._informer.add_handler(self._on_event)

    async def run(self) -> None:
        if self._informer is None:
            return
        async with asyncio.TaskGroup() as group:
            group.create_task(self._informer.run())
            await self._informer.reflector.attempted.wait()
            self._update()
            await self._informer.wait_synced()
            self._update()

    async def wait_first_read(self) -> None:
        if self._informer is not None:
            await self._informer.reflector.attempted.wait()
            self._update()

    def _on_event(self, _event: WatchEvent[ConfigMap]) -> None:
        self._update()

    def _update(self) -> None:
        """Takes the files from the cache, or the error that keeps it empty."""
        assert self._informer is not None
        found, error = self._informer.object, self._informer.reflector.error
        texts = found.data if found is not None else {}
        read_error = _describe_error(error) if error is not None and found is None else None
        files = msgspec.structs.replace(self.files, texts=texts, error=read_error)
        if files != self.files:
            self.files = files
            self._changes.notify(self._fact)


def _describe_error(error: Exception) -> str:
    hint = "; grant the agent list and watch on it" if isinstance(error, Forbidden) else ""
    return f"cannot be read: {error}{hint}"
