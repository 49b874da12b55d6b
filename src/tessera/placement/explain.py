"""Why a demand found no place, and what would make room.

Runs after a batch is planned, on what the cards will hold then. Kept cheap, since everything that waits is explained
at every plan: nodes are asked only until one admits the demand, demands of one shape share the answer, and the search
for what would free room looks at a bounded number of cards. It finds the smallest set there is among these.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import combinations, islice

from tessera.mig.geometry import Placement
from tessera.mig.occupancy import occupied_by
from tessera.placement.demand import Demand, NodeAllows
from tessera.placement.fleet import Allocation, Card, Fleet
from tessera.placement.node_fit import divide
from tessera.placement.policy import CardTable, Pending
from tessera.placement.reasons import Fragmented, Full, NoNode, Reason, Refusal

_CARDS_SEARCHED = 512
_NODES_SEARCHED = 16
_OWNERS_ENDED = 3
_DIVISIONS_TRIED = 400
# Bounds of the search for what would free room; beyond them the reason says that several would have to end.


class Explainer:
    """Reasons for the demands of one batch.

    Args:
        fleet: the cards.
        node_allows: says whether a node takes a demand.
        settled: what stands on the cards that the batch gave something to, by card.
    """

    def __init__(self, fleet: Fleet, node_allows: NodeAllows, settled: Mapping[Card, Sequence[Allocation]]) -> None:
        self._fleet = fleet
        self._allows = node_allows
        self._settled = settled
        self._by_shape: dict[tuple[tuple[str, ...], frozenset[str]], Full | Fragmented] = {}

    def reason(self, demand: Demand, refused: Mapping[str, Refusal]) -> Reason:
        """Why a demand of known profiles was not placed.

        Args:
            demand: the demand.
            refused: nodes with room that refused it.
        """
        if refused:
            return _no_node(refused.values(), len(self._fleet.nodes) - len(refused))
        refusals: dict[str, Refusal] = {}
        for node in self._nodes_for(demand.profiles):
            refusal = self._allows(demand, node)
            if refusal is None:
                return self._no_room(demand.profiles, frozenset(refusals))
            refusals[node] = refusal
        return _no_node(refusals.values(), len(self._fleet.nodes) - len(refusals))

    def _nodes_for(self, profiles: Sequence[str]) -> Iterator[str]:
        """Nodes whose cards have all the profiles."""
        for node in self._fleet.nodes:
            cards = list(self._fleet.cards(node))
            if all(any(card.table.name_of(profile) for card in cards) for profile in profiles):
                yield node

    def _no_room(self, profiles: tuple[str, ...], refusing: frozenset[str]) -> Full | Fragmented:
        key = (profiles, refusing)
        if key not in self._by_shape:
            nodes = [node for node in self._nodes_for(profiles) if node not in refusing]
            self._by_shape[key] = self._judge(profiles, nodes)
        return self._by_shape[key]

    def _judge(self, profiles: tuple[str, ...], nodes: Sequence[str]) -> Full | Fragmented:
        single = len(profiles) == 1
        frees = self._frees_card(profiles[0], nodes) if single else self._frees_node(profiles, nodes)
        most, enough = 0, False
        for node in nodes:
            rooms = [
                (card.table.usable(self._occupancy(card)), card.table)
                for card in self._fleet.cards(node)
                if any(card.table.name_of(profile) for profile in profiles)
            ]
            for free, tables in [(free, [table]) for free, table in rooms] if single else [_together(rooms)]:
                most = max(most, free)
                enough = enough or free >= _need(profiles, tables)
        return Fragmented(profiles, most, frees) if enough else Full(profiles, frees)

    # What would free room

    def _frees_card(self, profile: str, nodes: Sequence[str]) -> tuple[Allocation, ...]:
        """The fewest allocations, and of these the smallest, that stand where one slice could go."""
        best: tuple[int, int, tuple[Allocation, ...]] | None = None
        cards = (card for node in nodes for card in self._fleet.cards(node))
        for card in islice(cards, _CARDS_SEARCHED):
            name = card.table.name_of(profile)
            if name is None:
                continue
            row = card.geometry.profile(name)
            held = [(one, _bits(card, one)) for one in self._held(card)]
            for start in row.starts:
                claim = card.geometry.claim(row, start)
                blockers = tuple(one for one, bits in held if bits & claim)
                rank = (len(blockers), sum(one.placement.size for one in blockers))
                if best is None or rank < best[:2]:
                    best = (*rank, blockers)
            if best is not None and best[0] == 1 and best[1] <= row.size:
                break
        return best[2] if best else ()

    def _frees_node(self, profiles: tuple[str, ...], nodes: Sequence[str]) -> tuple[Allocation, ...]:
        """The fewest owners on one node whose end makes room for several slices; empty beyond the bounds."""
        tried = 0
        for count in range(1, _OWNERS_ENDED + 1):
            for node in nodes[:_NODES_SEARCHED]:
                cards = [(card, self._held(card)) for card in self._fleet.cards(node)]
                need = _need(profiles, [card.table for card, _ in cards])
                owners = sorted({one.owner for _, held in cards for one in held})
                for ended in combinations(owners, count):
                    left = [_without(card, held, ended) for card, held in cards]
                    if sum(table.usable(occupancy) for table, occupancy, _ in left) < need:
                        continue
                    if divide(left, profiles) is not None:
                        return tuple(one for _, held in cards for one in held if one.owner in ended)
                    tried += 1
                    if tried == _DIVISIONS_TRIED:
                        return ()
        return ()

    def _held(self, card: Card) -> Sequence[Allocation]:
        settled = self._settled.get(card)
        return tuple(card.allocations.values()) if settled is None else settled

    def _occupancy(self, card: Card) -> int:
        if card not in self._settled:
            return card.occupancy
        return _union(_bits(card, one) for one in self._settled[card])


def _no_node(refusals: Iterable[Refusal], no_room: int) -> NoNode:
    counts = Counter(refusal.rule for refusal in refusals)
    return NoNode(tuple(sorted(counts.items(), key=lambda item: (-item[1], item[0]))), no_room)


def _bits(card: Card, one: Allocation) -> int:
    held = one.placement
    return occupied_by(card.geometry, Placement(held.profile, held.start, held.size))


def _union(masks: Iterable[int]) -> int:
    union = 0
    for mask in masks:
        union |= mask
    return union


def _without(card: Card, held: Sequence[Allocation], ended: Sequence[str]) -> tuple[CardTable, int, Pending]:
    return card.table, _union(_bits(card, one) for one in held if one.owner not in ended), ()


def _together(rooms: Sequence[tuple[int, CardTable]]) -> tuple[int, list[CardTable]]:
    return sum(free for free, _ in rooms), [table for _, table in rooms]


def _need(profiles: Sequence[str], tables: Sequence[CardTable]) -> int:
    """Memory slots that the profiles take at least on cards of these geometries."""
    return sum(
        min((table.size_of(name) for table in tables if (name := table.name_of(profile))), default=0)
        for profile in profiles
    )
