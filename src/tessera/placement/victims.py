"""Finds the fewest allocations, and of these the cheapest, whose end makes room for a demand.

Allocations without a cost may not end. For one slice the search is exact: it compares all legal starts. For several
slices it begins with all allocations of a node that may end, and keeps the dearest ones as long as the demand still
fits; so no victim is superfluous. At most ``RESERVATION_CARDS`` cards are looked at.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from tessera.placement.cards import FleetCard, OwnedPlacement
from tessera.placement.demand import CardSpread
from tessera.placement.fleet import Fleet
from tessera.placement.reserved_slots import RESERVATION_CARDS, Hold, ReservedPlace, SoonestPlace

#: What the end of an allocation costs; None if it may not end. The costs of victims are added up.
Cost = Callable[[OwnedPlacement], float | None]

#: Profiles, and how they lie on cards.
_Slices = tuple[tuple[str, ...], CardSpread]


def find_victims(
    fleet: Fleet,
    profiles: tuple[str, ...],
    cost: Cost,
    *,
    nodes: Iterable[str],
    holds: Sequence[Hold],
    admits: Callable[[str, frozenset[str]], bool],
    spread: CardSpread = (),
) -> ReservedPlace | None:
    """Returns the place with the fewest victims, of equal ones the cheapest; its holders are the victims.

    Args:
        fleet: the cards; unchanged.
        profiles: the demand's.
        cost: of each allocation.
        nodes: the nodes to look at.
        holds: slots that are kept for other demands.
        admits: True if a node takes the demand once these owners have ended.
        spread: how its slices lie on the cards.
    """
    best: tuple[tuple[int, float], ReservedPlace] | None = None
    looked = 0
    for node in nodes:
        cards = list(fleet.cards(node))
        looked += len(cards)
        costs = _costs(cards, cost)
        found = _one_slice(cards, profiles[0], costs, holds) if len(profiles) == 1 else None
        places = found if len(profiles) == 1 else _several(fleet, node, (profiles, spread), costs, holds)
        for place in places or ():
            owners = frozenset(one.owner for one in place.holders)
            rank = (len(owners), sum(costs[owner] for owner in owners))
            if owners and (best is None or rank < best[0]) and admits(node, owners):
                best = (rank, place)
        if looked > RESERVATION_CARDS:
            break
    return best[1] if best else None


def _costs(cards: Sequence[FleetCard], cost: Cost) -> dict[str, float]:
    """The cost of each owner on these cards that may end; an owner may end only with all its slices."""
    costs: dict[str, float] = {}
    fixed: set[str] = set()
    for card in cards:
        for one in card.allocations.values():
            found = cost(one)
            if found is None:
                fixed.add(one.owner)
            else:
                costs[one.owner] = costs.get(one.owner, 0.0) + found
    return {owner: found for owner, found in costs.items() if owner not in fixed}


def _one_slice(
    cards: Sequence[FleetCard], profile: str, costs: Mapping[str, float], holds: Sequence[Hold]
) -> Iterator[ReservedPlace]:
    """Yields each start at which only allocations that may end are in the way."""
    for card in cards:
        name = card.table.name_of(profile)
        if name is None:
            continue
        kept = 0
        for hold in holds:
            if (hold.node, hold.gpu) == (card.node.name, card.gpu):
                kept |= hold.bits
        row = card.geometry.profile(name)
        held = [(one, card.table.mask_of(one.placement.on_card)) for one in card.allocations.values()]
        for start in row.starts:
            claim = card.geometry.claim(row, start)
            blockers = tuple(one for one, bits in held if bits & claim)
            if not kept & claim and all(one.owner in costs for one in blockers):
                yield ReservedPlace((card.slice_at(name, start),), blockers, 0.0)


def _several(
    fleet: Fleet, node: str, demand: _Slices, costs: Mapping[str, float], holds: Sequence[Hold]
) -> Iterator[ReservedPlace]:
    """Yields the place on one node for which no victim is superfluous."""
    ending = set(costs)
    place = _fit(fleet, node, demand, ending, holds)
    for owner in sorted(costs, key=lambda each: (-costs[each], each)) if place is not None else ():
        other = _fit(fleet, node, demand, ending - {owner}, holds)
        if other is not None:
            ending.discard(owner)
            place = other
    if place is not None:
        yield place


def _fit(fleet: Fleet, node: str, demand: _Slices, ending: set[str], holds: Sequence[Hold]) -> ReservedPlace | None:
    """The place on a node beside everything that does not end."""
    search = SoonestPlace(
        fleet,
        demand[0],
        lambda one: 0.0 if one.owner in ending else float("inf"),
        holds=holds,
        admits=lambda _node, _owners: True,
        horizon=0.0,
        spread=demand[1],
    )
    return search.find((node,))
