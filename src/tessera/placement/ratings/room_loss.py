"""The loss of a node: thousandths of its free cards that requests of the known mix could not use.

- FGD's fragmentation (USENIX ATC '23): for each typical request the free parts of cards that it could not use, by its
  share of the requests.
- Besides, the free cards for which CPU or memory lack: a free card needs what pods request beside one on average, and a
  part more.
"""

from bisect import bisect_right

from tessera.limits.planning import CARD_STATES
from tessera.placement.ratings.card_demand import TypicalRequests
from tessera.placement.ratings.card_request import CardRequest, FreeCards, Kind, NodeRoom, free_parts, usable_parts
from tessera.placement.stranded_cards import stranded


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
        #: Remembered fragmentation by step of CPU, cards and kind.
        self._fragments: dict[tuple[int, FreeCards, Kind], float] = {}

    def __call__(self, room: NodeRoom) -> float:
        """Returns the loss; less is better."""
        kind, cards, cpu, memory = room[:4]
        key = (bisect_right(self._steps, cpu), cards, kind)
        found = self._fragments.get(key)
        if found is None:
            if len(self._fragments) >= CARD_STATES:
                self._fragments.clear()
            found = self._fragments[key] = self._fragment(*key)
        free = free_parts(cards)
        typical = self._typical
        return found + max(stranded(free, cpu, typical.cpu_a_part), stranded(free, memory, typical.memory_a_part))

    def _fragment(self, step: int, cards: FreeCards, kind: Kind) -> float:
        most_cpu = self._steps[step - 1] if step else -1
        suited, unsuited = self._requests(kind)
        total = free_parts(cards)
        lost = unsuited * total
        for request, share in suited:
            usable = usable_parts(cards, request) if request.cpu <= most_cpu else 0
            lost += share * (total - usable)
        return lost

    def _requests(self, kind: Kind) -> tuple[list[tuple[CardRequest, float]], float]:
        found = self._suited.get(kind)
        if found is None:
            suited = [one for one in self._typical.shares if kind in one[0].kinds]
            unsuited = sum(share for _, share in self._typical.shares) - sum(share for _, share in suited)
            found = self._suited[kind] = (suited, unsuited)
        return found
