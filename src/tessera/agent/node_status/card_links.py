"""Builds the annotation ``tessera.dev/card-links`` of a node. Pure.

Where every pair of cards has NVLinks, the way through PCIe is left out: nothing goes that way.
"""

from collections.abc import Collection
from itertools import combinations

from tessera.api.names import WHOLE_CARDS
from tessera.api.nodes.card_links import CardLinks, make_links
from tessera.api.sharing.devices import Advertisement
from tessera.placement.topology import NVLINK_POINTS, Topology


def card_links(offer: Advertisement, topology: Topology, held: Collection[str] | None) -> CardLinks | None:
    """Returns how the whole cards are joined that a node offers; None if it offers none, or a single one.

    Args:
        offer: the offer in force.
        topology: how the cards are joined.
        held: cards that containers have or must not get; None if not known.
    """
    offered = offer.resources.get(WHOLE_CARDS)
    devices = offered.devices if offered is not None else ()
    if any(each.shared or each.profile for each in devices):
        return None
    cards = [each.uuid for each in devices]
    points = tuple(topology.score(one, other) for one, other in combinations(cards, 2))
    if points and min(points) >= NVLINK_POINTS:
        points = tuple(each // NVLINK_POINTS * NVLINK_POINTS for each in points)
    free = None if held is None else [number for number, card in enumerate(cards) if card not in held]
    return make_links(len(cards), points, free)
