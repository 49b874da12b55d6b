"""The limits of the health breaker."""

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class BreakerLimits:
    """The bound of a rule.

    Attributes:
        share: of all cards, 0 to 1; with 1 the breaker never opens.
        cards: number of cards that a rule may always take away.
    """

    share: float = 0.1
    cards: int = 3

    def bound(self, counts: Iterable[int]) -> int:
        """The most cards that one rule takes away; ``counts`` are the cards of each node."""
        found = list(counts)
        return max(self.cards, int(self.share * sum(found)), max(found, default=0))
