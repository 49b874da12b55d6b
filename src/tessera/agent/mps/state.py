"""What this node's agent did for MPS, on disk: daemons it started, and cards whose compute mode it changed.

Written before the deed, so that an agent that is killed at any instruction leaves nothing that the next one does not
know. What a crash of the machine may take from the file, daemons and compute modes, its reboot takes as well.
"""

from collections.abc import Mapping
from pathlib import Path

import msgspec

from tessera.agent.base.state_file import KeptFile
from tessera.agent.mps.launcher import DaemonMark


class DaemonRecord(msgspec.Struct, frozen=True):
    """A daemon that was started.

    Attributes:
        mark: what it is found again by.
        cards: UUIDs of the cards that it serves.
    """

    mark: DaemonMark
    cards: tuple[str, ...]


class _Record(msgspec.Struct, frozen=True):
    daemons: Mapping[str, DaemonRecord] = {}
    exclusive: Mapping[str, str] = {}


class RecordFile:
    """The record and its file. One agent at a time writes it.

    Args:
        path: the file.
    """

    def __init__(self, path: Path) -> None:
        self._file = KeptFile(path, _Record)
        self._record = self._file.load() or _Record()

    @property
    def daemons(self) -> Mapping[str, DaemonRecord]:
        """The daemons by resource. One that is listed may have ended."""
        return self._record.daemons

    @property
    def exclusive(self) -> Mapping[str, str]:
        """The cards, by UUID, whose compute mode was or was about to be changed, with the resource it was done for."""
        return self._record.exclusive

    def started(self, resource: str, daemon: DaemonRecord) -> None:
        """Notes a daemon.

        Raises:
            OSError: the file cannot be written; the daemon must not work then. The same holds for all that follow.
        """
        self._save(_Record({**self.daemons, resource: daemon}, self.exclusive))

    def ended(self, resource: str) -> None:
        """Forgets a daemon."""
        self._save(_Record({name: each for name, each in self.daemons.items() if name != resource}, self.exclusive))

    def took(self, card: str, resource: str) -> None:
        """Notes a card whose compute mode is about to change."""
        self._save(_Record(self.daemons, {**self.exclusive, card: resource}))

    def gave_back(self, card: str) -> None:
        """Forgets a card whose compute mode is the default one again."""
        self._save(_Record(self.daemons, {uuid: each for uuid, each in self.exclusive.items() if uuid != card}))

    def _save(self, record: _Record) -> None:
        if record != self._record:
            self._file.save(record)
            self._record = record
