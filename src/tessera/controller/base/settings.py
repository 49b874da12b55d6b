"""Settings that several parts of the controller read: limits of the health breaker, and what is done by moves.

Moves end running pods whose authors allow it, to make room for waiting pods. Hand-over ends old pods of a service for
its new ones.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum


@dataclass(frozen=True, kw_only=True)
class BreakerLimits:
    """The most cards that a rule of health takes away.

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


#: Evictions in an hour, by default.
MOVES_PER_HOUR = 20


class MoveMode(Enum):
    """The controller's action when it has found moves."""

    OFF = "off"
    #: Tells the waiting pod which moves would make room for it.
    RECOMMEND = "recommend"
    #: Evicts the pods.
    EVICT = "evict"


@dataclass(frozen=True, kw_only=True)
class MoveSettings:
    """Settings of moves.

    Attributes:
        mode: what is done with moves.
        per_hour: most evictions in an hour, in the whole cluster.
    """

    mode: MoveMode = MoveMode.RECOMMEND
    per_hour: int = MOVES_PER_HOUR


#: No moves are looked for.
NO_MOVES = MoveSettings(mode=MoveMode.OFF)
