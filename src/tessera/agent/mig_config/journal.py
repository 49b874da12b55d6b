"""What the work on a layout must not forget when its process is killed.

Little, since hardware is the truth: which instances a layout made or kept, so that they go when the card is handed to
slices on demand; and that the node was rebooted for a layout already, so that it is not rebooted for ever. Written by
atomic rename before every call that changes a card; not flushed, since instances do not outlive the machine either. A
reboot that is about to be asked for is flushed: it must be remembered after it. A file that cannot be read is worth an
empty one: instances then stay as foreign ones, and a reboot may be asked for once more.
"""

import hashlib
from collections.abc import Mapping
from pathlib import Path

import msgspec

from tessera.agent.base.desired_config import DesiredLayout
from tessera.agent.base.state_file import StateFile
from tessera.agent.mig_config.events import InstancePlace


class LayoutRecord(msgspec.Struct, frozen=True, kw_only=True):
    """What is remembered.

    Attributes:
        layout: the layout's name, for who reads the file.
        digest: of its name and entries; another one is another layout.
        attempts: how many processes began to work on this layout and did not see it in force.
        rebooted_from: boot id in which a reboot was asked for this layout; empty if none was.
        ours: places of instances that a layout made or kept, by card.
    """

    layout: str = ""
    digest: str = ""
    attempts: int = 0
    rebooted_from: str = ""
    managed: Mapping[str, tuple[InstancePlace, ...]] = msgspec.field(default_factory=dict, name="ours")


def digest_of(wish: DesiredLayout) -> str:
    """Names a layout by its name and its entries, whatever cards there are and why it is wished."""
    return hashlib.sha256(msgspec.json.encode([wish.name, wish.entries])).hexdigest()[:16]


class LayoutJournal(StateFile[LayoutRecord]):
    """The journal's file; who cannot save must not touch the cards.

    Args:
        path: the file. One agent at a time writes it.
    """

    def __init__(self, path: Path) -> None:
        super().__init__(path, LayoutRecord)

    def load(self) -> LayoutRecord:
        """What was last saved; empty if there is no readable file."""
        return super().load() or LayoutRecord()
