"""The nodes with GPUs, by the resources and profiles that they have.

Two kinds of nodes serve ``nvidia.com/mig-*``: nodes whose cards are cut on demand, and nodes with a fixed layout; a
node with cards of both kinds serves each profile in one way. A pod that only a fixed layout can serve is left to it.

Each property is stored once, with the set of nodes that have it, and is updated node by node. So a review costs the
same with ten nodes and with ten thousand.

Events keep the nodes up to date. A node's annotation ``tessera.dev/offers`` lists its offers. On a node without it (an
older agent, another device plugin), the Instaslice object gives the slices that can be cut on demand, and
``status.allocatable`` the rest. Nodes that are cordoned, not ready or full count too: the cluster's resources do not
change with that.

A profile of a node is on demand where the offers or the Instaslice object say so, else fixed where the node offers or
advertises it. It is never both.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Self, TypeVar

import msgspec

from tessera.api.instaslice import Instaslice
from tessera.api.names import (
    GPU_RESOURCES,
    MIG_CONFIG_DYNAMIC,
    MIG_CONFIG_LABEL,
    is_gpu_like,
    is_on_demand,
    profile_of,
    resource_of,
)
from tessera.api.nodes.card_faults import CARDS_ANNOTATION, decode_cards
from tessera.api.nodes.node_cards import CardGeometries, DeviceCounts, UndecidedNodes, is_unread, read_device_counts
from tessera.api.nodes.node_groups import NodeGroup
from tessera.api.nodes.offers import NodeOffer, OfferKind, placement_offers
from tessera.api.resource_advice import Offered
from tessera.kube.resources import Node
from tessera.kube.resources.selectors import LabelIndex
from tessera.mig.geometry import Geometry
from tessera.mig.models import MODELS, suggest_profile
from tessera.mig.names import resource_spelling
from tessera.offers import Nodes, Offer, OfferTable
from tessera.placement.node_fit import NodeShapes, Shape
from tessera.webhook.base import SpendTime, spend_nothing
from tessera.webhook.restriction import NODE_NAME, read_restriction

#: Prefixes of the resource names of NVIDIA's and our device plugins, unless a profile renames them.
_PREFIX = "nvidia.com/"


class GpuNode(msgspec.Struct, frozen=True, kw_only=True):
    """A node with GPUs.

    Attributes:
        name: its name.
        labels: its labels.
        offers: the offers that it advertises; empty if it advertises none.
        compared: the same offers in the form that requirements are compared with.
        on_demand: profiles that are cut on demand, in the resource's spelling.
        fixed: profiles of its fixed layout.
        undescribed: GPU resources that it provides without saying of which cards.
        foreign: GPU-like resources of others: another slicer, or another vendor's device plugin.
        cards: the cards that are cut on demand, of which an empty node's capacity follows; empty if they are not known.
        unread: its cards are cut on demand, and are not known yet.
        devices: its whole cards and shares.
        unread_devices: it may have more of them than it says now.
    """

    name: str
    labels: Mapping[str, str] = {}
    offers: tuple[NodeOffer, ...] = ()
    compared: tuple[Offer, ...] = ()
    on_demand: frozenset[str] = frozenset()
    fixed: frozenset[str] = frozenset()
    undescribed: frozenset[str] = frozenset()
    foreign: frozenset[str] = frozenset()
    cards: tuple[Geometry, ...] = ()
    unread: bool = False
    devices: DeviceCounts = ()
    unread_devices: bool = False


def on_demand_cards(node: Node | None, instaslice: Instaslice | None, geometries: CardGeometries) -> Sequence[Geometry]:
    """Returns the cards of a node that can be cut on demand, sorted by model; empty if they are not known.

    The Instaslice object leaves out a card that does not answer for now. The node's annotation ``tessera.dev/cards``
    counts it, so it is taken to be like the card with the most memory slots.
    """
    if instaslice is None:
        return ()
    try:
        listed = list(geometries.of(instaslice.status.node_resources).values())
    except ValueError:
        return ()
    if listed and node is not None:
        largest = max(listed, key=lambda card: card.slots)
        count = decode_cards(node.metadata.annotations.get(CARDS_ANNOTATION, "")).count
        listed += [largest] * (count - len(listed))
    return sorted(listed, key=lambda card: card.family)


def read_gpu_node(
    name: str,
    node: Node | None,
    offers: tuple[NodeOffer, ...],
    instaslice: Instaslice | None,
    cards: Sequence[Geometry] = (),
) -> GpuNode | None:
    """Returns the GPU resources of a node; ``None`` for a node without GPUs.

    Args:
        name: the node's name.
        node: the Node object, if it exists.
        offers: the content of its annotation.
        instaslice: the object of its on-demand cards, if there is one.
        cards: its :func:`on_demand_cards`.
    """
    allocatable = node.status.allocatable if node is not None else {}
    advertised = frozenset(_gpu_resources(allocatable))
    foreign = frozenset(name for name in allocatable if is_gpu_like(name) and not name.startswith(_PREFIX))
    offered = {kind: {each.resource for each in offers if each.kind is kind} for kind in OfferKind}
    described = frozenset[str]().union(*offered.values())
    on_demand = frozenset(offered[OfferKind.DYNAMIC_SLICE])
    if instaslice is not None:
        reported = frozenset(map(resource_of, instaslice.status.node_resources.profiles))
        on_demand |= reported - (described - on_demand)
    labels = node.metadata.labels if node is not None else {}
    only_on_demand = not offers and labels.get(MIG_CONFIG_LABEL) == MIG_CONFIG_DYNAMIC
    fixed = frozenset() if only_on_demand else (advertised | described) - on_demand
    awaited = not offers and is_on_demand(labels.get(MIG_CONFIG_LABEL, ""))
    unread = not cards and (bool(on_demand) or awaited)
    devices = read_device_counts(node, offers)
    unread_devices = is_unread(node, offers, devices)
    if not (advertised or described or on_demand or foreign or unread or devices or unread_devices):
        return None
    return GpuNode(
        name=name,
        labels=labels,
        offers=offers,
        compared=placement_offers(offers),
        on_demand=frozenset(filter(None, map(profile_of, on_demand))),
        fixed=frozenset(filter(None, map(profile_of, fixed))),
        undescribed=(advertised | on_demand) - described,
        foreign=foreign,
        cards=tuple(cards),
        unread=unread,
        devices=devices,
        unread_devices=unread_devices,
    )


def _gpu_resources(allocatable: Mapping[str, str]) -> Iterator[str]:
    return (name for name, amount in allocatable.items() if name.startswith(_PREFIX) and amount != "0")


_Property = TypeVar("_Property")


class NodeSets(dict[_Property, Nodes]):
    """Sets of nodes by a property, mostly a name; a property that no node has is not a key."""

    def put(self, names: Iterable[_Property], node: Nodes) -> None:
        """Adds a node to the sets of these names."""
        for name in names:
            self[name] = self.get(name, 0) | node

    def drop(self, names: Iterable[_Property], node: Nodes) -> None:
        """Removes a node from the sets of these names."""
        for name in names:
            left = self.get(name, 0) & ~node
            if left:
                self[name] = left
            else:
                self.pop(name, None)


class GroupNode(msgspec.Struct, frozen=True):
    """The nodes of a group that an autoscaler can make.

    Attributes:
        group: the group's name.
        labels: the labels that its file declares; a node has more.
        shape: the cards that are cut on demand; none in a group with whole cards or shares.
        devices: the whole cards or shares.
        profiles: the profiles of the cards that are cut on demand, in the resource's spelling.
    """

    group: str
    labels: Mapping[str, str]
    shape: Shape = ()
    devices: DeviceCounts = ()
    profiles: frozenset[str] = frozenset()


class Capabilities:
    """The nodes with GPUs, by their resources and profiles.

    Args:
        any_new_nodes: nodes with other cards than those present may come.
        new_nodes: the nodes that may turn out to have GPUs; None if there are none.
        pod_keys: keys of pods that options of the controller name.

    Attributes:
        labels: the nodes' labels.
        fields: the nodes' names, which node affinity can select by.
        offers: the offers that the nodes advertise.
        on_demand: profiles that are cut on demand, in the resource's spelling.
        fixed: profiles of fixed layouts.
        undescribed: GPU resources of nodes that do not say which cards they are of.
        single_share: resources with devices of which a container can have one at most.
        multiple_shares: resources with devices of which a container can have any number.
        foreign: GPU-like resources of other slicers and other vendors.
        shapes: the nodes with cards that are cut on demand, by these cards.
        unread: nodes with such cards that are not known yet.
        devices: the nodes with whole cards and shares, by these.
        unread_devices: nodes that may have more of them than they say now.
        any_new_nodes: nodes with other cards than those present may come; also while the groups are unknown.
        groups: nodes of the groups that an autoscaler can make.
    """

    def __init__(
        self,
        *,
        any_new_nodes: bool = False,
        new_nodes: UndecidedNodes | None = None,
        pod_keys: Collection[str] = (),
    ) -> None:
        self.pod_keys = pod_keys
        self.any_new_nodes = self._allows_any = any_new_nodes
        self._new_nodes = new_nodes
        self.labels, self.fields = LabelIndex(), LabelIndex()
        self.offers = OfferTable()
        self.on_demand, self.fixed, self.undescribed = NodeSets[str](), NodeSets[str](), NodeSets[str]()
        self.single_share, self.multiple_shares, self.foreign = NodeSets[str](), NodeSets[str](), NodeSets[str]()
        self.shapes, self.unread = NodeSets[Shape](), Nodes(0)
        self.devices, self.unread_devices = NodeSets[DeviceCounts](), Nodes(0)
        self.groups: tuple[GroupNode, ...] = ()
        self._empty_nodes = NodeShapes()
        #: By number, the shapes of nodes.
        self._shape_of: dict[int, Shape] = {}
        #: By name, the number of a node: its bit in all sets, and its index in ``_nodes``.
        self._numbers: dict[str, int] = {}
        #: The nodes by number; None for the numbers in ``_vacant``.
        self._nodes: list[GpuNode | None] = []
        self._vacant: list[int] = []

    @classmethod
    def of(cls, nodes: Iterable[GpuNode], *, any_new_nodes: bool = False) -> Self:
        """Returns the capabilities of these nodes."""
        made = cls(any_new_nodes=any_new_nodes)
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
        if node.cards:
            self._shape_of[number] = self._empty_nodes.shape(node.cards)
            self.shapes.put([self._shape_of[number]], 1 << number)
        if node.unread:
            self.unread |= 1 << number
        self.devices.put([node.devices] if node.devices else (), 1 << number)
        if node.unread_devices:
            self.unread_devices |= 1 << number

    def set_groups(self, groups: Iterable[NodeGroup] | None) -> None:
        """Replaces the groups of nodes that may come; None: they are unknown."""
        self.any_new_nodes = self._allows_any or groups is None
        self.groups = tuple(map(self._group_node, groups or ()))

    def _group_node(self, group: NodeGroup) -> GroupNode:
        if group.devices is not None:
            return GroupNode(group.name, group.all_labels(), devices=(group.devices,))
        card = group.geometry
        profiles = frozenset(row.spelling for row in card.profiles)
        shape = self._empty_nodes.shape([card] * group.cards.count)
        return GroupNode(group.name, group.all_labels(), shape=shape, profiles=profiles)

    def drop(self, name: str) -> None:
        """Removes a node; an unknown node is no error."""
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
        if number in self._shape_of:
            self.shapes.drop([self._shape_of.pop(number)], 1 << number)
        self.unread &= ~(1 << number)
        self.devices.drop([node.devices], 1 << number)
        self.unread_devices &= ~(1 << number)

    def _sets(self, node: GpuNode) -> Sequence[tuple[NodeSets[str], Iterable[str]]]:
        return (
            (self.on_demand, node.on_demand),
            (self.fixed, node.fixed),
            (self.undescribed, node.undescribed),
            (self.single_share, {each.resource for each in node.offers if each.one_per_request}),
            (self.multiple_shares, {each.resource for each in node.offers if not each.one_per_request}),
            (self.foreign, node.foreign),
        )

    @property
    def more_may_come(self) -> bool:
        """True while other cards may come than those that are known, so that no request is certainly too large."""
        return self.any_new_nodes or (self._new_nodes is not None and self._new_nodes.any_undecided())

    @property
    def possible(self) -> frozenset[str]:
        """Profiles that a gated pod may get: of cards and known groups, or of all models.

        All models count while :attr:`any_model_may_come`.
        """
        every = MODEL_PROFILES if self.any_model_may_come else frozenset[str]()
        return self._on_demand_profiles | every

    @property
    def _on_demand_profiles(self) -> frozenset[str]:
        return frozenset(self.on_demand).union(*(each.profiles for each in self.groups))

    @property
    def own_profiles(self) -> frozenset[str]:
        """Profiles that nodes have, or that nodes of known groups will have."""
        return self._on_demand_profiles.union(self.fixed)

    @property
    def any_model_may_come(self) -> bool:
        """True while slices of any card may be offered: none is listed, some are not yet, or other cards may come."""
        return not self.on_demand or self.unread != 0 or self.more_may_come

    @property
    def all_profiles(self) -> frozenset[str]:
        """Returns all profiles that a pod may request, of any nodes."""
        return self.possible.union(self.fixed)

    @property
    def gpu_resources(self) -> frozenset[str]:
        """Returns the names of GPU resources besides those of MIG slices."""
        return frozenset(GPU_RESOURCES).union(self.single_share, self.multiple_shares)

    @property
    def offered(self) -> Offered:
        """Returns the names of all resources that nodes have, or that nodes of known groups will have."""
        on_demand = frozenset(map(resource_of, self._on_demand_profiles))
        fixed = frozenset(map(resource_of, self.fixed))
        others = frozenset(self.undescribed).union(self.single_share, self.multiple_shares, self.foreign)
        of_groups = {name for group in self.groups for name, _ in group.devices}
        return Offered((others - on_demand) | fixed | of_groups, on_demand)

    @property
    def may_grow(self) -> bool:
        """True while nodes may have, or get, resources that are not known."""
        return self.more_may_come or self.unread != 0 or self.unread_devices != 0

    @property
    def every(self) -> Nodes:
        """Returns all nodes."""
        return self.fields.nodes_with_key(NODE_NAME)

    def selected_by(self, spec: Mapping[str, Any], spend: SpendTime = spend_nothing) -> Nodes:
        """Returns the nodes that a pod's node selector and required node affinity admit; ``spend`` counts the work."""
        if not _may_restrict(spec):
            return self.every
        return read_restriction(spec).selected_nodes(self.every, self.labels, self.fields, spend)

    def groups_for(self, spec: Mapping[str, Any], spend: SpendTime = spend_nothing) -> Sequence[GroupNode]:
        """Returns the groups of which a new node may pass a pod's node selector and required affinity.

        The declared labels must not contradict them, and they must not ask for a present node by name.
        """
        if not _may_restrict(spec):
            return self.groups
        restriction = read_restriction(spec)
        return [each for each in self.groups if restriction.may_admit(each.labels, spend, self._is_taken)]

    def _is_taken(self, key: str, value: str) -> bool:
        index = self.fields if key == NODE_NAME else self.labels
        return index.nodes_matching(key, "In", (value,)) != 0

    def nodes(self, nodes: Nodes) -> Iterator[GpuNode]:
        """Yields the nodes of a set, in no particular order."""
        bits = f"{nodes:b}"[::-1]
        return (node for bit, node in zip(bits, self._nodes, strict=False) if bit == "1" and node is not None)

    def names(self, nodes: Nodes) -> Sequence[str]:
        """Returns the names of the nodes of a set, sorted."""
        return sorted(node.name for node in self.nodes(nodes))

    def closest(self, profile: str) -> str | None:
        """Returns the profile that ``profile`` may mean, of this cluster before others; None if none is close."""
        own = suggest_profile(profile.casefold(), sorted(self.own_profiles))
        return own or suggest_profile(profile.casefold(), sorted(self.all_profiles))


def _may_restrict(spec: Mapping[str, Any]) -> bool:
    """False if a pod leaves out all fields by which it may select nodes."""
    return any(map(spec.get, ("nodeName", "nodeSelector", "affinity")))


def _model_profiles() -> frozenset[str]:
    names = {name for model in MODELS for name in model.profile_names}
    tables = [model.table for model in MODELS if model.table is not None]
    names |= {alias for table in tables for row in table.profiles for alias in row.aliases}
    return frozenset(map(resource_spelling, names))


#: Every MIG profile of every model that NVIDIA lists, in the resource's spelling.
MODEL_PROFILES = _model_profiles()
