"""Ranks planned nodes with whole cards or shares, by the rule of real nodes; their pods are the mix of requests."""

from collections.abc import Callable, Iterator, Sequence

from tessera.controller.objects.pod_info import PodInfo
from tessera.placement.demand import Demand
from tessera.placement.fleet import Fleet
from tessera.placement.ratings.card_demand import CardDemand
from tessera.placement.ratings.card_request import CARD, CardRequest, NodeRoom
from tessera.placement.ratings.node_ratings import NodeRatings
from tessera.placement.step_budget import StepBudget

_MIB = 1 << 20
#: All planned nodes are of one group.
_KIND = "group"


class NewNodeRatings:
    """The planned nodes of one group.

    Args:
        fleet: their cards, all with the same single profile.
        pods: the pods that are planned on them.
        free: returns what is free of an amount on a node.
    """

    def __init__(self, fleet: Fleet, pods: Sequence[PodInfo], free: Callable[[str, str], int]) -> None:
        self._fleet = fleet
        self._free = free
        self._requests = {pod.key: _request(pod) for pod in pods}
        demand = CardDemand()
        for request in self._requests.values():
            demand.add(request)
        self._ratings = NodeRatings(demand)
        for node in fleet.nodes:
            self._rate(node)

    def rank(self, demand: Demand, work: StepBudget) -> Iterator[str]:
        """Yields the nodes with room for a pod, best first."""
        for node in self._fleet.take_changed_nodes():
            self._rate(node)
        for choice in self._ratings.rank(self._requests[demand.key], work=work):
            yield choice.node

    def _rate(self, node: str) -> None:
        cards = self._fleet.node(node).cards.values()
        free = sum(card.room == card.geometry.slots for card in cards)
        left = ((CARD, free),) if free else ()
        cpu, memory = self._free("cpu", node), self._free("memory", node) // _MIB
        self._ratings.put(node, NodeRoom(_KIND, left, cpu, memory, unused=free == len(cards)))


def _request(pod: PodInfo) -> CardRequest:
    cpu, memory = pod.amounts.get("cpu", 0), -(-pod.amounts.get("memory", 0) // _MIB)
    return CardRequest(cpu, memory, len(pod.profiles), CARD, (_KIND,), pinned=False)
