"""Keeps which cards the node has had since its boot, so that a restarted agent names a card that no longer answers.

A boot may give a card another index, and a person may have replaced it meanwhile: cards of an earlier boot are not
known any more. An agent of an earlier version has left only the faults of its cards, which have at least their UUIDs.
"""

import logging
from collections.abc import Collection, Iterable
from pathlib import Path

import msgspec

from tessera.agent.base.state_file import StateFile
from tessera.nvml.interface import GpuInfo
from tessera.nvml.known_cards import UNREAD, blank_card

_log = logging.getLogger(__name__)


class StoredCards(msgspec.Struct, frozen=True):
    """The content of the file: the node's boot id, and the cards as they were read last."""

    boot: str = ""
    cards: tuple[GpuInfo, ...] = ()


class KnownCardsFile:
    """The file of the cards of this boot.

    Args:
        path: the file.
    """

    def __init__(self, path: Path) -> None:
        self._file = StateFile(path, StoredCards)

    def load(self, boot: str, faulty: Collection[str]) -> tuple[GpuInfo, ...]:
        """The cards of this boot.

        Args:
            boot: the node's boot id; not empty.
            faulty: UUIDs of the cards with faults of this boot.
        """
        stored = self._file.load() or StoredCards()
        cards = stored.cards if boot == stored.boot else ()
        missing = set(faulty) - {card.uuid for card in cards}
        return (*cards, *(blank_card(uuid) for uuid in sorted(missing) if not uuid.startswith(UNREAD)))

    def save(self, boot: str, cards: Iterable[GpuInfo]) -> None:
        """Saves the cards that were read at least once in the boot of this id."""
        known = tuple(
            msgspec.structs.replace(card, lost=False, error="")
            for card in cards
            if card.identified and not card.uuid.startswith(UNREAD)
        )
        try:
            self._file.save(StoredCards(boot, known))
        except OSError as error:
            _log.warning(
                "cards cannot be saved, so a restarted agent may not know their names: %s",
                error,
            )
