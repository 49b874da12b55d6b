"""The journal of MIG layouts on disk: state that the agent needs after a restart and cannot read from the hardware.

It lists the instances that a layout made or kept, so that they are destroyed when the card goes to slices on demand. It
also records a reboot for a layout, so that the node is not rebooted again and again. An atomic rename replaces the file
before every call that changes a card. The file is not flushed then, since instances do not outlive the machine either;
before a reboot it is flushed. A file that cannot be read counts as empty: its instances stay as foreign ones, and one
more reboot may follow.
"""

import hashlib
from collections.abc import Collection, Mapping
from pathlib import Path

import msgspec

from tessera.agent.base.desired_config import DesiredLayout
from tessera.agent.base.state_file import StateFile
from tessera.agent.mig_config.events import InstancePlace


class LayoutRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The content of the journal.

    Attributes:
        layout: the layout's name, for people who read the file.
        digest: identifies the layout by its name and entries; another digest is another layout.
        attempts: number of processes that began to apply this layout and did not see it in force.
        rebooted_from: boot id in which a reboot was requested for this layout; empty if none was.
        managed: places of instances that a layout made or kept, by card.
    """

    layout: str = ""
    digest: str = ""
    attempts: int = 0
    rebooted_from: str = ""
    managed: Mapping[str, tuple[InstancePlace, ...]] = msgspec.field(default_factory=dict, name="ours")


def digest_of(layout: DesiredLayout) -> str:
    """Identifies a layout by its name and entries alone, not by the cards or the reason why it is desired."""
    return hashlib.sha256(msgspec.json.encode([layout.name, layout.entries])).hexdigest()[:16]


class LayoutJournal:
    """The journal and its file. An agent that cannot write it must not touch the cards.

    Every method that writes raises OSError if the file cannot be written; the record then stays as it was.

    Args:
        path: the file. One agent at a time writes it.

    Attributes:
        record: the content, equal to the last one that was written.
    """

    def __init__(self, path: Path) -> None:
        self._file = StateFile(path, LayoutRecord)
        self.record = self._file.load() or LayoutRecord()

    def shows_in_force(self, layout: DesiredLayout) -> bool:
        """True if a process saw this layout in force, and none has begun with a layout since."""
        return self.record.digest == digest_of(layout) and self.record.attempts == 0

    def begin(self, layout: DesiredLayout, *, resumes: bool) -> None:
        """Counts an attempt: the first one for a new layout, another one if a new process resumes the work.

        Args:
            layout: the layout that is applied from now on.
            resumes: true if this process has not worked on any layout yet.
        """
        digest, last = digest_of(layout), self.record
        if digest != last.digest:
            self._write(LayoutRecord(layout=layout.name, digest=digest, attempts=1, managed=last.managed))
        elif resumes:
            self._write(msgspec.structs.replace(last, attempts=last.attempts + 1))

    def clear_attempts(self) -> None:
        """Forgets the attempts, once the layout is in force."""
        self._write(msgspec.structs.replace(self.record, attempts=0))

    def save_managed(self, uuid: str, places: Collection[InstancePlace]) -> None:
        """Saves the places of the instances that a layout made or kept on one card."""
        managed = dict(self.record.managed) | {uuid: tuple(sorted(places))}
        self._write(
            msgspec.structs.replace(self.record, managed={card: each for card, each in managed.items() if each})
        )

    def save_reboot(self, boot_id: str) -> None:
        """Saves, flushed to disk, the boot id in which a reboot is requested; empty if it was refused."""
        self._write(msgspec.structs.replace(self.record, rebooted_from=boot_id), flush=True)

    def _write(self, record: LayoutRecord, *, flush: bool = False) -> None:
        self._file.save(record, flush=flush)
        self.record = record
