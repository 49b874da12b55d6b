"""The journal on disk: the instances that this node's agent made, and the pods that own them.

The agent writes it before every call that changes a card, by atomic rename. It does not flush it to the disk: the page
cache survives a killed process, and a crashed machine loses the MIG instances themselves (NVIDIA MIG user guide:
instances are not kept over a reset or reboot). So a file that cannot be read counts as an empty one; the Instaslice
object then gives the instances that were ours (rule 1 of :mod:`tessera.agent.slices.state_machine`).
"""

from pathlib import Path

from tessera.agent.base.state_file import StateFile
from tessera.agent.inventory.positions import parse_device_id
from tessera.agent.slices.events import SliceJournal


class SliceJournalFile(StateFile[SliceJournal]):
    """The journal's file. An agent that cannot save it must not touch the cards.

    Args:
        path: the file. One agent at a time writes it.
    """

    def __init__(self, path: Path) -> None:
        super().__init__(path, SliceJournal)

    def load(self) -> SliceJournal:
        """The journal as last saved; empty if the file is missing, unreadable, or has an invalid position."""
        return super().load() or SliceJournal()

    def check(self, value: SliceJournal) -> None:
        """Checks that every position can be parsed.

        Raises:
            ValueError: a position cannot be parsed.
        """
        bound = (each for positions in value.bindings.values() for each in positions.values())
        for position in (*value.owners, *bound):
            parse_device_id(position)
