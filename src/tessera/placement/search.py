"""Finds the best cards for one demand in the fleet's present state. Changes nothing on the fleet.

- One slice goes to the card that the policy ranks first; of cards with its cost, or as little more as the demand's
  preferences may cost, to one on a node that the demand prefers. A few are compared: the first ones, those of the nodes
  that the demand prefers most, and those like the best on the emptiest nodes, where others of its owner rarely are.
- Several slices go to the node where they cost least by the policy, among the first that have room.
- Whole cards and shares go to the first node in the order of the caller that admits the demand, or to one that is as
  good and that the demand prefers. If none does, all other nodes are asked as for slices, for the reason.
- The search asks lazily if a node admits a demand, best node first. It remembers a refusal until
  :meth:`CardSearch.forget`.
"""

from collections.abc import Iterator, Mapping
from itertools import chain, islice
from math import inf
from typing import Generic, TypeVar

from msgspec import structs

from tessera.mig.names import CLAIMED_SHARE, is_device_profile, plain_profile
from tessera.placement.cards import AlikeCards
from tessera.placement.demand import Demand, NodeAllows, NodeRanking, Parts, Preferences, StepBudget, complete
from tessera.placement.fleet import Fleet, FleetCard, FleetNode
from tessera.placement.node_fit import fit_in_parts
from tessera.placement.policies import Policy
from tessera.reasons.node_rules import NodeRule

T = TypeVar("T")

#: Nodes with room from which a demand takes the best; one of several slices is refused only after all were tried.
_NODES_COMPARED = 16
#: Nodes that a demand prefers, and for whole cards further ones, that are compared.
_COMPARED = 64
#: Nodes that a demand prefers whose cards are ranked at once: the first that serves is usually among the first.
_ASKED_AT_ONCE = 8


def is_rated(demand: Demand) -> bool:
    """True for a demand of whole cards or of shares whose card kubelet chooses: only the node is left to choose."""
    first = demand.profiles[0]
    return (
        not demand.spread
        and is_device_profile(first)
        and plain_profile(first) != CLAIMED_SHARE
        and all(each == first for each in demand.profiles)
    )


class CardSearch:
    """The search of one batch.

    Args:
        fleet: the cards, with the pending slices of this batch.
        node_allows: returns a node's refusal of a demand; None if the node takes it.
        policy: ranks cards and nodes.
        rank_nodes: ranks nodes for whole cards and shares; by default the policy does.
        wanted: what demands prefer of their places.
    """

    def __init__(
        self,
        fleet: Fleet,
        node_allows: NodeAllows,
        policy: Policy,
        rank_nodes: NodeRanking | None = None,
        wanted: Preferences | None = None,
    ) -> None:
        self._wanted = wanted
        self._rank_nodes = rank_nodes
        self._policy = policy
        self._fleet = fleet
        self._allows = node_allows
        #: By demand, the refusals of nodes that were asked since :meth:`forget`.
        self._refused: dict[str, dict[str, NodeRule]] = {}
        #: By profiles, and by how they lie on cards, the least cost of dividing them over cards in the given
        #: states; None without room.
        self._costs: dict[object, dict[object, float | None]] = {}

    def refusals(self, demand: Demand) -> Mapping[str, NodeRule]:
        """The nodes that refused a demand, with their reasons."""
        return self._refused.get(demand.key, {})

    def forget(self, demand: Demand) -> None:
        """Forgets these refusals, so that all nodes are asked again."""
        self._refused.pop(demand.key, None)

    def slots_needed(self, demand: Demand) -> int:
        """Memory slots that the demand takes at least."""
        return sum(
            min(table.size_of(name) for table in self._fleet.tables if (name := table.name_of(profile)))
            for profile in demand.profiles
        )

    def find(self, demand: Demand, work: StepBudget, policy: Policy | None = None) -> tuple[FleetCard, ...] | None:
        """One card for each profile of a demand; None without room.

        Args:
            demand: the slices.
            work: pays for the search.
            policy: another one than the search's own, with the same costs: one of its packing variants.
        """
        if len(demand.profiles) > 1:
            return complete(self.find_in_parts(demand, work, policy))
        return self._find_rated(demand, work) or self._find_card(demand, work, policy)

    def find_in_parts(
        self, demand: Demand, work: StepBudget, policy: Policy | None = None
    ) -> Parts[tuple[FleetCard, ...] | None]:
        """The same in parts. Nothing may change the fleet in between."""
        found = self._find_rated(demand, work)
        if found is None and len(demand.profiles) > 1:
            return (yield from self._find_node(demand, work))
        return found or self._find_card(demand, work, policy)

    def _find_rated(self, demand: Demand, work: StepBudget) -> tuple[FleetCard, ...] | None:
        return self.find_ranked(demand, work) if self._rank_nodes is not None and is_rated(demand) else None

    def _find_card(self, demand: Demand, work: StepBudget, policy: Policy | None) -> tuple[FleetCard, ...] | None:
        """The card that the policy ranks first for one slice."""
        rule = policy or self._policy
        if demand.preferences is not None and self._wanted is not None:
            return self._find_preferred(demand, work, rule, self._wanted)
        if demand.nodes is None:
            first = rule.first_place(self._fleet, demand.profiles[0])
            if first is None:
                return None
            if self._admits(demand, first[0].node.name, work):
                return (first[0],)
        for card in rule.rank_cards(self._fleet, demand.profiles[0], demand.nodes, work):
            if self._admits(demand, card.node.name, work):
                return (card,)
        return None

    def _find_preferred(
        self, demand: Demand, work: StepBudget, rule: Policy, wanted: Preferences
    ) -> tuple[FleetCard, ...] | None:
        """Of the cards that cost little more than the first one that takes the slice, one that the demand prefers."""
        profile, choice = demand.profiles[0], _Choice[FleetCard](demand, wanted)

        costs: dict[AlikeCards, float] = {}

        def compare(cards: Iterator[FleetCard], most: int) -> None:
            for number, card in enumerate(cards):
                if choice.is_ideal or (choice.best is not None and number >= most):
                    return
                work.spend()
                cost = costs.get(card.alike)
                if cost is None:
                    cost = rule.cost(card.table, card.occupancy, card.pending, card.table.names[profile] or "")
                    if cost is None:
                        continue
                    costs[card.alike] = cost
                if choice.is_too_much(cost):
                    return
                node = card.node.name
                if choice.is_better(cost, node) and self._admits(demand, node, work):
                    choice.take(cost, node, card)

        compare(rule.rank_cards(self._fleet, profile, demand.nodes, work), _NODES_COMPARED)
        if choice.best is None:
            return None
        nodes = islice(wanted.preferred_nodes(demand), _COMPARED)
        while not choice.is_ideal and (names := frozenset(islice(nodes, _ASKED_AT_ONCE))):
            compare(rule.rank_cards(self._fleet, profile, names, work), _COMPARED)
        if demand.nodes is None:
            compare(choice.best.alike.cards_of_emptiest(), _NODES_COMPARED)
        return (choice.best if choice.is_ideal else _preferred_card(demand, choice.best, wanted),)

    def find_other(
        self, demand: Demand, refusals: Mapping[str, NodeRule], work: StepBudget
    ) -> tuple[FleetCard, ...] | None:
        """The same after some nodes have been asked.

        Args:
            demand: the slices.
            refusals: the refusals of these nodes.
            work: pays for the search.
        """
        self._refused[demand.key] = dict(refusals)
        return self.find(demand, work)

    def find_ranked(self, demand: Demand, work: StepBudget) -> tuple[FleetCard, ...] | None:
        """Whole cards or shares of the first node in the caller's order that admits the demand; None without any.

        Of nodes that are as good as that one, the demand gets one that it prefers.
        """
        wanted = self._wanted if demand.preferences is not None else None
        best: tuple[tuple[int, int], object, tuple[FleetCard, ...]] | None = None
        near = demand
        while self._rank_nodes is not None:
            for number, (name, rating) in enumerate(self._rank_nodes(near, work)):
                equal = best is None or rating == best[1]
                if best is not None and (wanted is None or number >= _COMPARED or not (equal or wanted.price == inf)):
                    break
                met = wanted.met(demand, name) if wanted is not None else (0, 0)
                if best is not None and not (met > best[0] if equal else met[0] > best[0][0]):
                    continue
                cards = _free_devices(self._fleet.node(name), demand.profiles)
                if cards is not None and self._admits(demand, name, work):
                    best = (met, rating, cards)
                    if met == demand.preferences:
                        return cards
            if wanted is None or best is None or near is not demand:
                break
            names = frozenset(islice(wanted.preferred_nodes(demand), _COMPARED))
            near = structs.replace(demand, nodes=names)
        return best and best[2]

    def _find_node(self, demand: Demand, work: StepBudget) -> Parts[tuple[FleetCard, ...] | None]:
        """Cards of the node where several slices cost least, among the first that have room."""
        wanted = self._wanted if demand.preferences is not None else None
        choice = _Choice[tuple[FleetCard, ...]](demand, wanted)
        compared = 0
        costs = self._costs.setdefault(demand.shape, {})
        compared_values = [rule.attribute for rule in demand.spread if rule.attribute]
        need = self.slots_needed(demand)
        preferred = islice(wanted.preferred_nodes(demand), _NODES_COMPARED) if wanted is not None else ()
        near = [self._fleet.node(name) for name in preferred if name in self._fleet]
        for node in chain(near, self._policy.rank_nodes(self._fleet)):
            if choice.best is not None and compared >= _NODES_COMPARED + len(near):
                break
            work.spend()
            if node.free < need or (demand.nodes is not None and node.name not in demand.nodes):
                continue
            work.spend(2)
            shape = tuple(
                sorted(
                    (card.table.number, card.occupancy, card.pending, *node.values_of(card.gpu, compared_values))
                    for card in node.cards.values()
                )
            )
            if shape not in costs:
                found = yield from self._fit(node, demand, work)
                costs[shape] = found and found[0]
            cost = costs[shape]
            compared += cost is not None
            if cost is None or not choice.is_better(cost, node.name) or not self._admits(demand, node.name, work):
                continue
            found = yield from self._fit(node, demand, work)
            if found is not None:
                choice.take(cost, node.name, found[1])
        return choice.best

    def _fit(
        self, node: FleetNode, demand: Demand, work: StepBudget
    ) -> Parts[tuple[float, tuple[FleetCard, ...]] | None]:
        return fit_in_parts(node, demand.profiles, work, self._policy.cost, spread=demand.spread)

    def _admits(self, demand: Demand, node: str, work: StepBudget) -> bool:
        work.spend()
        if demand.nodes is not None and node not in demand.nodes:
            return False
        refused = self._refused.get(demand.key)
        if refused is not None and node in refused:
            return False
        refusal = self._allows(demand, node)
        if refusal is not None:
            self._refused.setdefault(demand.key, {})[node] = refusal
        return refusal is None


class _Choice(Generic[T]):
    """The best of the places that were compared for a demand.

    Args:
        demand: the demand.
        wanted: what demands prefer; None if this one prefers nothing.

    Attributes:
        best: the place; None before the first was taken.
        is_ideal: no other place can be better.
    """

    def __init__(self, demand: Demand, wanted: Preferences | None) -> None:
        self._demand, self._wanted = demand, wanted
        self._most = demand.preferences if wanted is not None and demand.preferences is not None else (0, 0)
        self.best: T | None = None
        self.is_ideal = False
        #: Order of the best place.
        self._order: tuple[float, float, int] = (inf, 0.0, 0)
        #: Cost of the first place that was taken, and the most that another one may cost.
        self._first = self._limit = inf

    def is_too_much(self, cost: float) -> bool:
        """True if no place of this cost is taken, whatever it has."""
        return cost > self._limit

    def is_better(self, cost: float, node: str) -> bool:
        """True if a place on a node is better than the best."""
        return self.best is None or (cost <= self._limit and self._rank(cost, self._met(node)) < self._order)

    def take(self, cost: float, node: str, place: T) -> None:
        """Makes a place the best one."""
        met = self._met(node)
        if self.best is None and self._wanted is not None:
            more = self._wanted.price * self._most[0] / 100 if self._most[0] else 0.0
            self._first, self._limit = cost, cost + more
        self.best, self._order = place, self._rank(cost, met)
        self.is_ideal = met == self._most and cost <= self._first

    def _met(self, node: str) -> tuple[int, int]:
        return (0, 0) if self._wanted is None else self._wanted.met(self._demand, node)

    def _rank(self, cost: float, met: tuple[int, int]) -> tuple[float, float, int]:
        price = 0.0 if self._wanted is None else self._wanted.price
        if price == inf:
            return (-met[0], cost, -met[1])
        return (round(cost - price * met[0] / 100, 9), -met[0], -met[1])


def _preferred_card(demand: Demand, card: FleetCard, wanted: Preferences) -> FleetCard:
    """Of the cards of a node that are like this one, returns the one that the demand prefers."""
    alike = (one for one in card.node.cards.values() if one.alike is card.alike and one is not card)
    return max((card, *alike), key=lambda one: wanted.met(demand, one.node.name, one.gpu))


def _free_devices(node: FleetNode, profiles: tuple[str, ...]) -> tuple[FleetCard, ...] | None:
    """Returns free devices of a node, of one profile and as many as are asked for; None if it has fewer."""
    able = (card for card in node.cards.values() if card.table.name_of(profiles[0]) is not None)
    found = tuple(islice((card for card in able if card.room == card.geometry.slots), len(profiles)))
    return found if len(found) == len(profiles) else None
