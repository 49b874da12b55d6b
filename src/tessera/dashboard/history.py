"""The last hours of the fleet and of each card, in the memory of the page's process.

A ring of a fixed length is the bound: the oldest value goes when a new one comes. A restart of the process begins anew.
"""

from array import array
from collections.abc import Mapping
from math import isnan, nan

from tessera.api.nodes.health import CardState
from tessera.dashboard.documents import CardDocument, CardHistoryDocument, Document, HistoryDocument, SummaryDocument

#: Most cards whose last hours the live page keeps. Each has 72 values of three quantities, 1 kB; cards beyond them are
#: shown without their past.
HISTORY_CARDS = 4_096

#: Seconds between two values of the fleet, and of a card.
STEP, CARD_STEP = 60.0, 300.0
#: Length of the history in seconds.
SPAN = 6 * 3600.0


class _Ring:
    """The last values of a quantity, in single precision; a NaN was not measured."""

    def __init__(self, length: int) -> None:
        self._values = array("f")
        self._length = length

    def add(self, value: float | None) -> None:
        self._values.append(nan if value is None else value)
        if len(self._values) > self._length:
            del self._values[0]

    def values(self) -> tuple[float | None, ...]:
        return tuple(None if isnan(each) else round(each, 3) for each in self._values)


class History:
    """Keeps the curves.

    Attributes:
        documents: the curves as documents, by key.
    """

    def __init__(self) -> None:
        self.documents: dict[str, HistoryDocument | CardHistoryDocument] = {}
        self._fleet = [_Ring(int(SPAN / STEP)) for _ in range(4)]
        self._cards: dict[str, list[_Ring]] = {}
        self._next = self._next_cards = 0.0

    def record(self, now: float, documents: Mapping[str, Document]) -> None:
        """Adds the present values when their time has come.

        Args:
            now: Unix time.
            documents: the documents of the page by key.
        """
        summary = documents.get("summary")
        if now >= self._next and isinstance(summary, SummaryDocument) and summary.cards:
            self._next = now + STEP
            values = (summary.held, summary.busy, summary.power, float(summary.waiting))
            for ring, value in zip(self._fleet, values, strict=True):
                ring.add(value)
            held, busy, power, waiting = (ring.values() for ring in self._fleet)
            self.documents["history"] = HistoryDocument(
                until=now, step=STEP, held=held, busy=busy, power=power, waiting=waiting
            )
        cards = {key: each for key, each in documents.items() if isinstance(each, CardDocument) and not each.silent}
        if now >= self._next_cards and cards:
            self._next_cards = now + CARD_STEP
            self._record_cards(now, cards)

    def _record_cards(self, now: float, cards: Mapping[str, CardDocument]) -> None:
        for gone in self._cards.keys() - cards.keys():
            del self._cards[gone]
            del self.documents[_key(gone)]
        for key, card in cards.items():
            if key not in self._cards and len(self._cards) >= HISTORY_CARDS:
                continue
            rings = self._cards.setdefault(key, [_Ring(int(SPAN / CARD_STEP)) for _ in range(3)])
            memory = None if card.memory is None or not card.memory_total else card.memory / card.memory_total
            # Nobody uses a lost card, whatever is recorded of it.
            held_now = None if card.health is not None and card.health.state == CardState.LOST else card.held
            for ring, value in zip(rings, (held_now, card.busy, memory), strict=True):
                ring.add(value)
            held, busy, memories = (ring.values() for ring in rings)
            self.documents[_key(key)] = CardHistoryDocument(
                node=card.node, uuid=card.uuid, until=now, step=CARD_STEP, held=held, busy=busy, memory=memories
            )


def _key(card: str) -> str:
    """``history/NODE/UUID`` of ``card/NODE/UUID``."""
    return f"history/{card.partition('/')[2]}"
