"""The journal on disk: what this node's agent made and for whom.

Written before every call that changes a card, by atomic rename. It is not flushed to the platter: the page cache
survives a killed process, and what does not survive a crashed machine is the MIG instances themselves (NVIDIA MIG user
guide: instances are not kept over a reset or reboot). A file that cannot be read is therefore worth an empty one; the
Instaslice object then tells which instances were ours (rule 1 of :mod:`tessera.agent.ondemand.slices`).
"""

import logging
from pathlib import Path

from tessera.agent.keptfile import KeptFile
from tessera.agent.ondemand.facts import Journal
from tessera.agent.ondemand.positions import parse_device_id

_log = logging.getLogger(__name__)


class JournalFile(KeptFile[Journal]):
    """The journal's file; who cannot save must not touch the cards.

    Args:
        path: the file. One agent at a time writes it.
    """

    def __init__(self, path: Path) -> None:
        super().__init__(path, Journal)
        self._name = path

    def load(self) -> Journal:
        """What was last saved; empty if there is no readable file, or one that names what is no position."""
        journal = super().load() or Journal()
        bound = (each for positions in journal.bindings.values() for each in positions.values())
        try:
            for position in (*journal.owners, *bound):
                parse_device_id(position)
        except ValueError as error:
            _log.warning("%s is unreadable and counts as empty: %s", self._name, error)
            return Journal()
        return journal
