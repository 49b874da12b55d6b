"""Settings of moves: running pods whose authors allow it are ended to make room for waiting pods."""

from dataclasses import dataclass
from enum import Enum

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
