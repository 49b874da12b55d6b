"""The nodes with GPUs as admission sees them, kept up to date by events.

A node says itself what it offers, in the annotation ``tessera.dev/offers``. Where it does not (an older agent, another
device plugin), its Instaslice object tells which slices can be had on demand, and ``status.allocatable`` the rest.
Nodes that are cordoned, not ready or full count: what the cluster has does not change with that.

A profile of a node is on demand where the offers or the Instaslice object say so, else fixed where the node offers or
advertises it. It is never both.
"""

import logging
from collections.abc import Iterable, Iterator, Mapping
from typing import Protocol

import msgspec

from tessera.api.instaslice import Instaslice
from tessera.api.names import MIG_CONFIG_DYNAMIC, MIG_CONFIG_LABEL, profile_of, resource_of, suggest_resource
from tessera.api.nodes.offers import OFFERS_ANNOTATION, NodeOffer, OfferKind, decode_offers, placement_offers
from tessera.kube.resources import Node
from tessera.kube.watch.cache import EventKind, WatchEvent
from tessera.offers.selection import Offer

_log = logging.getLogger(__name__)

#: What NVIDIA's and our device plugins name resources by, unless a profile renames them.
_PREFIX = "nvidia.com/"


class GpuNode(msgspec.Struct, frozen=True, kw_only=True):
    """A node with GPUs.

    Attributes:
        name: its name.
        labels: its labels.
        offers: what it says that it has; of a node that says nothing, nothing.
        compared: the same in the terms in which requirements are compared with them.
        on_demand: profiles that are cut on demand, in the resource's spelling.
        fixed: profiles that stand on it.
        undescribed: GPU resources that it gives out without saying of which cards.
        foreign: resources of another slicer that runs there.
    """

    name: str
    labels: Mapping[str, str] = {}
    offers: tuple[NodeOffer, ...] = ()
    compared: tuple[Offer, ...] = ()
    on_demand: frozenset[str] = frozenset()
    fixed: frozenset[str] = frozenset()
    undescribed: frozenset[str] = frozenset()
    foreign: frozenset[str] = frozenset()


class NodeSink(Protocol):
    """Takes each node with GPUs as it is now."""

    def put(self, node: GpuNode) -> None:
        """A node is new, or has changed in what matters here."""
        ...

    def drop(self, name: str) -> None:
        """A node is gone, or has no GPUs any more."""
        ...


def dynamic_profiles(item: Instaslice) -> frozenset[str]:
    """Profiles of a node's cards as its agent reported them, of its model also while none of the cards answers."""
    return item.status.node_resources.profiles


def read_gpu_node(
    name: str, node: Node | None, offers: tuple[NodeOffer, ...], instaslice: Instaslice | None
) -> GpuNode | None:
    """What a node has; ``None`` for one without GPUs.

    Args:
        name: the node's.
        node: the object, if it is there.
        offers: what its annotation says.
        instaslice: the object of its on-demand cards, if there is one.
    """
    allocatable = node.status.allocatable if node is not None else {}
    advertised, foreign = frozenset(_advertised(allocatable)), frozenset(filter(suggest_resource, allocatable))
    said = {kind: {each.resource for each in offers if each.kind is kind} for kind in OfferKind}
    described = frozenset[str]().union(*said.values())
    on_demand = frozenset(said[OfferKind.DYNAMIC_SLICE])
    if instaslice is not None:
        reported = frozenset(map(resource_of, dynamic_profiles(instaslice)))
        on_demand |= reported - (described - on_demand)
    labels = node.metadata.labels if node is not None else {}
    only_on_demand = not offers and labels.get(MIG_CONFIG_LABEL) == MIG_CONFIG_DYNAMIC
    fixed = frozenset() if only_on_demand else (advertised | described) - on_demand
    if not (advertised or described or on_demand or foreign):
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
    )


def _advertised(allocatable: Mapping[str, str]) -> Iterator[str]:
    return (name for name, amount in allocatable.items() if name.startswith(_PREFIX) and amount != "0")


class _DecodedOffers(msgspec.Struct, frozen=True):
    """A node's annotation and what it says, so that it is decoded once."""

    text: str
    offers: tuple[NodeOffer, ...]


class GpuNodeWatcher:
    """Follows nodes and Instaslice objects.

    Args:
        sink: gets each node with GPUs when it changed in what matters here, and only then.
    """

    def __init__(self, sink: NodeSink) -> None:
        self._sink = sink
        self._nodes: dict[str, Node] = {}
        self._instaslices: dict[str, Instaslice] = {}
        self._decoded: dict[str, _DecodedOffers] = {}
        self._known: dict[str, GpuNode] = {}

    def values(self) -> Iterable[GpuNode]:
        """All nodes with GPUs."""
        return self._known.values()

    def node_changed(self, event: WatchEvent[Node]) -> None:
        """Takes in a change of a node."""
        name = event.object.metadata.name
        if event.kind is EventKind.DELETED:
            self._nodes.pop(name, None)
            self._decoded.pop(name, None)
        else:
            self._nodes[name] = event.object
            self._read(name, event.object.metadata.annotations.get(OFFERS_ANNOTATION, ""))
        self._settle(name)

    def instaslice_changed(self, event: WatchEvent[Instaslice]) -> None:
        """Takes in a change of a node's Instaslice object."""
        name = event.object.metadata.name
        if event.kind is EventKind.DELETED:
            self._instaslices.pop(name, None)
        else:
            self._instaslices[name] = event.object
        self._settle(name)

    def _read(self, name: str, text: str) -> None:
        told = self._decoded.get(name)
        if told is not None and told.text == text:
            return
        try:
            offers = decode_offers(text) if text else ()
        except ValueError as error:
            _log.warning("node %s: %s; until then it counts as a node that says nothing", name, error)
            offers = ()
        self._decoded[name] = _DecodedOffers(text, offers)

    def _settle(self, name: str) -> None:
        told = self._decoded.get(name)
        found = read_gpu_node(name, self._nodes.get(name), told.offers if told else (), self._instaslices.get(name))
        if found == self._known.get(name):
            return
        if found is None:
            del self._known[name]
            self._sink.drop(name)
        else:
            self._known[name] = found
            self._sink.put(found)
