"""Rates a node for whole cards by how its free cards are joined.

- For several cards: the points of the set that the node's agent will prefer (see :mod:`.topology`). More is better.
- For one card: the points of the fastest NVLink between the card that the agent will prefer and another free one, which
  a later pod with two cards then cannot have. Less is better. A node where all pairs are alike loses nothing; the way
  through PCIe does not count here, since it is not worth a fuller node.

The cards of pods that are on their way to the node are still free for its agent. They count as one request, by which
the agent chooses. If fewer cards are listed as free than are free by count, the rest counts as unjoined.

The search is exact for up to :data:`EXACT` free cards, grown beyond that: the controller rates many nodes in a
decision. Alike nodes in the same state share a rating.
"""

from collections.abc import Sequence
from itertools import combinations

from tessera.placement.topology import NVLINK_POINTS, Topology

#: The most free cards for which the search is exact: the usual largest machine.
EXACT = 8
#: Ratings that are kept: all sets of free cards of several models with eight, by all sizes of requests.
_KEPT = 16_384

#: Cards, points of the pairs, free cards; see :class:`tessera.api.nodes.card_links.CardLinks`.
Joined = tuple[int, tuple[int, ...], tuple[int, ...] | None]


class LinkRatings:
    """Ratings of nodes; keeps those that were asked for."""

    def __init__(self) -> None:
        #: By links, number of free cards and size of the request.
        self._known: dict[tuple[Joined, int, int], int] = {}

    def points(self, joined: Joined, free: int, size: int) -> int:
        """Returns the points of the cards that a request gets.

        Args:
            joined: how the cards of the node are joined.
            free: the number of cards that no pod has, pods on their way included.
            size: the number of cards, two or more.
        """
        return self._look_up(joined, free, size)

    def loss(self, joined: Joined, free: int) -> int:
        """Returns the points that are lost for a later pair if a pod takes one card.

        Args:
            joined: how the cards of the node are joined.
            free: the number of cards that no pod has, pods on their way included.
        """
        return self._look_up(joined, free, 1)

    def _look_up(self, joined: Joined, free: int, size: int) -> int:
        key = (joined, free, size)
        if key not in self._known:
            if len(self._known) >= _KEPT:
                self._known.clear()
            self._known[key] = _rate(*joined, count=free, size=size)
        return self._known[key]


def _rate(cards: int, points: Sequence[int], listed: Sequence[int] | None, *, count: int, size: int) -> int:
    if len(points) == 1:
        return points[0] * size * (size - 1) // 2
    if listed is None:
        return 0
    names = [f"{number:02}" for number in range(cards)]
    topology = Topology.of_points(dict(zip(combinations(names, 2), points, strict=True)), names)
    free = {names[number] for number in listed}
    coming = len(free) - count
    if coming > 0:
        free -= set(topology.preferred_cards(free, (), coming, exact_cards=EXACT))
    chosen = topology.preferred_cards(free, (), min(size, len(free)), exact_cards=EXACT)
    if size > 1:
        return topology.total(chosen)
    links = [topology.score(one, other) for one in chosen for other in free - {one}]
    return max(links, default=0) // NVLINK_POINTS * NVLINK_POINTS
