"""Finds the best cards for one demand in the fleet's present state. Changes nothing on the fleet.

- One slice goes to the card that the policy ranks first; of cards with its cost, to one on a node that the demand
  prefers.
- Several slices go to the node where they cost least by the policy, among the first that have room.
- Whole cards and shares go to the first node in the order of the caller that admits the demand, or to one that is as
  good and that the demand prefers. If none does, all other nodes are asked as for slices, for the reason.
- The search asks lazily if a node admits a demand, best node first. It remembers a refusal until
  :meth:`CardSearch.forget`.
"""

from collections.abc import Mapping
from itertools import islice

from tessera.mig.names import CLAIMED_SHARE, is_device_profile
from tessera.placement.demand import Demand, NodeAllows, NodeRanking, PreferencesMet
from tessera.placement.fleet import Fleet, FleetCard, FleetNode
from tessera.placement.node_fit import fit_in_parts
from tessera.placement.policies import Policy
from tessera.placement.step_budget import Parts, StepBudget, complete
from tessera.reasons.node_rules import NodeRule

#: Nodes with room from which a demand of several slices takes the best; it is refused only after all were tried.
_NODES_COMPARED = 16
#: Cards of equal cost among which a demand with preferences chooses.
_CARDS_COMPARED = 512


def is_rated(demand: Demand) -> bool:
    """True for a demand of whole cards or of shares whose card kubelet chooses: only the node is left to choose."""
    first = demand.profiles[0]
    return (
        not demand.spread
        and is_device_profile(first)
        and first != CLAIMED_SHARE
        and all(each == first for each in demand.profiles)
    )


class CardSearch:
    """The search of one batch.

    Args:
        fleet: the cards, with the pending slices of this batch.
        node_allows: returns a node's refusal of a demand; None if the node takes it.
        policy: ranks cards and nodes.
        rank_nodes: ranks nodes for whole cards and shares; by default the policy does.
        met: tells how much of what a demand prefers a node has.
    """

    def __init__(
        self,
        fleet: Fleet,
        node_allows: NodeAllows,
        policy: Policy,
        rank_nodes: NodeRanking | None = None,
        met: PreferencesMet | None = None,
    ) -> None:
        self._met = met
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
        if demand.preferences and self._met is not None:
            return self._find_preferred(demand, work, rule, self._met)
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
        self, demand: Demand, work: StepBudget, rule: Policy, met: PreferencesMet
    ) -> tuple[FleetCard, ...] | None:
        """Of the cards that cost as little as the first one that takes the slice, one that the demand prefers."""
        best: tuple[int, float, FleetCard] | None = None
        for number, card in enumerate(rule.rank_cards(self._fleet, demand.profiles[0], demand.nodes, work)):
            work.spend()
            name = card.table.name_of(demand.profiles[0])
            cost = rule.cost(card.table, card.occupancy, card.pending, name) if name is not None else None
            if cost is None:
                continue
            if best is not None and (cost > best[1] or number >= _CARDS_COMPARED):
                break
            weight = met(demand, card.node.name)
            if (best is None or weight > best[0]) and self._admits(demand, card.node.name, work):
                best = (weight, cost, card)
                if weight >= demand.preferences:
                    break
        return None if best is None else (_preferred_card(demand, best[2], met),)

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
        best: tuple[int, object, tuple[FleetCard, ...]] | None = None
        for number, (name, rating) in enumerate(self._rank_nodes(demand, work) if self._rank_nodes is not None else ()):
            if best is not None and (rating != best[1] or number >= _CARDS_COMPARED):
                break
            weight = self._met(demand, name) if demand.preferences and self._met is not None else 0
            if best is not None and weight <= best[0]:
                continue
            cards = _free_devices(self._fleet.node(name), demand.profiles)
            if cards is not None and self._admits(demand, name, work):
                best = (weight, rating, cards)
                if weight >= demand.preferences:
                    break
        return best and best[2]

    def _find_node(self, demand: Demand, work: StepBudget) -> Parts[tuple[FleetCard, ...] | None]:
        """Cards of the node where several slices cost least, among the first that have room."""
        best: tuple[tuple[float, int], tuple[FleetCard, ...]] | None = None
        compared = 0
        costs = self._costs.setdefault(demand.shape, {})
        compared_values = [rule.attribute for rule in demand.spread if rule.attribute]
        need = self.slots_needed(demand)
        for node in self._policy.rank_nodes(self._fleet):
            if best is not None and compared >= _NODES_COMPARED:
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
            if cost is None:
                continue
            rank = (cost, -self._met(demand, node.name) if demand.preferences and self._met is not None else 0)
            if (best is not None and rank >= best[0]) or not self._admits(demand, node.name, work):
                continue
            found = yield from self._fit(node, demand, work)
            best = found and (rank, found[1])
        return best and best[1]

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


def _preferred_card(demand: Demand, card: FleetCard, met: PreferencesMet) -> FleetCard:
    """Of the cards of a node that are like this one, returns the one that the demand prefers."""
    alike = (one for one in card.node.cards.values() if one.alike is card.alike and one is not card)
    return max((card, *alike), key=lambda one: met(demand, one.node.name, one.gpu))


def _free_devices(node: FleetNode, profiles: tuple[str, ...]) -> tuple[FleetCard, ...] | None:
    """Returns free devices of a node, of one profile and as many as are asked for; None if it has fewer."""
    able = (card for card in node.cards.values() if card.table.name_of(profiles[0]) is not None)
    found = tuple(islice((card for card in able if card.room == card.geometry.slots), len(profiles)))
    return found if len(found) == len(profiles) else None
