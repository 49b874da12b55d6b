"""The nodes with GPUs as admission sees them, kept up to date by events.

A node's annotation ``tessera.dev/offers`` lists its offers. On a node without it (an older agent, another device
plugin), the Instaslice object gives the slices that can be cut on demand, and ``status.allocatable`` the rest. Nodes
that are cordoned, not ready or full count too: the cluster's resources do not change with that.

A profile of a node is on demand where the offers or the Instaslice object say so, else fixed where the node offers or
advertises it. It is never both.
"""

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Protocol

import msgspec

from tessera.api.instaslice import Instaslice
from tessera.api.names import (
    MIG_CONFIG_DYNAMIC,
    MIG_CONFIG_LABEL,
    is_on_demand,
    profile_of,
    resource_of,
)
from tessera.api.nodes.card_faults import CARDS_ANNOTATION, decode_cards
from tessera.api.nodes.node_cards import CardGeometries, DeviceCounts, is_unread, read_device_counts
from tessera.api.nodes.offers import OFFERS_ANNOTATION, NodeOffer, OfferKind, decode_offers, placement_offers
from tessera.api.pods.resource_advice import is_gpu_like
from tessera.kube.resources import Node
from tessera.kube.watch.cache import EventKind, WatchEvent
from tessera.mig.geometry import Geometry
from tessera.offers.selection import Offer

_log = logging.getLogger(__name__)

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


class NodeSink(Protocol):
    """Receives each node with GPUs as it is now."""

    def put(self, node: GpuNode) -> None:
        """Takes in a node that is new, or has changed in a way that matters here."""
        ...

    def drop(self, name: str) -> None:
        """Removes a node that is gone, or has no GPUs any more."""
        ...


def dynamic_profiles(item: Instaslice) -> frozenset[str]:
    """Returns the profiles of a node's cards as its agent reported them; of its model while no card answers."""
    return item.status.node_resources.profiles


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
        reported = frozenset(map(resource_of, dynamic_profiles(instaslice)))
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


class _DecodedOffers(msgspec.Struct, frozen=True):
    """A node's annotation with its decoded content, so that it is decoded once."""

    text: str
    offers: tuple[NodeOffer, ...]


class GpuNodeWatcher:
    """Watches nodes and Instaslice objects.

    Args:
        sink: receives each node with GPUs whenever its :class:`GpuNode` has changed.
    """

    def __init__(self, sink: NodeSink) -> None:
        self._sink = sink
        #: All nodes, and all Instaslice objects by node.
        self._nodes: dict[str, Node] = {}
        self._instaslices: dict[str, Instaslice] = {}
        #: The decoded offers of the nodes in ``_nodes``.
        self._decoded: dict[str, _DecodedOffers] = {}
        self._geometries = CardGeometries()
        #: The nodes with GPUs as the sink has them.
        self._gpu_nodes: dict[str, GpuNode] = {}

    def values(self) -> Iterable[GpuNode]:
        """Returns all nodes with GPUs."""
        return self._gpu_nodes.values()

    def node_changed(self, event: WatchEvent[Node]) -> None:
        """Takes in a change of a node."""
        name = event.object.metadata.name
        if event.kind is EventKind.DELETED:
            self._nodes.pop(name, None)
            self._decoded.pop(name, None)
        else:
            self._nodes[name] = event.object
            self._read(name, event.object.metadata.annotations.get(OFFERS_ANNOTATION, ""))
        self._update(name)

    def instaslice_changed(self, event: WatchEvent[Instaslice]) -> None:
        """Takes in a change of a node's Instaslice object."""
        name = event.object.metadata.name
        if event.kind is EventKind.DELETED:
            self._instaslices.pop(name, None)
        else:
            self._instaslices[name] = event.object
        self._update(name)

    def _read(self, name: str, text: str) -> None:
        decoded = self._decoded.get(name)
        if decoded is not None and decoded.text == text:
            return
        try:
            offers = decode_offers(text) if text else ()
        except ValueError as error:
            _log.warning("node %s: %s; until then it counts as a node without offers", name, error)
            offers = ()
        self._decoded[name] = _DecodedOffers(text, offers)

    def _update(self, name: str) -> None:
        decoded, node, instaslice = self._decoded.get(name), self._nodes.get(name), self._instaslices.get(name)
        cards = on_demand_cards(node, instaslice, self._geometries)
        found = read_gpu_node(name, node, decoded.offers if decoded else (), instaslice, cards)
        if found == self._gpu_nodes.get(name):
            return
        if found is None:
            del self._gpu_nodes[name]
            self._sink.drop(name)
        else:
            self._gpu_nodes[name] = found
            self._sink.put(found)
