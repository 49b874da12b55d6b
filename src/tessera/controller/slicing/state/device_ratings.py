"""Rates nodes for whole cards and shares: :mod:`tessera.placement` with the state of the cluster.

Each resource has its ratings, in which a device is a card and the model is its kind. A node that has changed since is
rated again when a pod is planned.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import TypeVar

from tessera.api.names import WHOLE_CARDS, NodeName
from tessera.controller.cluster.node_index import NodeIndex
from tessera.controller.objects.node_info import NodeInfo
from tessera.controller.objects.pod_constraints import NodeConstraints
from tessera.controller.objects.pod_info import PodInfo
from tessera.controller.objects.resource_amounts import Amounts
from tessera.controller.slicing.state.device_inventory import AskedDevices, DeviceInventory, asked_devices
from tessera.placement.card_demand import CARD, CardDemand, CardRequest, NodeRoom
from tessera.placement.demand import StepBudget
from tessera.placement.fleet import Fleet
from tessera.placement.node_ratings import NodeRatings, NodeSize
from tessera.placement.topology import Joined

#: Most constraints: different constraints on nodes, the most frequent, whose pods count for prices and the mix of
#: requests. Teams pin pods in a few ways; prices and mix only order the nodes.
PRICED_CONSTRAINTS = 64

Key = TypeVar("Key")
_MIB = 1 << 20
#: CPU and memory of a node that states none.
_UNLIMITED = 1 << 40
#: A resource, and constraints on the nodes.
_Constraints = tuple[str, NodeConstraints]
#: What a pod requests, and True if it holds that.
_Counted = tuple[AskedDevices, bool]
#: The models that suit, and True if the resource has others.
_Suited = tuple[tuple[str, ...], bool]


class DeviceRatings:
    """The nodes with devices, ranked for pods.

    Args:
        fleet: the cards.
        devices: the nodes of each model.
        index: says which nodes a pod selects.
        nodes: the nodes, with their allocatable amounts.
        used: the amounts that pods hold on each node.
    """

    def __init__(
        self,
        fleet: Fleet,
        devices: DeviceInventory,
        index: NodeIndex,
        nodes: Mapping[NodeName, NodeInfo],
        used: Mapping[NodeName, Amounts],
    ) -> None:
        self._fleet = fleet
        self._devices = devices
        self._index = index
        self._nodes = nodes
        self._used = used
        self._ratings: dict[str, NodeRatings] = {}
        #: Nodes to be rated again.
        self._changed: dict[NodeName, None] = {}
        #: What the pods that count request, and of these the devices by constraints; no count is 0.
        self._asked: Counter[_Counted] = Counter()
        self._constraints: Counter[_Constraints] = Counter()
        #: Changes of ``_asked`` since the ratings took it over.
        self._more: Counter[_Counted] = Counter()
        #: By constraints, the most frequent ones, the models that suit, as the ratings took them over.
        self._suited: dict[_Constraints, _Suited] = {}
        #: By resource, the changes of the nodes' sizes that the ratings took over.
        self._sizes: dict[str, int] = {}
        #: By resource and model the nodes that have such devices, as of so many changes of the inventory.
        self._masks: tuple[int, Mapping[str, Mapping[str, int]]] = (-1, {})

    # Changes

    def note(self, node: NodeName) -> None:
        """Rates a node again when its ratings are needed: its devices or amounts have changed."""
        self._changed[node] = None

    def has_devices(self, node: NodeName) -> bool:
        """True if a node has devices."""
        return node in self._devices

    def count(self, asked: AskedDevices, pods: int, *, hold: bool) -> None:
        """Counts pods with a request, which they hold or wait for; fewer of them with a negative number."""
        self._more[asked, hold] += pods
        _add(self._asked, (asked, hold), pods)
        _add(self._constraints, (asked.resource, asked.constraints), pods * asked.devices)

    def update(self) -> None:
        """Takes over for the next batch what was requested, and which models suit it."""
        suited = {key: self._suiting(key) for key, _ in self._constraints.most_common(int(PRICED_CONSTRAINTS))}
        sizes = {resource: ratings.sizes.changes for resource, ratings in self._ratings.items()}
        more, self._more = self._more, Counter()
        if (suited, sizes) == (self._suited, self._sizes):
            for resource, requests in self._requests(more).items():
                for (request, hold), count in requests.items():
                    self._of(resource).demand.add(request, count, hold=hold)
            return
        self._suited, self._sizes = suited, sizes
        counts = self._requests(self._asked)
        for resource in self._ratings.keys() | counts.keys():
            self._of(resource).demand.replace(counts.get(resource, {}))

    def _requests(self, asked: Counter[_Counted]) -> Mapping[str, Mapping[tuple[CardRequest, bool], int]]:
        found: dict[str, Counter[tuple[CardRequest, bool]]] = {}
        for (each, hold), count in asked.items():
            models, pinned = self._suited.get((each.resource, each.constraints), ((), False))
            if models:
                wanted = CardRequest(each.cpu, each.memory, each.devices, CARD, models, pinned)
                request = self._of(each.resource).sizes.narrow(wanted)
                found.setdefault(each.resource, Counter())[request, hold] += count
        return found

    def _kinds(self) -> Mapping[str, Mapping[str, int]]:
        """Returns, by resource and model, the nodes that have such devices."""
        if self._masks[0] == self._devices.changes:
            return self._masks[1]
        found: dict[str, dict[str, int]] = {}
        for geometry, nodes in self._devices.nodes.items():
            masks = found.setdefault(geometry.names[0], {})
            for node in nodes:
                masks[geometry.family] = masks.get(geometry.family, 0) | self._index.mask_of(node)
        self._masks = (self._devices.changes, found)
        return found

    def _suiting(self, key: _Constraints) -> _Suited:
        resource, constraints = key
        masks = self._kinds().get(resource, {})
        selected = self._index.selected_nodes(constraints)
        models = tuple(sorted(model for model, mask in masks.items() if mask & selected))
        return models, len(models) < len(masks)

    # Ranking

    def rank(
        self, pod: PodInfo, reserved: Mapping[NodeName, Amounts], nodes: Iterable[str] | None, work: StepBudget
    ) -> Iterator[tuple[str, object]]:
        """Yields the nodes that have room for a pod's devices, CPU and memory, best first, with their ratings.

        Args:
            pod: the pod.
            reserved: the amounts that the batch gave to pods before it, by node.
            nodes: the only nodes to rank; None for all.
            work: pays for it.
        """
        asked = asked_devices(pod)
        if asked is None:
            return
        self.refresh(reserved)
        key = (asked.resource, asked.constraints)
        models, pinned = self._suited.get(key) or self._suiting(key)
        cpu, memory = pod.amounts.get("cpu", 0), -(-pod.amounts.get("memory", 0) // _MIB)
        ratings = self._of(asked.resource)
        request = ratings.sizes.narrow(CardRequest(cpu, memory, asked.devices, CARD, models, pinned))
        for choice in ratings.rank(request, nodes, work):
            yield choice.node, (choice.kind, choice.rating)

    def _of(self, resource: str) -> NodeRatings:
        return self._ratings.setdefault(resource, NodeRatings(CardDemand()))

    def refresh(self, reserved: Mapping[NodeName, Amounts] = MappingProxyType({})) -> None:
        """Takes over what is free on the nodes that have changed, beside what the batch gave away."""
        changed, self._changed = self._changed, {}
        changed |= {NodeName(node): None for node in self._fleet.take_changed_nodes()}
        for node in changed:
            rooms = self._rooms(node, reserved.get(node, {}))
            for resource in self._ratings.keys() | rooms.keys():
                ratings = self._of(resource)
                room, size = rooms.get(resource, (None, None))
                ratings.put(node, room)
                ratings.sizes.put(node, room.kind if room else "", size)

    def _rooms(self, node: NodeName, reserved: Amounts) -> Mapping[str, tuple[NodeRoom, NodeSize]]:
        facts = self._nodes.get(node)
        if facts is None or node not in self._devices or node not in self._fleet:
            return {}
        cpu, memory = (self._free(name, facts, reserved) for name in ("cpu", "memory"))
        all_cpu, all_memory = (_allocatable(name, facts) for name in ("cpu", "memory"))
        found = {}
        for resource in self._devices.resources(node):
            cards = [card for card in self._fleet.cards(node) if card.table.name_of(resource)]
            free = self._fleet.node(node).count_empty(resource)
            model = cards[0].geometry.family
            left: tuple[tuple[int, int], ...] = ((CARD, free),) if free else ()
            unused = free == len(cards)
            room = NodeRoom(model, left, cpu, memory // _MIB, unused, _joined(facts, resource))
            found[resource] = room, NodeSize(all_cpu, all_memory // _MIB, len(cards))
        return found

    def _free(self, resource: str, node: NodeInfo, reserved: Amounts) -> int:
        most = _allocatable(resource, node)
        if most == _UNLIMITED:
            return most
        return max(0, most - self._used.get(node.name, {}).get(resource, 0) - reserved.get(resource, 0))


def _allocatable(resource: str, node: NodeInfo) -> int:
    most = node.allocatable_amount(resource)
    return _UNLIMITED if most is None else most


def _joined(node: NodeInfo, resource: str) -> Joined | None:
    links = node.links if resource == WHOLE_CARDS else None
    return None if links is None else (links.cards, links.points, links.free)


def _add(counts: Counter[Key], key: Key, more: int) -> None:
    counts[key] += more
    if not counts[key]:
        del counts[key]
