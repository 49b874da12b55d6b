"""Finds the place for a demand that empties soonest, and keeps others out of it while a batch is planned.

A *reservation* is a set of positions on one node for a demand without room now. Rules:

- The place is exact: once its holders have ended, the positions are free and legal.
- The search asks for the remaining time of each allocation. It tries, node by node, the least time after which the
  demand fits beside everything that lasts longer (the exact packing test), and keeps the soonest node.
- :func:`hold_slots` keeps reserved slots closed while other demands are planned.
- Equal demands may get places together, on one node or several.
- The cost is bounded: at most ``RESERVATION_CARDS`` cards are looked at, nodes with the most free slots first.
"""

from bisect import bisect_left, insort
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial

import msgspec

from tessera.placement.card_table import CardTable
from tessera.placement.cards import CardPlacement, FleetCard, Hold, OwnedPlacement
from tessera.placement.demand import CardSpread, Comparison
from tessera.placement.fleet import Fleet
from tessera.placement.node_fit import divide_over_cards
from tessera.placement.state_costs import Pending

#: Most cards among which the place that empties soonest is sought, nodes with the most free slots first. About 10 ms;
#: so many cards have a place that empties soon.
RESERVATION_CARDS = 512
#: Most searches for such a place in one decision. They take as long as the decision; further pods are searched for in
#: the next decisions.
RESERVATION_SEARCHES = 4

__all__ = ["Hold", "ReservedPlace", "SoonestPlace", "hold_slots", "overlapping", "reserved_bits"]

#: Seconds until an allocation ends, as far as one can say; infinite if it may never end.
Residual = Callable[[OwnedPlacement], float]


class ReservedPlace(msgspec.Struct, frozen=True):
    """Positions that a demand takes once their holders have ended.

    Attributes:
        placements: in the order of the demand's profiles, all on one node.
        holders: the allocations there now.
        seconds: time until the last of them has ended, as far as one can say.
    """

    placements: tuple[CardPlacement, ...]
    holders: tuple[OwnedPlacement, ...]
    seconds: float


class SoonestPlace:
    """The search for one demand.

    Args:
        fleet: the cards; unchanged.
        profiles: the demand's.
        spread: how its slices lie on the cards.
        residual: the remaining time of each allocation.
        holds: slots that are kept for other demands.
        admits: True if a node takes the demand once these owners have ended.
        horizon: a place that empties later than these seconds is none.
    """

    def __init__(
        self,
        fleet: Fleet,
        profiles: tuple[str, ...],
        residual: Residual,
        *,
        holds: Iterable[Hold],
        admits: Callable[[str, frozenset[str]], bool],
        horizon: float,
        spread: CardSpread = (),
    ) -> None:
        self._fleet = fleet
        self._profiles = profiles
        self._spread = spread
        self._residual = residual
        self._admits = admits
        self._horizon = horizon
        self._kept: dict[tuple[str, str], int] = {}
        for hold in holds:
            key = (hold.node, hold.gpu)
            self._kept[key] = self._kept.get(key, 0) | hold.bits

    def find(self, nodes: Iterable[str]) -> ReservedPlace | None:
        """Returns the place that empties soonest on these nodes; of equal ones the first. None if there is none."""
        best: ReservedPlace | None = None
        looked = 0
        for node in nodes:
            cards = list(self._fleet.cards(node))
            looked += len(cards)
            if looked > RESERVATION_CARDS and best is not None:
                break
            found = self._on_node(node, cards, self._horizon if best is None else best.seconds)
            if found is not None and (best is None or found.seconds < best.seconds):
                best = found
            if looked > RESERVATION_CARDS or (best is not None and not best.seconds):
                break
        return best

    def find_several(self, nodes: Iterable[str], count: int, accept: Callable[[str], bool]) -> list[ReservedPlace]:
        """Returns so many places that empty soonest, for as many equal demands; none if there are fewer.

        The places of a node are found one after the other, each beside those before it, so they empty in this order.

        Args:
            nodes: the nodes to look at.
            count: the number of demands.
            accept: called with the node of each place found; False if the node takes no further one.
        """
        found: list[ReservedPlace] = []  # the soonest so far, in order
        looked = 0
        for node in nodes:
            cards = list(self._fleet.cards(node))
            looked += len(cards)
            if looked > RESERVATION_CARDS * (1 if len(found) == count else RESERVATION_SEARCHES):
                break
            more = True
            while more:
                most = found[-1].seconds if len(found) == count else self._horizon
                place = self._on_node(node, cards, most)
                if place is None or (len(found) == count and place.seconds >= most):
                    break
                self.keep(place)
                insort(found, place, key=lambda each: each.seconds)
                del found[count:]
                more = accept(node)
        return found if len(found) == count else []

    def keep(self, place: ReservedPlace) -> None:
        """Keeps the demand out of a place."""
        for at in place.placements:
            bits = self._fleet.card(at.node, at.gpu).table.mask_of(at.on_card)
            self._kept[at.node, at.gpu] = self._kept.get((at.node, at.gpu), 0) | bits

    def _on_node(self, node: str, cards: Sequence[FleetCard], most: float) -> ReservedPlace | None:
        """Returns the soonest place on a node within ``most`` seconds."""
        lasts: dict[str, float] = {}
        for card in cards:
            for one in card.allocations.values():
                lasts[one.owner] = max(lasts.get(one.owner, 0.0), self._residual(one))
        times = [0.0, *sorted({each for each in lasts.values() if 0 < each <= most})]
        if not self._fits(node, cards, lasts, times[-1]):
            return None
        index = bisect_left(times, x=True, key=lambda time: self._fits(node, cards, lasts, time))
        return self._place(cards, lasts, times[index])

    def _fits(self, node: str, cards: Sequence[FleetCard], lasts: Mapping[str, float], time: float) -> bool:
        if self._divide(cards, self._states(cards, lasts, time)) is None:
            return False
        return self._admits(node, frozenset(owner for owner, each in lasts.items() if each <= time))

    def _divide(
        self, cards: Sequence[FleetCard], states: Sequence[tuple[CardTable, int, Pending]]
    ) -> tuple[float, tuple[int, ...]] | None:
        compared = Comparison(self._spread, [card.node.values.get(card.gpu, {}) for card in cards])
        return divide_over_cards(states, self._profiles, compared=compared)

    def _states(
        self, cards: Sequence[FleetCard], lasts: Mapping[str, float], time: float
    ) -> list[tuple[CardTable, int, Pending]]:
        """The cards when everything that ends within ``time`` has ended."""
        return [(card.table, self._remaining(card, lasts, time), ()) for card in cards]

    def _remaining(self, card: FleetCard, lasts: Mapping[str, float], time: float) -> int:
        bits = self._kept.get((card.node.name, card.gpu), 0)
        for one in card.allocations.values():
            if lasts[one.owner] > time:
                bits |= card.table.mask_of(one.placement.on_card)
        return bits

    def _place(self, cards: Sequence[FleetCard], lasts: Mapping[str, float], time: float) -> ReservedPlace | None:
        states = self._states(cards, lasts, time)
        divided = self._divide(cards, states)
        if divided is None:
            return None
        starts: dict[tuple[int, str], list[int]] = {}
        for index in set(divided[1]):
            table, occupancy, _ = states[index]
            names = (table.name_of(each) for each, at in zip(self._profiles, divided[1], strict=True) if at == index)
            pending = tuple(sorted(name for name in names if name is not None))
            for one in table.arrangement(occupancy, pending) or ():
                starts.setdefault((index, one.profile), []).append(one.start)
        placements = []
        for profile, index in zip(self._profiles, divided[1], strict=True):
            card, name = cards[index], cards[index].table.name_of(profile)
            if name is None or not starts.get((index, name)):
                return None
            placements.append(card.slice_at(name, starts[index, name].pop()))
        holders = tuple(one for card in cards for one in overlapping(card, placements))
        return ReservedPlace(tuple(placements), holders, max((lasts[one.owner] for one in holders), default=0.0))


def overlapping(card: FleetCard, placements: Iterable[CardPlacement]) -> Iterator[OwnedPlacement]:
    """Yields the allocations of a card that meet one of these placements."""
    bits = reserved_bits(card, placements)
    for one in card.allocations.values():
        if bits & card.table.mask_of(one.placement.on_card):
            yield one


def reserved_bits(card: FleetCard, placements: Iterable[CardPlacement]) -> int:
    """Returns the bits that these placements take on a card; placements on other cards do not count.

    Raises:
        ValueError: a placement leaves the card.
    """
    bits = 0
    for one in placements:
        if one.gpu == card.gpu and one.node == card.node.name:
            bits |= card.table.mask_of(one.on_card)
    return bits


@contextmanager
def hold_slots(fleet: Fleet, holds: Iterable[Hold], node: str = "") -> Iterator[None]:
    """Keeps everyone out of exactly these slots, of one node or of the whole fleet, inside the ``with``."""
    before = fleet.holds_on(node) if node else fleet.holds
    change = partial(fleet.hold_on, node) if node else fleet.hold
    change(holds)
    try:
        yield
    finally:
        change(before)
