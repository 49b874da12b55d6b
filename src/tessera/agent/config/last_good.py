"""The last sharing profile that was in force, kept over restarts.

A node whose label names a profile with a mistake keeps the one before. So that it still does after a restart of the
agent, or an upgrade, the last good one is kept with its text: the ConfigMap may have lost it since.
"""

import logging
from collections.abc import Callable
from pathlib import Path

import msgspec

from tessera.agent.base.desired_config import TakenProfile
from tessera.agent.base.state_file import KeptFile
from tessera.api.documents import FileRefused
from tessera.api.sharing.config import SharingProfile

_log = logging.getLogger(__name__)

#: The file's name in the agent's folder.
FILE_NAME = "sharing-profile.json"


class _Kept(msgspec.Struct, frozen=True):
    """A profile by name, and the text that it had."""

    name: str
    text: str


class LastGood:
    """What was in force last.

    Args:
        folder: where the agent keeps its state.
        read: reads a profile's text; may remember what it has read.
    """

    def __init__(self, folder: Path, read: Callable[[str], SharingProfile | FileRefused]) -> None:
        self._file = KeptFile(folder / FILE_NAME, _Kept)
        self._read = read
        self._profile = self._load()

    @property
    def profile(self) -> TakenProfile | None:
        """The profile; ``None`` if none ever was in force. The same object until it changes."""
        return self._profile

    def keep(self, name: str, text: str) -> None:
        """Says that this profile is in force. Cheap when nothing is new.

        Raises:
            FileRefused: the text is no profile, so it cannot be in force.
        """
        if self._profile is None or (self._profile.name, self._profile.text) != (name, text):
            profile = self._read(text)
            if isinstance(profile, FileRefused):
                raise profile
            self._profile = TakenProfile(name=name, text=text, profile=profile)
        try:
            self._file.save(_Kept(name, text))
        except OSError as error:
            _log.warning('sharing profile "%s" is in force, but not kept for a restart of the agent: %s', name, error)

    def _load(self) -> TakenProfile | None:
        kept = self._file.load()
        if kept is None:
            return None
        profile = self._read(kept.text)
        if isinstance(profile, FileRefused):
            _log.warning('the sharing profile "%s", last in force, is no longer one: %s', kept.name, profile)
            return None
        return TakenProfile(name=kept.name, text=kept.text, profile=profile)
