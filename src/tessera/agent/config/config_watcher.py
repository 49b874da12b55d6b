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
"""

import asyncio
import logging
from pathlib import Path

import msgspec

from tessera.agent.base.change_notifier import Fact
from tessera.agent.base.desired_config import AppliedProfile, DesiredLayout, DesiredSharing
from tessera.agent.base.options import ConfigMapName
from tessera.agent.base.runtime import AgentRuntime
from tessera.agent.base.state_file import StateFile
from tessera.agent.config.selection import ConfigMapFiles, read_profile, select_layout, select_profile
from tessera.api.names import DEVICE_API_DRA, DEVICE_API_LABEL, MIG_CONFIG_LABEL
from tessera.api.nodes.repairs import REPAIRS_KEY, Repairs, parse_repairs
from tessera.api.problems import FileRefused
from tessera.api.sharing.profile_selection import PROFILE_LABEL
from tessera.kube.client.errors import Forbidden
from tessera.kube.resources import CONFIGMAPS, ConfigMap
from tessera.kube.watch.cache import WatchEvent
from tessera.kube.watch.informer import Informer

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
    """

    def __init__(self, folder: Path) -> None:
        self._file = StateFile(folder / FILE_NAME, _StoredProfile)
        self._profile = self._load()

    @property
    def profile(self) -> AppliedProfile | None:
        """The last profile in force; ``None`` if there never was one. The same object until it changes."""
        return self._profile

    def save(self, name: str, text: str) -> None:
        """Saves a profile that is in force. Cheap if it is the same as before.

        Raises:
            FileRefused: the text is not a profile, so it cannot be in force.
        """
        if self._profile is None or (self._profile.name, self._profile.text) != (name, text):
            profile = read_profile(text)
            if isinstance(profile, FileRefused):
                raise profile
            self._profile = AppliedProfile(name=name, text=text, profile=profile)
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
        #: The controller gives shares by the record of their places, which kube-scheduler's allocator does not choose.
        self._gives_shares = options.claim_placement == "controller"
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

    @property
    def layout(self) -> DesiredLayout:
        """The layout that the node must have; the same object until something changes."""
        _, label, api = self._label_values()
        profile = self.sharing.profile if self.sharing.profile.blocks else None
        by_claims = self._has_claim_driver and api == DEVICE_API_DRA and (self._gives_shares or profile is None)
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
        self._informer: Informer[ConfigMap] | None = None
        if name is not None:
            self.files = ConfigMapFiles(source=f"ConfigMap {name.namespace}/{name.name}", error="is not read yet")
            by_name = f"metadata.name={name.name}"
            self._informer = Informer(
                runtime.client,
                CONFIGMAPS,
                namespace=name.namespace,
                field_selector=by_name,
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
        objects = list(self._informer.cache.values())
        error = self._informer.reflector.error
        texts = objects[0].data if objects else {}
        read_error = _describe_error(error) if error is not None and not objects else None
        files = msgspec.structs.replace(self.files, texts=texts, error=read_error)
        if files != self.files:
            self.files = files
            self._changes.notify(self._fact)


def _describe_error(error: Exception) -> str:
    hint = "; grant the agent list and watch on it" if isinstance(error, Forbidden) else ""
    return f"cannot be read: {error}{hint}"
