"""The cards that are held back for a fault, and the waiting pods that they might serve. No I/O and no clock.

A card might serve a pod if it is of a model that makes what the pod asks for, on a node that could take the pod. The
node's agent says in ``tessera.dev/offers`` what the cards of each model are for, healthy or not, and in
``tessera.dev/cards`` which card has a fault. Of devices that are not made on demand, kubelet says how many are
withheld: without one, the faulty card has none of them.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from tessera.api.names import NodeName, resource_of
from tessera.api.nodes.card_faults import CARDS_ANNOTATION, SPARED_ANNOTATION, NodeCards, decode_cards, decode_spared
from tessera.api.nodes.offers import OFFERS_ANNOTATION, NodeOffer, OfferKind, decode_offers
from tessera.controller.cluster.filters import first_shortage
from tessera.controller.objects.pod_info import CLAIMS, PodInfo
from tessera.controller.slicing.state.slicer_state import SlicerState
from tessera.kube.quantity import count_or_zero
from tessera.kube.resources import Node
from tessera.mig.names import is_device_profile
from tessera.reasons.node_rules import RuleKind


@dataclass(frozen=True, slots=True)
class HeldCard:
    """A card that is not allocated.

    Attributes:
        fault: the source of its error, ``XID 79``.
        resources: what it would serve, by the names of resources.
    """

    fault: str
    resources: frozenset[str]


@dataclass(frozen=True, slots=True)
class HeldNode:
    """A node with such cards.

    Attributes:
        cards: the cards.
        most: by resource, how many of it the node's cards have together, healthy or not.
    """

    cards: Sequence[HeldCard]
    most: Mapping[str, int]


#: By node; those without such a card are missing.
HeldBack = Mapping[NodeName, HeldNode]


def read_held_back(nodes: Iterable[Node]) -> HeldBack:
    """Reads the nodes' annotations; a node whose agent says nothing, or nothing that can be read, has no such card."""
    return {NodeName(node.metadata.name): held for node in nodes if (held := _read(node)) is not None}


def _read(node: Node) -> HeldNode | None:
    notes = node.metadata.annotations
    listed = decode_cards(notes.get(CARDS_ANNOTATION, ""))
    spared = decode_spared(notes.get(SPARED_ANNOTATION, "")) if listed.faults else frozenset()
    faults = {each.gpu: each.rule for each in listed.faults if each.key not in spared}
    if not faults:
        return None
    try:
        offers = decode_offers(notes.get(OFFERS_ANNOTATION, "[]"))
    except ValueError:  # the agent writes it again
        offers = ()
    most: Counter[str] = Counter()
    for each in offers:
        most[each.resource] += each.count
    return HeldNode(tuple(_cards(node, listed, faults, offers)), most)


def _cards(node: Node, listed: NodeCards, faults: Mapping[str, str], offers: Sequence[NodeOffer]) -> Iterator[HeldCard]:
    products = {each.gpu: each.product for each in listed.gpus}
    withheld = [each for each in offers if each.kind is OfferKind.DYNAMIC_SLICE or _has_withheld(node, each.resource)]
    for gpu, fault in faults.items():
        product = products.get(gpu, "")
        yield HeldCard(fault, frozenset(each.resource for each in withheld if product in ("", each.product)))


def _has_withheld(node: Node, resource: str) -> bool:
    capacity, left = (
        count_or_zero(each.get(resource, "0")) for each in (node.status.capacity, node.status.allocatable)
    )
    return capacity > left


class HeldCards:
    """Answers which of these cards might serve a pod.

    Args:
        state: the slicer's state.
        held_back: the cards.
    """

    def __init__(self, state: SlicerState, held_back: HeldBack) -> None:
        self._state = state
        self._held_back = held_back

    def find(self, pod: PodInfo, nodes: int) -> list[str]:
        """The faults of the cards that might serve a pod, one of each card.

        Args:
            pod: the pod.
            nodes: mask of the nodes that may take it and whose other cards have its profiles.
        """
        index = self._state.cluster.index
        able = nodes if pod.kind is CLAIMS else index.open_to(pod.constraints)
        names = [name for name in self._held_back if index.mask_of(name) & able]
        if not names:
            return []
        wanted = Counter(each if is_device_profile(each) else resource_of(each) for each in map(_plain, pod.profiles))
        return [fault for name in names for fault in self._on(pod, name, wanted)]

    def _on(self, pod: PodInfo, name: NodeName, wanted: Mapping[str, int]) -> Iterator[str]:
        held, node = self._held_back[name], self._state.cluster.nodes[name]
        by_claims = {each for each in wanted if pod.kind is CLAIMS and each not in held.most and "mig-" not in each}
        short = first_shortage(pod.amounts, {}, node)
        if short is not None and short.kind is RuleKind.TOO_SMALL:
            return
        if any(count > held.most.get(each, 0) for each, count in wanted.items() if each not in by_claims):
            return
        for card in held.cards:
            if card.resources & wanted.keys() or (by_claims and not card.resources):
                yield card.fault


def _plain(profile: str) -> str:
    """A profile without what a claim's selectors choose of it."""
    return profile.partition(" (")[0].partition(" that ")[0]
