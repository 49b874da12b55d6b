"""The journal on disk: what this node's agent made and for whom.

Written before every call that changes a card, by atomic rename. It is not flushed to the platter: the page cache
survives a killed process, and what does not survive a crashed machine is the MIG instances themselves (NVIDIA MIG user
guide: instances are not kept over a reset or reboot). A file that cannot be read is therefore worth an empty one; the
Instaslice object then tells which instances were ours (rule 1 of :mod:`tessera.agent.slices.state_machine`).
"""

from pathlib import Path

from tessera.agent.base.state_file import StateFile
from tessera.agent.inventory.positions import parse_device_id
from tessera.agent.slices.events import SliceJournal


class SliceJournalFile(StateFile[SliceJournal]):
    """The journal's file; who cannot save must not touch the cards.

    Args:
        path: the file. One agent at a time writes it.
    """

    def __init__(self, path: Path) -> None:
        super().__init__(path, SliceJournal)

    def load(self) -> SliceJournal:
        """What was last saved; empty if there is no readable file, or one that names what is no position."""
        return super().load() or SliceJournal()

    def check(self, value: SliceJournal) -> None:
        """Every position must read.

        Raises:
            ValueError: one does not.
        """
        bound = (each for positions in value.bindings.values() for each in positions.values())
        for position in (*value.owners, *bound):
            parse_device_id(position)
