"""The loss of a node: thousandths of its free cards that requests of the known mix could not use.

- FGD's fragmentation (USENIX ATC '23): for each typical request the free parts of cards that it could not use, by its
  share of the requests.
- Besides, the free cards for which CPU or memory lack: a free card counts in full beside :data:`AMOUNT_A_CARD` times
  what pods request beside one on average. So a pod with much CPU goes where CPU is plentiful, and one without leaves
  such nodes to others. ``bench/openb.py`` measures the rule on traces.
"""

import sys
from bisect import bisect_right

from tessera.placement.ratings.card_demand import TypicalRequests
from tessera.placement.ratings.card_request import CardRequest, FreeCards, Kind, free_parts, usable_parts
from tessera.placement.state_costs import CARD_STATES

#: CPU, or memory, that a free card needs to count in full, in multiples of what pods ask for beside one on average.
AMOUNT_A_CARD = 1.3


class RoomLoss:
    """Rates rooms for one mix of requests.

    Args:
        typical: the mix.
    """

    def __init__(self, typical: TypicalRequests) -> None:
        self._typical = typical
        self._steps = sorted({request.cpu for request, _ in typical.shares})
        #: By kind, the typical requests that it suits, and the share of the others.
        self._suited: dict[Kind, tuple[list[tuple[CardRequest, float]], float]] = {}
        #: Remembered losses by kind and free cards.
        self._losses: dict[tuple[Kind, FreeCards], CardsLoss] = {}

    def of(self, kind: Kind, cards: FreeCards) -> "CardsLoss":
        """Returns the loss of rooms with these free cards."""
        key = (kind, cards)
        found = self._losses.get(key)
        if found is None:
            if len(self._losses) >= CARD_STATES:
                self._losses.clear()
            suited, unsuited = self._requests(kind)
            found = self._losses[key] = CardsLoss(cards, suited, unsuited, self._steps, self._typical)
        return found

    def _requests(self, kind: Kind) -> tuple[list[tuple[CardRequest, float]], float]:
        found = self._suited.get(kind)
        if found is None:
            suited = [one for one in self._typical.shares if kind in one[0].kinds]
            unsuited = sum(share for _, share in self._typical.shares) - sum(share for _, share in suited)
            found = self._suited[kind] = (suited, unsuited)
        return found


class CardsLoss:
    """The loss of rooms with certain free cards, by their CPU and memory.

    Args:
        cards: the free cards.
        suited: the typical requests that their kind suits, with their shares.
        unsuited: the share of the other requests.
        steps: the amounts of CPU in typical requests, ascending.
        typical: the mix.

    Attributes:
        cpu: thousandths of a CPU from which on the loss is the least.
        memory: MiB, the same.
    """

    __slots__ = (
        "_cards",
        "_cpu",
        "_cpu_a_part",
        "_fragments",
        "_free",
        "_memory_a_part",
        "_steps",
        "_suited",
        "_unsuited",
        "cpu",
        "memory",
    )

    def __init__(
        self,
        cards: FreeCards,
        suited: list[tuple[CardRequest, float]],
        unsuited: float,
        steps: list[int],
        typical: TypicalRequests,
    ) -> None:
        self._cards = cards
        self._suited = suited
        self._unsuited = unsuited
        self._steps = steps
        self._free = free_parts(cards)
        #: By step of CPU, the fragmentation; None where nobody has asked.
        self._fragments: list[float | None] = [None] * (len(steps) + 1)
        self._cpu_a_part = AMOUNT_A_CARD * typical.cpu_a_part
        self._memory_a_part = AMOUNT_A_CARD * typical.memory_a_part
        #: The CPU from which on no card is stranded.
        self._cpu = self._free * self._cpu_a_part
        self.cpu: float = max(steps[-1] if steps else 0, self._cpu)
        self.memory: float = self._free * self._memory_a_part

    @property
    def least(self) -> float:
        """Returns the loss of rooms where neither CPU nor memory lacks."""
        return self(sys.maxsize, sys.maxsize)

    def __call__(self, cpu: int, memory: int) -> float:
        """Returns the loss of a room with so much CPU (thousandths) and memory (MiB); less is better."""
        step = bisect_right(self._steps, cpu)
        fragment = self._fragments[step]
        if fragment is None:
            fragment = self._fragments[step] = self._fragment(step)
        lost = self._free - cpu / self._cpu_a_part if cpu < self._cpu else 0.0
        if memory < self.memory:
            for_memory = self._free - memory / self._memory_a_part
            if for_memory > lost:  # noqa: PLR1730 - max() costs as much as all the rest
                lost = for_memory
        return fragment + lost

    def _fragment(self, step: int) -> float:
        most_cpu = self._steps[step - 1] if step else -1
        lost = self._unsuited * self._free
        for request, share in self._suited:
            usable = usable_parts(self._cards, request) if request.cpu <= most_cpu else 0
            lost += share * (self._free - usable)
        return lost
