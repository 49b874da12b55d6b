"""The last sharing profile that was in force, on disk.

A node whose label names a profile with a mistake keeps the one before. So that it still does after a restart of the
agent, or an upgrade, the last good one is kept with its text: the ConfigMap may have lost it since.

Written by atomic rename and not flushed: what a crashed machine loses is at most the newest profile, and the ConfigMap
is read again anyway. A file that cannot be read is worth none.
"""

import logging
from pathlib import Path

import msgspec

_log = logging.getLogger(__name__)

#: The file's name in the agent's folder.
FILE_NAME = "sharing-profile.json"


class LastGood(msgspec.Struct, frozen=True):
    """A profile by name, and the text that it had."""

    name: str
    text: str


class LastGoodFile:
    """The file of the last good profile; makes its folder when needed.

    Args:
        path: the file. One agent at a time writes it.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._saved: bytes | None = None

    def load(self) -> LastGood | None:
        """What was saved last; ``None`` if there is no readable file."""
        try:
            return msgspec.json.decode(self._path.read_bytes(), type=LastGood)
        except FileNotFoundError:
            return None
        except (msgspec.DecodeError, OSError) as error:
            _log.warning("last good sharing profile %s is unreadable and counts as none: %s", self._path, error)
            return None

    def save(self, good: LastGood) -> None:
        """Puts the profile in place of the one before; does nothing if they are equal.

        Raises:
            OSError: the file cannot be written.
        """
        data = msgspec.json.encode(good)
        if data == self._saved:
            return
        self._path.parent.mkdir(parents=True, exist_ok=True)
        fresh = self._path.with_name(self._path.name + ".new")
        fresh.write_bytes(data)
        fresh.replace(self._path)
        self._saved = data
