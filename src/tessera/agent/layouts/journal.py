"""What the work on a layout must not forget when its process is killed.

Little, since hardware is the truth: which instances a layout made or kept, so that they go when the card is handed to
slices on demand; and that the node was rebooted for a layout already, so that it is not rebooted for ever. Written by
atomic rename before every call that changes a card; not flushed, since instances do not outlive the machine either. A
reboot that is about to be asked for is flushed: it must be remembered after it. A file that cannot be read is worth an
empty one: instances then stay as foreign ones, and a reboot may be asked for once more.
"""

import hashlib
import logging
import os
from collections.abc import Mapping
from pathlib import Path

import msgspec

from tessera.agent.layouts.facts import Place
from tessera.agent.settings.wishes import LayoutWish

_log = logging.getLogger(__name__)


class Journal(msgspec.Struct, frozen=True, kw_only=True):
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
    ours: Mapping[str, tuple[Place, ...]] = {}


def digest_of(wish: LayoutWish) -> str:
    """Names a layout by its name and its entries, whatever cards there are and why it is wished."""
    return hashlib.sha256(msgspec.json.encode([wish.name, wish.entries])).hexdigest()[:16]


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
            return msgspec.json.decode(self._path.read_bytes(), type=Journal)
        except FileNotFoundError:
            return Journal()
        except (msgspec.DecodeError, OSError) as error:
            _log.warning("journal of layouts %s is unreadable and counts as empty: %s", self._path, error)
            return Journal()

    def save(self, journal: Journal, *, flush: bool = False) -> None:
        """Puts the journal in place of the last one; does nothing if they are equal.

        Args:
            journal: what is to be remembered.
            flush: it must survive the machine too.

        Raises:
            OSError: the file cannot be written; the caller must not touch the cards then.
        """
        data = msgspec.json.encode(journal)
        if data == self._saved and not flush:
            return
        self._path.parent.mkdir(parents=True, exist_ok=True)
        fresh = self._path.with_name(self._path.name + ".new")
        with fresh.open("wb") as file:
            file.write(data)
            if flush:
                file.flush()
                os.fsync(file.fileno())
        fresh.replace(self._path)
        self._saved = data
