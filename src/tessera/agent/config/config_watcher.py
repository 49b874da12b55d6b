"""Follows what administrators wish of this node: its labels, and the two ConfigMaps of profiles and layouts.

Rules:

* a change of label or of a ConfigMap's content is a change of the wish, at once and without a restart;
* a ConfigMap that is not there is an empty one. One that may not be read is a problem to be shown, and the node keeps
  what it has. Neither stops the agent: the watch goes on trying, so a right that is granted later is enough;
* a wish is worked out only when something that it is made of has changed, and a file is read once for each text;
* a node object that is gone for a moment keeps its wishes: a kubelet that registers anew must not cost a layout.

What becomes of a wish is not known here, but for one thing: whoever takes a profile says so, so that it can be kept
over mistakes and restarts.
"""

import asyncio
import logging
import random
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path

import msgspec

from tessera.agent.base.change_notifier import ChangeNotifier
from tessera.agent.base.desired_config import AppliedProfile, DesiredLayout, DesiredSharing
from tessera.agent.base.options import ConfigMapName
from tessera.agent.base.state_file import StateFile
from tessera.agent.config.selection import ConfigMapFiles, read_layouts, read_profile, select_layout, select_profile
from tessera.api.documents import FileRefused
from tessera.api.names import MIG_CONFIG_LABEL
from tessera.api.sharing.profile import SharingProfile
from tessera.api.sharing.profile_selection import PROFILE_LABEL
from tessera.clock import Clock
from tessera.kube.client.client import Client
from tessera.kube.client.errors import Forbidden
from tessera.kube.resources import CONFIGMAPS, ConfigMap, Node
from tessera.kube.watch.cache import Event
from tessera.kube.watch.informer import Informer
from tessera.limits import REMEMBERED_SETTINGS

_log = logging.getLogger(__name__)

#: The file's name in the agent's folder.
FILE_NAME = "sharing-profile.json"


class _Kept(msgspec.Struct, frozen=True):
    """A profile by name, and the text that it had."""

    name: str
    text: str


class LastAppliedProfile:
    """What was in force last.

    Args:
        folder: where the agent keeps its state.
        read: reads a profile's text; may remember what it has read.
    """

    def __init__(self, folder: Path, read: Callable[[str], SharingProfile | FileRefused]) -> None:
        self._file = StateFile(folder / FILE_NAME, _Kept)
        self._read = read
        self._profile = self._load()

    @property
    def profile(self) -> AppliedProfile | None:
        """The profile; ``None`` if none ever was in force. The same object until it changes."""
        return self._profile

    def save(self, name: str, text: str) -> None:
        """Says that this profile is in force. Cheap when nothing is new.

        Raises:
            FileRefused: the text is no profile, so it cannot be in force.
        """
        if self._profile is None or (self._profile.name, self._profile.text) != (name, text):
            profile = self._read(text)
            if isinstance(profile, FileRefused):
                raise profile
            self._profile = AppliedProfile(name=name, text=text, profile=profile)
        try:
            self._file.save(_Kept(name, text))
        except OSError as error:
            _log.warning('sharing profile "%s" is in force, but not kept for a restart of the agent: %s', name, error)

    def _load(self) -> AppliedProfile | None:
        kept = self._file.load()
        if kept is None:
            return None
        profile = self._read(kept.text)
        if isinstance(profile, FileRefused):
            _log.warning('the sharing profile "%s", last in force, is no longer one: %s', kept.name, profile)
            return None
        return AppliedProfile(name=kept.name, text=kept.text, profile=profile)


class ConfigWatcher:
    """The wishes for one node.

    Args:
        client: the API server.
        node: the node as last seen; ``None`` while there is no such object.
        profiles: the ConfigMap of sharing profiles; ``None`` for no profiles.
        profile_default: profile of nodes without a label that names one; empty for none.
        layouts: the ConfigMap of MIG layouts; ``None`` for no files of layouts.
        layout_default: layout of nodes without a label that names one; empty to leave their cards as they are.
        state_dir: where the last profile that was in force is kept.
        changes: woken when a ConfigMap changes. Whoever mirrors the node wakes it for labels.
        clock: for pauses between attempts.
        rng: for jitter.
    """

    def __init__(
        self,
        client: Client,
        *,
        node: Callable[[], Node | None],
        profiles: ConfigMapName | None,
        profile_default: str,
        layouts: ConfigMapName | None,
        layout_default: str,
        state_dir: Path,
        changes: ChangeNotifier,
        clock: Clock,
        rng: random.Random,
    ) -> None:
        self._node = node
        self._profiles = _ConfigMapWatcher(client, profiles, changes, clock, rng)
        self._layouts = _ConfigMapWatcher(client, layouts, changes, clock, rng)
        self._profile_default = profile_default
        self._layout_default = layout_default
        self._read_profile = lru_cache(REMEMBERED_SETTINGS)(read_profile)
        self._read_layouts = lru_cache(REMEMBERED_SETTINGS)(read_layouts)
        self._last = LastAppliedProfile(state_dir, self._read_profile)
        self._labels = ("", "")
        self._sharing: tuple[object, DesiredSharing] | None = None
        self._layout: tuple[object, DesiredLayout] | None = None

    async def run(self) -> None:
        """Mirrors the ConfigMaps until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._profiles.run())
            group.create_task(self._layouts.run())

    async def wait_first_read(self) -> None:
        """Returns when each ConfigMap has been read or refused once; :meth:`run` must be running."""
        await self._profiles.wait_first_read()
        await self._layouts.wait_first_read()

    @property
    def sharing(self) -> DesiredSharing:
        """The profile that the node shall follow; the same object until something changes."""
        made_of = (self._label_values()[0], self._profiles.files, self._last.profile)
        if self._sharing is None or self._sharing[0] != made_of:
            label, files, last = made_of
            wish = select_profile(files, label, self._profile_default, last, self._read_profile)
            self._sharing = (made_of, wish)
        return self._sharing[1]

    @property
    def layout(self) -> DesiredLayout:
        """The layout that the node shall have; the same object until something changes."""
        made_of = (self._label_values()[1], self._layouts.files)
        if self._layout is None or self._layout[0] != made_of:
            label, files = made_of
            self._layout = (made_of, select_layout(files, label, self._layout_default, self._read_layouts))
        return self._layout[1]

    @property
    def last_applied(self) -> AppliedProfile:
        """The profile that is in force, as far as :meth:`in_force` was told."""
        return self._last.profile or AppliedProfile()

    def profile_applied(self, name: str, text: str) -> None:
        """Says that what is offered follows this profile now; it is kept from here on. Cheap when nothing is new.

        Args:
            name: of the wish that was taken.
            text: likewise.

        Raises:
            FileRefused: the text is no profile, so it cannot have come from a wish.
        """
        self._last.save(name, text)

    def _label_values(self) -> tuple[str, str]:
        node = self._node()
        if node is not None:
            labels = node.metadata.labels
            self._labels = (labels.get(PROFILE_LABEL, ""), labels.get(MIG_CONFIG_LABEL, ""))
        return self._labels


class _ConfigMapWatcher:
    """The files of one ConfigMap, if one is configured."""

    def __init__(
        self, client: Client, name: ConfigMapName | None, changes: ChangeNotifier, clock: Clock, rng: random.Random
    ) -> None:
        self.files = ConfigMapFiles()
        self._changes = changes
        self._informer: Informer[ConfigMap] | None = None
        if name is not None:
            self.files = ConfigMapFiles(source=f"ConfigMap {name.namespace}/{name.name}", error="is not read yet")
            by_name = f"metadata.name={name.name}"
            self._informer = Informer(
                client, CONFIGMAPS, namespace=name.namespace, field_selector=by_name, clock=clock, rng=rng
            )
            self._informer.add_handler(self._seen)

    async def run(self) -> None:
        if self._informer is None:
            return
        async with asyncio.TaskGroup() as group:
            group.create_task(self._informer.run())
            await self._informer.reflector.looked.wait()
            self._take()
            await self._informer.wait_synced()
            self._take()

    async def wait_first_read(self) -> None:
        if self._informer is not None:
            await self._informer.reflector.looked.wait()
            self._take()

    def _seen(self, _event: Event[ConfigMap]) -> None:
        self._take()

    def _take(self) -> None:
        """Notes what the cache holds, or why it holds nothing."""
        assert self._informer is not None
        objects = list(self._informer.cache.values())
        error = self._informer.reflector.error
        texts = objects[0].data if objects else {}
        trouble = _describe_error(error) if error is not None and not objects else None
        files = msgspec.structs.replace(self.files, texts=texts, error=trouble)
        if files != self.files:
            self.files = files
            self._changes.notify()


def _describe_error(error: Exception) -> str:
    hint = "; grant the agent list and watch on it" if isinstance(error, Forbidden) else ""
    return f"cannot be read: {error}{hint}"
