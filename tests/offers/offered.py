"""Offers as nodes have them, written in a line: for tests that choose among them."""

from collections.abc import Iterable, Mapping
from fractions import Fraction
from typing import NamedTuple

from tessera.mig.geometry import Geometry
from tessera.mig.names import parse_profile_name
from tessera.offers import (
    GIB,
    CardProperties,
    NoOfferFits,
    Offer,
    OfferChoice,
    OfferedKind,
    OfferTable,
    Requirements,
    choose_offer,
)


class Placed(NamedTuple):
    """An offer of a node."""

    node: str
    offer: Offer


def chosen_among(requirements: Requirements, placed: Iterable[Placed]) -> OfferChoice | NoOfferFits:
    """The choice for these requirements in a cluster whose nodes have these offers."""
    listed = list(placed)
    nodes = sorted({each.node for each in listed})
    table = OfferTable()
    for each in listed:
        table.add([each.offer], 1 << nodes.index(each.node))

    def names(among: int) -> list[str]:
        return [name for number, name in enumerate(nodes) if among >> number & 1]

    return choose_offer(requirements, table, (1 << len(nodes)) - 1, names)


def whole_card(node: str, card: CardProperties, count: int, resource: str = "nvidia.com/gpu") -> Placed:
    """Cards that are given out whole."""
    offer = Offer(
        resource=resource,
        kind=OfferedKind.WHOLE,
        card=card,
        memory=card.memory,
        portion=Fraction(1),
        count=count,
    )
    return Placed(node, offer)


def shared_card(node: str, card: CardProperties, count: int, *, replicas: int, resource: str) -> Placed:
    """Cards of which each is given to ``replicas`` containers; the agreed part of the memory counts."""
    offer = Offer(
        resource=resource,
        kind=OfferedKind.SHARE,
        card=card,
        memory=card.memory // replicas,
        portion=Fraction(1, replicas),
        count=count * replicas,
    )
    return Placed(node, offer)


def slices(
    node: str, card: CardProperties, geometry: Geometry, counts: Mapping[str, int], *, dynamic: bool
) -> list[Placed]:
    """MIG slices: so many of each profile that are cut, or that are made when a pod asks."""
    whole = max(row.compute_slices for row in geometry.profiles)
    rows = [(geometry.profile(name), count) for name, count in counts.items()]
    return [
        Placed(
            node,
            Offer(
                resource=row.resource,
                kind=OfferedKind.DYNAMIC_SLICE if dynamic else OfferedKind.FIXED_SLICE,
                card=card,
                memory=row.memory_gb * GIB,
                portion=Fraction(row.compute_slices, whole),
                count=count,
                suffix=parse_profile_name(row.name).suffix,
            ),
        )
        for row, count in rows
        if count
    ]
