"""Reads from a Node if it offers all its GPUs, and the status of its driver. Pure."""

from collections.abc import Collection, Iterator

import msgspec

from tessera.api.names import MIG_CONFIG_LABEL, gives_by_claims, is_on_demand
from tessera.api.nodes.driver_status import ADVERTISED_CONDITION, DRIVER_ANNOTATION, DriverPhase, DriverStatus
from tessera.api.nodes.node_marks import LAYOUT, SHARING
from tessera.api.nodes.offers import OFFERS_ANNOTATION, NodeOffer, OfferKind, decode_offers
from tessera.kube.quantity import count_or_zero
from tessera.kube.resources import Node


def missing_offer(node: Node) -> str:
    """The first reason why a node does not offer all its GPUs as requested; empty if it does."""
    return next(_missing_offers(node), "")


def offers_gpus(node: Node) -> bool:
    """True if kubelet offers any GPU, with any device plugin, or the node gives slices by ResourceClaims."""
    given = [name for name, amount in node.status.allocatable.items() if count_or_zero(amount) > 0]
    return any(name.startswith("nvidia.com/") for name in given) or _has_claim_slices(node)


def _has_claim_slices(node: Node) -> bool:
    """True if the agent has reported cards that go to ResourceClaims, in slices or whole: kubelet counts none of them.

    Whole ones are no offer, since only a request for a device of kubelet's needs to know them.
    """
    if not gives_by_claims(node.metadata.labels):
        return False
    try:
        offers = decode_offers(node.metadata.annotations[OFFERS_ANNOTATION])
    except (KeyError, ValueError):
        return False
    return not offers or any(each.kind is OfferKind.DYNAMIC_SLICE for each in offers)


def _missing_offers(node: Node) -> Iterator[str]:
    if not node.status.is_ready:
        yield "the node is not Ready"
    advertised = node.status.condition(ADVERTISED_CONDITION)
    if advertised is not None and advertised.status != "True":
        yield f"{advertised.message or 'its agent waits'} ({advertised.reason})"
    text = node.metadata.annotations.get(OFFERS_ANNOTATION)
    if text is None:
        yield f"its agent has not reported what its cards offer (annotation {OFFERS_ANNOTATION})"
        return
    try:
        offers = decode_offers(text)
    except ValueError as error:
        yield str(error)
        return
    yield from _not_in_force(node)
    if not offers and not gives_by_claims(node.metadata.labels):
        yield "its cards offer nothing"
    yield from _not_allocatable(node, offers)


def _not_in_force(node: Node) -> Iterator[str]:
    """Yields the requested settings that are not in force."""
    sharing, layout = node.status.condition(SHARING), node.status.condition(LAYOUT)
    asked = node.metadata.labels.get(MIG_CONFIG_LABEL, "")
    if layout is None and asked and not is_on_demand(asked):
        yield f"its MIG layout {asked[:63]} is requested, and its agent has not reported it"
    for each in (layout, sharing):
        if each is not None and each.status != "True":
            yield f"condition {each.type} is {each.status} ({each.reason}): {each.message}"
    if sharing is None:
        yield f"its agent has not reported how its cards are shared (condition {SHARING})"


def _not_allocatable(node: Node, offers: Collection[NodeOffer]) -> Iterator[str]:
    """Yields offered resources that are not allocatable. Of on-demand slices one suffices: their numbers interact.

    Slices that go to ResourceClaims are never allocatable.
    """
    by_claims = gives_by_claims(node.metadata.labels)
    counted = [each for each in offers if not (by_claims and each.kind is OfferKind.DYNAMIC_SLICE)]
    for resource in sorted({each.resource for each in counted}):
        fixed = [
            each.count for each in counted if each.resource == resource and each.kind is not OfferKind.DYNAMIC_SLICE
        ]
        wanted = sum(fixed) if fixed else 1
        given = count_or_zero(node.status.allocatable.get(resource, "0"))
        if given < wanted:
            yield f"kubelet gives {given} of {wanted} {resource}"


def allocatable_text(node: Node) -> str:
    """Text that lists the GPU resources in ``status.allocatable``, and slices by ResourceClaims."""
    found = [f"{n} {name}" for name, n in sorted(node.status.allocatable.items()) if name.startswith("nvidia.com/")]
    given = ", ".join(each for each in found if not each.startswith("0 "))
    kubelet = f"kubelet gives {given}" if given else ""
    claims = "cards go to ResourceClaims" if _has_claim_slices(node) else ""
    return ", ".join(each for each in (kubelet, claims) if each)


def driver_status(node: Node) -> DriverStatus | None:
    """The controller's status of a node's driver; None if there is none, or it cannot be decoded."""
    text = node.metadata.annotations.get(DRIVER_ANNOTATION)
    if text is None or len(text) > 64 * 1024:
        return None
    try:
        return msgspec.json.decode(text, type=DriverStatus)
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
        return None


def driver_text(node: Node) -> str:
    """A sentence with the status of a node's driver; empty if there is none."""
    status = driver_status(node)
    if status is None:
        return ""
    word = "" if status.phase in {DriverPhase.STARTING, DriverPhase.PULLING} else f"{status.phase.value}: "
    return f"{word}{status.reason}" if status.reason else status.phase.value
