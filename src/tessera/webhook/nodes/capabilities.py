"""The nodes with GPUs, by the resources and profiles that they have.

Two kinds of nodes serve ``nvidia.com/mig-*``: those whose cards are cut on demand, and those with a fixed layout; a
node with cards of both kinds serves each profile in one way. A pod that only a fixed layout can serve is left to it.

Everything is kept by what nodes have in common, with the set of the nodes that have it, and brought up to date node by
node. So a review costs the same at ten nodes and at ten thousand.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Self

from tessera.api.names import GPU_RESOURCES
from tessera.mig.geometry import closest_profile
from tessera.mig.models import MODELS
from tessera.mig.names import resource_spelling
from tessera.offers.selection import Nodes, OfferTable
from tessera.webhook.base.budget import SpendTime, spend_nothing
from tessera.webhook.nodes.gpu_nodes import GpuNode
from tessera.webhook.nodes.label_index import NodeLabelIndex
from tessera.webhook.nodes.restriction import NODE_NAME, read_restriction


class NodeSets(dict[str, Nodes]):
    """Sets of nodes by a name that they have in common; a name that no node has is not there."""

    def put(self, names: Iterable[str], node: Nodes) -> None:
        """Adds a node to the sets of these names."""
        for name in names:
            self[name] = self.get(name, 0) | node

    def drop(self, names: Iterable[str], node: Nodes) -> None:
        """Takes a node out of the sets of these names."""
        for name in names:
            left = self.get(name, 0) & ~node
            if left:
                self[name] = left
            else:
                self.pop(name, None)


class Capabilities:
    """The nodes with GPUs, by what they have.

    Attributes:
        labels: their labels.
        fields: their names, as node affinity selects by them.
        offers: what they say that they offer.
        on_demand: profiles that are cut on demand, in the resource's spelling.
        fixed: profiles of fixed layouts.
        undescribed: GPU resources that nodes give out without saying of which cards.
        one_each: resources of which some device of a node is given to a container once at most.
        several_each: resources of which some device of a node is given in any number.
        foreign: resources of other slicers.
    """

    def __init__(self) -> None:
        self.labels, self.fields = NodeLabelIndex(), NodeLabelIndex()
        self.offers = OfferTable()
        self.on_demand, self.fixed, self.undescribed = NodeSets(), NodeSets(), NodeSets()
        self.one_each, self.several_each, self.foreign = NodeSets(), NodeSets(), NodeSets()
        self._numbers: dict[str, int] = {}
        self._nodes: list[GpuNode | None] = []
        self._vacant: list[int] = []

    @classmethod
    def of(cls, nodes: Iterable[GpuNode]) -> Self:
        """All that these nodes can do."""
        made = cls()
        for node in nodes:
            made.put(node)
        return made

    def put(self, node: GpuNode) -> None:
        """Takes in a node as it is now."""
        self.drop(node.name)
        number = self._vacant.pop() if self._vacant else len(self._nodes)
        if number == len(self._nodes):
            self._nodes.append(None)
        self._nodes[number] = node
        self._numbers[node.name] = number
        self.labels.add(node.labels, 1 << number)
        self.fields.add({NODE_NAME: node.name}, 1 << number)
        self.offers.add(node.compared, 1 << number)
        for sets, names in self._sets(node):
            sets.put(names, 1 << number)

    def drop(self, name: str) -> None:
        """Forgets a node; one that is not known is no error."""
        number = self._numbers.pop(name, None)
        node = None if number is None else self._nodes[number]
        if number is None or node is None:
            return
        self._nodes[number] = None
        self._vacant.append(number)
        self.labels.remove(node.labels, 1 << number)
        self.fields.remove({NODE_NAME: name}, 1 << number)
        self.offers.remove(node.compared, 1 << number)
        for sets, names in self._sets(node):
            sets.drop(names, 1 << number)

    def _sets(self, node: GpuNode) -> Sequence[tuple[NodeSets, Iterable[str]]]:
        return (
            (self.on_demand, node.on_demand),
            (self.fixed, node.fixed),
            (self.undescribed, node.undescribed),
            (self.one_each, {each.resource for each in node.offers if each.one_per_request}),
            (self.several_each, {each.resource for each in node.offers if not each.one_per_request}),
            (self.foreign, node.foreign),
        )

    @property
    def possible(self) -> frozenset[str]:
        """What a gated pod may hope for: what the cards can do, or before any is known, any model's profiles."""
        return frozenset(self.on_demand) or MODEL_PROFILES

    @property
    def known(self) -> frozenset[str]:
        """All profiles that a pod may ask for, whichever nodes have them."""
        return self.possible.union(self.fixed)

    @property
    def gpu_resources(self) -> frozenset[str]:
        """Names of resources that are GPUs, beside those of MIG slices."""
        return frozenset(GPU_RESOURCES).union(self.one_each, self.several_each)

    @property
    def every(self) -> Nodes:
        """All nodes."""
        return self.fields.having(NODE_NAME)

    def selected_by(self, spec: Mapping[str, Any], spend: SpendTime = spend_nothing) -> Nodes:
        """The nodes that a pod's node selector and required node affinity leave; ``spend`` counts the work."""
        return read_restriction(spec).selected_nodes(self.every, self.labels, self.fields, spend)

    def nodes(self, nodes: Nodes) -> Iterator[GpuNode]:
        """The nodes of a set, in no order that means anything."""
        bits = f"{nodes:b}"[::-1]
        return (node for bit, node in zip(bits, self._nodes, strict=False) if bit == "1" and node is not None)

    def names(self, nodes: Nodes) -> Sequence[str]:
        """The names of the nodes of a set, sorted."""
        return sorted(node.name for node in self.nodes(nodes))

    def closest(self, profile: str) -> str | None:
        """The possible profile whose spelling is closest, if any is close."""
        return closest_profile(profile, sorted(self.known))


def _model_profiles() -> frozenset[str]:
    names = {name for model in MODELS for name in model.profile_names}
    tables = [model.table for model in MODELS if model.table is not None]
    names |= {alias for table in tables for row in table.profiles for alias in row.aliases}
    return frozenset(map(resource_spelling, names))


#: Every profile of every model that NVIDIA cuts, in the resource's spelling.
MODEL_PROFILES = _model_profiles()
