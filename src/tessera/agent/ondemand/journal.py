"""The journal on disk: what this node's agent made and for whom.

Written before every call that changes a card, by atomic rename. It is not flushed to the platter: the page cache
survives a killed process, and what does not survive a crashed machine is the MIG instances themselves (NVIDIA MIG user
guide: instances are not kept over a reset or reboot). A file that cannot be read is therefore worth an empty one; the
Instaslice object then tells which instances were ours (rule 1 of :mod:`tessera.agent.ondemand.slices`).
"""

import logging
from pathlib import Path

import msgspec

from tessera.agent.ondemand.facts import Journal
from tessera.agent.ondemand.positions import parse_device_id

_log = logging.getLogger(__name__)


class JournalFile:
    """The journal's file; makes its folder when needed.

    Args:
        path: the file. One agent at a time writes it.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._saved: bytes | None = None

    def load(self) -> Journal:
        """What was last saved; empty if there is no readable file."""
        try:
            journal = msgspec.json.decode(self._path.read_bytes(), type=Journal)
            for position in (
                *journal.owners,
                *(each for bound in journal.bindings.values() for each in bound.values()),
            ):
                parse_device_id(position)
        except FileNotFoundError:
            return Journal()
        except (msgspec.DecodeError, OSError, ValueError) as error:
            _log.warning("journal %s is unreadable and counts as empty: %s", self._path, error)
            return Journal()
        return journal

    def save(self, journal: Journal) -> None:
        """Puts the journal in place of the last one; does nothing if they are equal.

        Raises:
            OSError: the file cannot be written; the caller must not touch the cards then.
        """
        data = msgspec.json.encode(journal)
        if data == self._saved:
            return
        self._path.parent.mkdir(parents=True, exist_ok=True)
        fresh = self._path.with_name(self._path.name + ".new")
        fresh.write_bytes(data)
        fresh.replace(self._path)
        self._saved = data
