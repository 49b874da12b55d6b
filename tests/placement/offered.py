"""Offers as nodes have them, written in a line: for tests that choose among them."""

from collections.abc import Mapping
from fractions import Fraction

from tessera.mig.geometry import Geometry
from tessera.mig.names import parse_profile_name
from tessera.placement.offers import CardKind, Kind, Offer
from tessera.placement.requirements import GIB


def whole_card(node: str, card: CardKind, count: int, resource: str = "nvidia.com/gpu") -> Offer:
    """Cards that are given out whole."""
    return Offer(
        node=node,
        resource=resource,
        kind=Kind.WHOLE,
        card=card,
        memory=card.memory,
        portion=Fraction(1),
        count=count,
    )


def shared_card(node: str, card: CardKind, count: int, *, replicas: int, resource: str) -> Offer:
    """Cards of which each is given to ``replicas`` containers; the agreed part of the memory counts."""
    return Offer(
        node=node,
        resource=resource,
        kind=Kind.SHARE,
        card=card,
        memory=card.memory // replicas,
        portion=Fraction(1, replicas),
        count=count * replicas,
    )


def slices(node: str, card: CardKind, geometry: Geometry, counts: Mapping[str, int], *, dynamic: bool) -> list[Offer]:
    """MIG slices: so many of each profile that are cut, or that are made when a pod asks."""
    whole = max(row.compute_slices for row in geometry.profiles)
    rows = [(geometry.profile(name), count) for name, count in counts.items()]
    return [
        Offer(
            node=node,
            resource=row.resource,
            kind=Kind.DYNAMIC_SLICE if dynamic else Kind.FIXED_SLICE,
            card=card,
            memory=row.memory_gb * GIB,
            portion=Fraction(row.compute_slices, whole),
            count=count,
            suffix=parse_profile_name(row.name).suffix,
        )
        for row, count in rows
        if count
    ]
