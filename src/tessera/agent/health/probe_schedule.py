"""Decides when each card is probed next: a card without a fault seldom, a suspected one often. Pure.

Times are seconds of a monotonic clock.
"""

from collections.abc import Collection, Iterable

#: Seconds between two probes of a card without a fault.
PROBE_INTERVAL = 60.0
#: Seconds between two probes of a suspected card.
SUSPECT_PROBE_INTERVAL = 10.0
#: Least seconds between two probes of one card, however many events come.
_SHORTEST_INTERVAL = 1.0


class ProbeSchedule:
    """The next probe of each card of a node."""

    def __init__(self) -> None:
        #: Time of the last probe of each card that was probed.
        self._probed_at: dict[str, float] = {}
        #: Time of the next probe; has exactly the node's cards.
        self._due: dict[str, float] = {}

    def set_cards(self, cards: Iterable[str], now: float) -> None:
        """Takes in the node's cards; a new one is due at once."""
        self._due = {card: self._due.get(card, now) for card in cards}

    def due(self, now: float) -> list[str]:
        """The cards to probe now."""
        return [card for card, at in self._due.items() if at <= now]

    def pause(self, now: float) -> float | None:
        """Seconds until the next card is due; None without cards."""
        soonest = min(self._due.values(), default=None)
        return None if soonest is None else max(0.0, soonest - now)

    def note_probe(self, card: str, now: float) -> None:
        """Takes in that a probe of a card begins; the next one comes soon, unless :meth:`note_well` is called."""
        self._probed_at[card] = now
        self._due[card] = now + SUSPECT_PROBE_INTERVAL

    def note_well(self, card: str) -> None:
        """Takes in that nothing is wrong with a card that was probed."""
        self._due[card] = self._probed_at[card] + PROBE_INTERVAL

    def hasten(self, card: str, now: float) -> None:
        """Has a card probed at once, but not twice within a second; ignores other nodes' cards."""
        if card in self._due:
            allowed = self._probed_at.get(card, now - _SHORTEST_INTERVAL) + _SHORTEST_INTERVAL
            self._due[card] = min(self._due[card], max(now, allowed))

    def suspect(self, cards: Collection[str], now: float) -> None:
        """Has cards probed as often as suspected ones."""
        soon = now + SUSPECT_PROBE_INTERVAL
        self._due = {card: min(at, soon) if card in cards else at for card, at in self._due.items()}
