"""Finds few moves of running slices that make room for a slice that found none.

A slice cannot be moved while it runs: its pod ends and starts anew elsewhere. So a move has a price, the work that is
lost and the time until the pod works again, and is worth it only if the slice that gets room gains more. This module
finds the best moves; :func:`weigh` compares what they gain with what they cost.

- The place for the slice is on one card. All allocations in its way move, each to the card where it costs least.
- Fewest moves first, then the least price, then the least sum of the moved slots, each weighted with
  :data:`_SLOT_WEIGHT`, and of the loss on all cards that change.
- Only allocations move that the caller allows, and only to nodes that it allows. Nothing is changed.
- A search has a step budget: once it is spent, the best moves so far count.
"""

import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import msgspec

from tessera.mig.geometry import Placement
from tessera.mig.names import plain_profile
from tessera.placement.card_table import CardTable
from tessera.placement.cards import CardPlacement, FleetCard, OwnedPlacement
from tessera.placement.demand import StepBudget
from tessera.placement.fleet import Fleet
from tessera.placement.state_costs import StateCosts

#: Returns the costs on cards of a table, as the placement policy has them.
Costs = Callable[[CardTable], StateCosts]
#: Most moves for one slice.
MOST_MOVES = 3
#: Share of a search's steps that may be spent on looking for places; the rest is for those in their way.
_LOOKING_SHARE = 0.5
#: What a moved slot counts against the loss, found by trying values under churn (``bench/churn.py``).
_SLOT_WEIGHT = 0.2


class Move(msgspec.Struct, frozen=True):
    """One allocation's move.

    Attributes:
        allocation: the allocation where it is.
        to: its new place.
    """

    allocation: OwnedPlacement
    to: CardPlacement


@dataclass(frozen=True)
class MoveRules:
    """The caller's rules; by default everything is allowed.

    Attributes:
        may_move: returns if an allocation may move.
        takes: returns if a node takes the slice that has no room.
        takes_moved: returns if a node takes an allocation that moves.
        admits: returns if a node takes the slice once these owners have left; asked only for places with moves.
        price: what a move of an allocation costs, in any unit.
    """

    may_move: Callable[[OwnedPlacement], bool] = lambda _allocation: True
    takes: Callable[[str], bool] = lambda _node: True
    takes_moved: Callable[[OwnedPlacement, str], bool] = lambda _allocation, _node: True
    admits: Callable[[str, frozenset[str]], bool] = lambda _node, _owners: True
    price: Callable[[OwnedPlacement], float] = lambda _allocation: 0.0


class Room(msgspec.Struct, frozen=True):
    """Moves, and the place that they free.

    Attributes:
        placement: where the slice goes after the moves.
        moves: in an order in which each place is free when its allocation comes, once all have left.
    """

    placement: CardPlacement
    moves: tuple[Move, ...]

    @property
    def moved_slots(self) -> int:
        """Memory slots of all allocations that move."""
        return sum(move.allocation.placement.size for move in self.moves)


def make_room(
    fleet: Fleet,
    profile: str,
    costs: Costs,
    rules: MoveRules,
    most: int = MOST_MOVES,
    *,
    nodes: Iterable[str] | None = None,
    work: StepBudget | None = None,
) -> Room | None:
    """Returns the best moves after which a slice fits; ``None`` without such moves.

    Args:
        fleet: the cards, without pending slices.
        profile: the slice's profile, in any spelling.
        costs: rates the cards that change.
        rules: what may move, and where to.
        most: the most moves.
        nodes: the nodes to look at for the slice, in this order; None for all that ``rules`` allow.
        work: the budget; one step is one card that is looked at, or one node that is asked about a move.
    """
    work = work or StepBudget(sys.maxsize)
    search = _Search(fleet, costs, rules, work)
    best: tuple[tuple[int, float, float], Room] | None = None
    tried: set[object] = set()
    cards = _cards_to_look_at(fleet, rules, nodes)
    for blocked in sorted(_blocked_places(cards, profile, rules, most, work.part(_LOOKING_SHARE)), key=_rank_blocked):
        rank = (len(blocked.blockers), blocked.price)
        if work.is_spent or (best is not None and rank > best[0][:2]):
            break
        kind = blocked.kind
        if kind in tried or not rules.admits(blocked.card.node.name, frozenset(one.owner for one in blocked.blockers)):
            continue
        tried.add(kind)
        found = _move_blockers(search, blocked)
        if found is not None:
            value = found[0] + _SLOT_WEIGHT * found[1].moved_slots
            if best is None or (*rank, value) < best[0]:
                best = ((*rank, value), found[1])
    return None if best is None else best[1]


class Worth(msgspec.Struct, frozen=True):
    """What a slice gains by its place, and what the moves for it cost, in slots times the caller's unit of time."""

    gain: float
    price: float

    @property
    def is_positive(self) -> bool:
        """True if the gain is more than the price."""
        return self.price < self.gain


def weigh(
    room: Room, *, gain_a_slot: float, price: Callable[[OwnedPlacement], float], price_a_move: float = 0.0
) -> Worth:
    """Weighs what moves gain against what they cost.

    Args:
        room: the moves.
        gain_a_slot: the time that the slice gains, or less than none if it gains nothing, in any unit.
        price: lost work and cold start of a moved allocation, in slots times that unit.
        price_a_move: the same for a move of any size: what else the move could make room for.
    """
    paid = sum(price(move.allocation) for move in room.moves) + len(room.moves) * price_a_move
    return Worth(gain=room.placement.size * max(0.0, gain_a_slot), price=paid)


class _Search(NamedTuple):
    fleet: Fleet
    costs: Costs
    rules: MoveRules
    work: StepBudget


class _Blocked(msgspec.Struct, frozen=True):
    """A legal place on a card and the allocations in its way."""

    card: FleetCard
    place: Placement
    claim: int
    blockers: tuple[OwnedPlacement, ...]
    price: float

    @property
    def kind(self) -> object:
        """Equal for places that cost the same to free."""
        moved = tuple(sorted((one.placement.profile, one.placement.start) for one in self.blockers))
        return (self.card.table.number, self.card.occupancy, self.claim, moved)


def _rank_blocked(blocked: _Blocked) -> tuple[int, float, int, int]:
    return (
        len(blocked.blockers),
        blocked.price,
        sum(one.placement.size for one in blocked.blockers),
        blocked.card.number,
    )


def _cards_to_look_at(fleet: Fleet, rules: MoveRules, nodes: Iterable[str] | None) -> Iterator[FleetCard]:
    if nodes is not None:
        for node in nodes:
            yield from fleet.cards(node)
        return
    taking = {node: rules.takes(node) for node in fleet.nodes}
    yield from (card for card in fleet.cards() if taking[card.node.name])


def _blocked_places(
    cards: Iterable[FleetCard], profile: str, rules: MoveRules, most: int, work: StepBudget
) -> Iterator[_Blocked]:
    claims: dict[CardTable, list[tuple[int, Placement]]] = {}
    for card in cards:
        if work.is_spent:
            return
        work.spend()
        if card.table not in claims:
            claims[card.table] = _claims(card.table, profile)
        for claim, place in claims[card.table]:
            starts = [start for start, bits in card.claims.items() if bits & claim]
            if 0 < len(starts) <= most:
                blockers = tuple(card.allocations[start] for start in starts)
                if all(map(rules.may_move, blockers)):
                    yield _Blocked(card, place, claim, blockers, sum(map(rules.price, blockers)))


def _claims(table: CardTable, profile: str) -> list[tuple[int, Placement]]:
    row = table.geometry.find(profile)
    if row is None:
        return []
    places = [Placement(plain_profile(row.name), start, row.size) for start in row.starts]
    return [(table.geometry.claim(row, each.start), each) for each in places]


def _move_blockers(search: _Search, blocked: _Blocked) -> tuple[float, Room] | None:
    """Finds a place for each blocker; returns the loss of all changes and the moves."""
    card = blocked.card
    occupancy = card.occupancy
    for one in blocked.blockers:
        occupancy &= ~card.claims[one.placement.start]
    if occupancy & blocked.claim:  # slots that are kept or foreign
        return None
    rated = search.costs(card.table)
    changed = {card: occupancy | blocked.claim}
    loss = rated.loss(changed[card]) - rated.loss(card.occupancy)
    moves = []
    for one in sorted(blocked.blockers, key=lambda each: -each.placement.size):
        found = _cheapest_place(search, one, changed)
        if found is None:
            return None
        cost, target, place, after = found
        changed[target] = after
        loss += cost
        moves.append(Move(one, CardPlacement(target.node.name, target.gpu, place.profile, place.start, place.size)))
    place = blocked.place
    return loss, Room(CardPlacement(card.node.name, card.gpu, place.profile, place.start, place.size), tuple(moves))


def _cheapest_place(
    search: _Search, moved: OwnedPlacement, changed: dict[FleetCard, int]
) -> tuple[float, FleetCard, Placement, int] | None:
    """The cheapest place for an allocation on cards as they are, or as the moves so far change them."""
    profile, costs = moved.placement.profile, search.costs
    choices: list[tuple[float, int, FleetCard, int]] = []

    def add(card: FleetCard, occupancy: int) -> bool:
        search.work.spend()
        name = card.table.name_of(profile)
        cost = None if name is None else costs(card.table).cost(occupancy, (), name)
        if cost is None or not search.rules.takes_moved(moved, card.node.name):
            return False
        choices.append((cost, card.number, card, occupancy))
        return True

    for card, occupancy in changed.items():
        add(card, occupancy)
    for group in search.fleet.candidates(profile, costs=costs):
        if any(search.work.is_spent or add(card, card.occupancy) for card in group.cards() if card not in changed):
            break
    if not choices:
        return None
    cost, _, card, occupancy = min(choices, key=lambda choice: choice[:2])
    name = card.table.name_of(profile)
    arranged = None if name is None else costs(card.table).arrangement(occupancy, (name,))
    if not arranged:
        return None
    return cost, card, arranged[0], occupancy | card.table.mask_of(arranged[0])
