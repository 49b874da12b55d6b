"""Gives the reason that a demand found no place, and the allocations whose end would make room.

Runs after a batch is planned, on the state of the cards after it. It must be cheap, since every plan explains all
waiting demands: it considers only the few emptiest nodes that admit the demand, demands of one shape share the result,
and searches for several slices share a budget. It finds the smallest set of allocations on these nodes whose end would
make room.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import combinations, starmap
from typing import Any

from tessera.placement.card_table import CardTable
from tessera.placement.cards import SPARE_OF
from tessera.placement.demand import Demand, NodeAllows, StepBudget
from tessera.placement.fleet import Fleet, FleetCard, FleetNode, OwnedPlacement
from tessera.placement.node_fit import divide_over_cards
from tessera.placement.state_costs import Pending
from tessera.reasons.node_rules import NodeRule
from tessera.reasons.reason import Blocker, Fragmented, Full, NoNode, Reason, Reserved, RuleCount

#: Most steps of these searches for all pods of one decision. They may not take longer than the decision; beyond it
#: reasons say that several pods would have to end.
EXPLAINED_STEPS = 40_000

#: Most sets of pods that the search for pods whose end makes room tries, for one pod. Their number grows with every pod
#: that runs; beyond it the reason says that several pods would have to end.
EXPLAINED_SETS = 20_000
#: Most divisions of a pod's slices among cards that this search tries. Their number grows with every pod that runs;
#: beyond it the reason says that several pods would have to end.
EXPLAINED_DIVISIONS = 400

#: Number, slots, and the allocations themselves.
_Blockers = tuple[int, int, tuple[OwnedPlacement, ...]]
#: Most nodes to search for allocations whose end would make room.
_NODES_SEARCHED = 16
#: Most owners in such a set; beyond it the reason says that several would have to end.
_OWNERS_ENDED = 3


class RefusalExplainer:
    """Reasons for the demands of one batch.

    Args:
        fleet: the cards.
        node_allows: returns a node's refusal of a demand; None if the node takes it.
        settled: by card, the placements on cards to which the batch gave slices.
        kept: nodes with slots that ``hold_slots`` keeps for other demands.
    """

    def __init__(
        self,
        fleet: Fleet,
        node_allows: NodeAllows,
        settled: Mapping[FleetCard, Sequence[OwnedPlacement]],
        kept: Sequence[str] = (),
    ) -> None:
        self._fleet = fleet
        self._allows = node_allows
        self._settled = settled
        self._given: dict[FleetNode, dict[object, Any]] = {card.node: {} for card in settled}
        self._kept = [fleet.node(node) for node in kept if node in fleet]
        #: Pays for the searches of several slices' room, for all demands together.
        self._work = StepBudget(EXPLAINED_STEPS)
        self._by_shape: dict[tuple[tuple[str, ...], tuple[FleetNode, ...]], Full | Fragmented] = {}

    def reason(self, demand: Demand, refused: Mapping[str, NodeRule]) -> Reason:
        """Returns the reason that a demand of known profiles was not placed.

        If some node would take the demand, the reason is the lack of room on the cards; the refusals of other nodes
        with room do not count. Only if no node would take it, the reason is the nodes' rules.

        Args:
            demand: the demand.
            refused: nodes with room that refused it.
        """
        kept = self._kept_reason(demand)
        if kept is not None:
            return kept
        refusals: dict[str, NodeRule] = dict(refused)
        admitting: list[FleetNode] = []
        if demand.nodes is not None:  # other nodes refuse the demand; they are asked only if these do too
            admitting = self._admitting_nodes(demand, demand.nodes)
        allows = self._allows
        for node in self._nodes_for(demand.profiles) if not admitting else ():
            name = node.name
            refusal = refusals.get(name) or allows(demand, name)
            if refusal is not None:
                refusals[name] = refusal
                continue
            admitting.append(node)
            if len(admitting) == _NODES_SEARCHED:
                break
        if admitting:
            return self._no_room(demand.profiles, tuple(admitting))
        return _no_node(refusals.values(), self._fleet.node_count - len(refusals))

    def _kept_reason(self, demand: Demand) -> Reserved | None:
        """Returns the demands for which room is kept that this one would fit in; None if there is no such room."""
        keys: dict[str, None] = {}
        most = 0
        for node in self._kept:
            found = self._kept_room(node, demand.profiles)
            if found is not None and self._allows(demand, node.name) is None:
                keys |= dict.fromkeys(found[0])
                most = max(most, found[1])
        spare = tuple(each.removeprefix(SPARE_OF) for each in keys if each.startswith(SPARE_OF))
        first = tuple(each for each in keys if not each.startswith(SPARE_OF))
        return Reserved(demand.profiles, first, most, spare) if keys else None

    def _kept_room(self, node: FleetNode, profiles: tuple[str, ...]) -> tuple[tuple[str, ...], int] | None:
        """Returns the keys and the most usable slots on a node where the slices fit, were its kept slots given to them.

        None if they do not fit there.
        """
        answers, key = self._answers(node), ("kept", profiles)
        if key not in answers:
            if len(profiles) > 1 and self._work.is_spent:
                return None
            states: list[tuple[CardTable, int, Pending]] = [
                (card.table, self._unkept_occupancy(card), ()) for card in node.cards.values()
            ]
            answers[key] = None
            if divide_over_cards(states, profiles, self._work) is not None:
                keys = dict.fromkeys(owner for card in node.cards.values() for owner, _ in card.reserved)
                answers[key] = (tuple(keys), max(table.usable_slots(state) for table, state, _ in states))
        found: tuple[tuple[str, ...], int] | None = answers[key]
        return found

    def _unkept_occupancy(self, card: FleetCard) -> int:
        settled = self._settled.get(card)
        return card.instances if settled is None else _union(_bits(card, one) for one in settled)

    def _admitting_nodes(self, demand: Demand, nodes: Iterable[str]) -> list[FleetNode]:
        known = [node for node in nodes if node in self._fleet]
        able = [node for node in self._nodes_for(demand.profiles, known) if self._allows(demand, node.name) is None]
        return able[:_NODES_SEARCHED]

    def _nodes_for(self, profiles: Sequence[str], of: Sequence[str] | None = None) -> Iterator[FleetNode]:
        """Nodes whose cards have all the profiles, emptiest first."""
        tables = self._fleet.tables
        if len(tables) == 1 and all(tables[0].names[profile] for profile in profiles):
            yield from self._fleet.emptiest_nodes(of)
            return
        able: dict[tuple[CardTable, ...], bool] = {}
        for node in self._fleet.emptiest_nodes(of):
            tables = tuple(node.tables)
            if tables not in able:
                able[tables] = all(any(table.name_of(profile) for table in tables) for profile in profiles)
            if able[tables]:
                yield node

    def no_room(self, profiles: tuple[str, ...], nodes: tuple[str, ...]) -> Full | Fragmented:
        """Returns the reason that these nodes' cards have no room for profiles that would fit on them when empty."""
        return self._no_room(profiles, tuple(map(self._fleet.node, nodes)))

    def _no_room(self, profiles: tuple[str, ...], nodes: tuple[FleetNode, ...]) -> Full | Fragmented:
        key = (profiles, nodes)
        if key not in self._by_shape:
            self._by_shape[key] = self._lack_of_room(profiles, nodes)
        return self._by_shape[key]

    def _lack_of_room(self, profiles: tuple[str, ...], nodes: Sequence[FleetNode]) -> Full | Fragmented:
        single = len(profiles) == 1
        most, free, need = 0, 0, 0
        best: _Blockers | None = None
        for node in nodes:
            answers = self._answers(node)
            facts: tuple[int, int, int, _Blockers | None] | None = answers.get(profiles)
            if facts is None:
                facts = answers[profiles] = self._facts(profiles, node)
            total, largest, least, found = facts
            free += total
            most = max(most, largest if single else total)
            if not need or least < need:
                need = least
            if found is not None and (best is None or found[:2] < best[:2]):
                best = found
        frees = self._frees_node(profiles, nodes) if not single else best[2] if best else ()
        ends = tuple(map(blocker_of, frees))
        return Fragmented(profiles, most, ends, free, need) if free >= need else Full(profiles, ends, free, need)

    def _facts(self, profiles: tuple[str, ...], node: FleetNode) -> tuple[int, int, int, _Blockers | None]:
        """Returns the usable slots of all cards of a node, the most of one card, and the fewest that are needed.

        For one slice, also the allocations that occupy a place for it.
        """
        able = [table for table in node.tables if any(map(table.name_of, profiles))]
        usable = [
            card.table.usable_slots(self._occupancy(card)) if card in self._settled else card.alike.usable
            for card in node.cards.values()
            if len(able) == len(node.tables) or card.table in able
        ]
        found = self._frees_card(node, profiles[0]) if len(profiles) == 1 else None
        return (sum(usable), max(usable, default=0), _slots_needed(profiles, able), found)

    def _answers(self, node: FleetNode) -> dict[object, Any]:
        """Remembered answers about a node; they outlive the batch if it gave the node nothing."""
        if node in self._given:
            return self._given[node]
        if node.answers is None:
            node.answers = {}
        return node.answers

    # Allocations whose end would make room

    def _frees_card(self, node: FleetNode, profile: str) -> _Blockers | None:
        """Returns the fewest allocations of a node, and of these the smallest, that occupy a place for one slice."""
        best: tuple[int, int] | None = None
        place: tuple[FleetCard, int] | None = None
        for card in node.cards.values():
            name = card.table.names[profile]
            if name is None:
                continue
            known = card.table.least_blockers[name, card.instances] if card not in self._settled else None
            for count, slots, claim in (known,) if known is not None else self._blockers(card, name):
                if best is None or (count, slots) < best:
                    best, place = (count, slots), (card, claim)
        if best is None or place is None:
            return None
        card, claim = place
        held = zip(self._placements(card), self._claims(card), strict=True)
        return (*best, tuple(one for one, bits in held if bits & claim))

    def _blockers(self, card: FleetCard, profile: str) -> Iterator[tuple[int, int, int]]:
        """Yields for each place of a card the number of allocations there, their slots, and the bits of the place."""
        row = card.geometry.profile(profile)
        held = list(zip(self._placements(card), self._claims(card), strict=True))
        for start in row.starts:
            claim = card.geometry.claim(row, start)
            sizes = [one.placement.size for one, bits in held if bits & claim]
            yield len(sizes), sum(sizes), claim

    def _frees_node(self, profiles: tuple[str, ...], nodes: Sequence[FleetNode]) -> tuple[OwnedPlacement, ...]:
        """The fewest owners on one node whose end makes room for several slices; empty beyond the bounds."""
        tried = sets = 0
        for count in range(1, _OWNERS_ENDED + 1):
            for node in nodes:
                cards = [(card.table, _by_owner(card, self._placements(card))) for card in node.cards.values()]
                need = _slots_needed(profiles, [table for table, _ in cards])
                owners = sorted({owner for _, held in cards for owner in held})
                for ended in combinations(owners, count):
                    sets += 1
                    if sets * len(cards) > EXPLAINED_SETS or self._work.is_spent:
                        return ()
                    self._work.spend(len(cards))
                    left = [_end_owners(table, held, ended) for table, held in cards]
                    if sum(table.usable_slots(occupancy) for table, occupancy, _ in left) < need:
                        continue
                    if divide_over_cards(left, profiles, self._work) is not None:
                        return self._of_owners(node, ended)
                    tried += 1
                    if tried == EXPLAINED_DIVISIONS:
                        return ()
        return ()

    def _of_owners(self, node: FleetNode, owners: Sequence[str]) -> tuple[OwnedPlacement, ...]:
        held = (one for card in node.cards.values() for one in self._placements(card))
        return tuple(one for one in held if one.owner in owners)

    def _placements(self, card: FleetCard) -> Sequence[OwnedPlacement]:
        settled = self._settled.get(card)
        return tuple(card.allocations.values()) if settled is None else settled

    def _claims(self, card: FleetCard) -> list[int]:
        """The bits of each of the placements."""
        settled = self._settled.get(card)
        return list(card.claims.values()) if settled is None else [_bits(card, one) for one in settled]

    def _occupancy(self, card: FleetCard) -> int:
        if card not in self._settled:
            return card.occupancy
        return _union(_bits(card, one) for one in self._settled[card])


def _no_node(refusals: Iterable[NodeRule], no_room: int) -> NoNode:
    counts = starmap(RuleCount, Counter(refusals).items())
    return NoNode(tuple(sorted(counts, key=lambda each: (-each.nodes, each.rule))), no_room)


def blocker_of(one: OwnedPlacement) -> Blocker:
    """Returns a slice as a reason names it."""
    at = one.placement
    return Blocker(one.owner, at.node, at.profile, at.gpu, at.start, at.size)


def _bits(card: FleetCard, one: OwnedPlacement) -> int:
    return card.table.mask_of(one.placement.on_card)


def _union(masks: Iterable[int]) -> int:
    union = 0
    for mask in masks:
        union |= mask
    return union


def _by_owner(card: FleetCard, held: Sequence[OwnedPlacement]) -> dict[str, int]:
    bits: dict[str, int] = {}
    for one in held:
        bits[one.owner] = bits.get(one.owner, 0) | _bits(card, one)
    return bits


def _end_owners(table: CardTable, held: Mapping[str, int], ended: Sequence[str]) -> tuple[CardTable, int, Pending]:
    return table, _union(bits for owner, bits in held.items() if owner not in ended), ()


def _slots_needed(profiles: Sequence[str], tables: Sequence[CardTable]) -> int:
    """Returns the fewest memory slots that the profiles take on cards of these geometries; alike ones count once."""
    unlike = {id(table): table for table in tables}.values()
    return sum(
        count * min((table.size_of(name) for table in unlike if (name := table.name_of(profile))), default=0)
        for profile, count in Counter(profiles).items()
    )
