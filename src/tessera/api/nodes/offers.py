"""The annotation ``tessera.dev/offers`` of a node: its offers as a JSON list.

The node's agent writes it. Admission reads it to find the smallest offer that fulfils a pod's requirements, and to
check requests above one; explanations of a node read it too. A capacity alone does not say what one ``nvidia.com/gpu``
is; this annotation does.

Rules:

- one entry for each resource and kind of device behind it, so a node with two models under one name has two;
- equal offers give equal text, so a node is written only after a change;
- a text of more bytes than `OFFERS_TEXT` is refused and numbers are bounded, so that a writer of a node's annotation
  cannot keep its readers busy;
- unknown keys are ignored, so that a newer agent may add some.
"""

from collections.abc import Iterable
from enum import StrEnum
from fractions import Fraction
from typing import Annotated

import msgspec

from tessera.limits import OFFERS, OFFERS_TEXT
from tessera.mig.models import model_by_product
from tessera.mig.names import ProfileName, parse_profile_name
from tessera.offers import GIB, CardProperties, Offer, OfferedKind, whole_gib
from tessera.text import one_line

OFFERS_ANNOTATION = "tessera.dev/offers"

#: Compute slices of a card whose model is not in the table: those of all MIG cards but A30 and the RTX PRO ones.
_COMPUTE_SLICES = 7
#: A share below this part of an even division has a lowered memory limit.
_EVEN = Fraction(9, 10)
_MIB = 2**20


class OfferKind(StrEnum):
    """The kind of one device of a resource."""

    WHOLE = "whole"
    SHARE = "share"
    SLICE = "slice"
    DYNAMIC_SLICE = "dynamic-slice"


_KINDS = {
    OfferKind.WHOLE: OfferedKind.WHOLE,
    OfferKind.SHARE: OfferedKind.SHARE,
    OfferKind.SLICE: OfferedKind.FIXED_SLICE,
    OfferKind.DYNAMIC_SLICE: OfferedKind.DYNAMIC_SLICE,
}

Text = Annotated[str, msgspec.Meta(max_length=253)]
Name = Annotated[str, msgspec.Meta(min_length=1, max_length=317, pattern=r"^[A-Za-z0-9][A-Za-z0-9./_-]*$")]
Memory = Annotated[int, msgspec.Meta(ge=0, le=2**24)]
Count = Annotated[int, msgspec.Meta(ge=0, le=2**20)]
Replicas = Annotated[int, msgspec.Meta(ge=1, le=2**16)]


class NodeOffer(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True, order=True):
    """A resource of a node, with the properties of one device of it.

    Attributes:
        resource: the extended resource, ``nvidia.com/gpu.shared``.
        kind: the kind of one device.
        product: NVML's name of the card.
        card_memory_mib: of the whole card, MiB as NVML reports it.
        memory_mib: memory of one device, MiB; a share without its own limit gets its even part.
        compute_capability: ``8.0``.
        nvlink: True if the card is joined to other cards.
        ecc: True if the card's memory is protected.
        count: all devices of the node, in use or not, healthy or not: shares, not cards. Of slices on demand, the most
            that fit on empty cards.
        replicas: number of shares of one device; 1 if it is not shared.
        one_per_request: True if a container that asks for more than one is refused.
        profile: of a slice, or of the slice that is shared, as NVML writes it: ``1g.5gb+me``.
    """

    resource: Name
    kind: OfferKind
    product: Text
    card_memory_mib: Memory
    memory_mib: Memory
    compute_capability: Annotated[str, msgspec.Meta(pattern=r"^[0-9]{1,3}\.[0-9]{1,3}$")]
    nvlink: bool = False
    ecc: bool = False
    count: Count
    replicas: Replicas = 1
    one_per_request: bool = False
    profile: Annotated[str, msgspec.Meta(max_length=63)] = ""


#: The next step in the message about a wrong annotation.
_REMEDY = "the node's agent writes it again"

_DECODER = msgspec.json.Decoder(tuple[NodeOffer, ...])


def encode_offers(offers: Iterable[NodeOffer]) -> str:
    """Returns the annotation's value: compact, in an order that depends only on the offers.

    Raises:
        ValueError: the value would be longer than readers accept.
    """
    text = msgspec.json.encode(sorted(offers)).decode()
    _check_size(text)
    return text


def decode_offers(text: str) -> tuple[NodeOffer, ...]:
    """Returns the offers of an annotation's value.

    Raises:
        ValueError: the text is too long or malformed; the error names annotation, entry, field and rule.
    """
    try:
        _check_size(text)
    except ValueError as error:
        raise ValueError(f"{error}; {_REMEDY}") from None
    try:
        found = _DECODER.decode(text)
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError) as error:
        raise ValueError(f"annotation {OFFERS_ANNOTATION}: {_path_first(str(error))}; {_REMEDY}") from None
    if len(found) > OFFERS:
        raise ValueError(f"annotation {OFFERS_ANNOTATION}: has {len(found):,} entries; {OFFERS} are allowed; {_REMEDY}")
    for number, offer in enumerate(found):
        _check_profile(number, offer)
    return found


def _check_size(text: str) -> None:
    size = len(text.encode(errors="replace"))
    if size > OFFERS_TEXT:
        raise ValueError(f"annotation {OFFERS_ANNOTATION}: has {size:,} bytes; {OFFERS_TEXT} are allowed")


def _path_first(error: str) -> str:
    """Returns the decoder's text with the path in front of it."""
    text, _, path = error.partition(" - at `$")
    return f"{one_line(path.rstrip('`'))}: {one_line(text)}" if path else one_line(text)


def _check_profile(number: int, offer: NodeOffer) -> None:
    sliced = offer.kind in {OfferKind.SLICE, OfferKind.DYNAMIC_SLICE}
    try:
        if sliced or offer.profile:
            _profile(offer.profile)
    except ValueError as error:
        raise ValueError(f"annotation {OFFERS_ANNOTATION}: [{number}].profile: {one_line(error)}") from None


def _profile(text: str) -> tuple[ProfileName, int]:
    """Returns a profile, and the instance's compute slices: 1 for ``1c.3g.20gb``, 3 for ``3g.20gb``."""
    compute, divided, rest = text.partition("c.")
    if divided and compute.isdecimal():
        return parse_profile_name(rest), int(compute)
    name = parse_profile_name(text)
    return name, name.slices


def placement_offers(offers: Iterable[NodeOffer]) -> tuple[Offer, ...]:
    """Returns the offers of a node in the form that requirements are compared with.

    Memory is what NVML reports, rounded up to GiB; a share counts with its part of what its card or profile states, or
    with its own limit.

    Args:
        offers: well-formed ones, as from :func:`decode_offers`.

    Raises:
        ValueError: a slice without a profile's name.
    """
    return tuple(_placement_offer(offer) for offer in offers)


def _placement_offer(offer: NodeOffer) -> Offer:
    major, _, minor = offer.compute_capability.partition(".")
    card = CardProperties(
        product=offer.product,
        memory_mib=offer.card_memory_mib,
        compute_capability=(int(major), int(minor)),
        nvlink=offer.nvlink,
        ecc=offer.ecc,
    )
    memory, portion, suffix = card.memory, Fraction(1), ""
    if offer.profile:
        name, compute = _profile(offer.profile)
        memory, suffix = name.memory_gb * GIB, name.suffix
        if offer.memory_mib and offer.kind is not OfferKind.SHARE:
            memory = whole_gib(offer.memory_mib)
        portion = min(Fraction(1), Fraction(compute, _compute_slices(offer.product)))
    return Offer(
        resource=offer.resource,
        kind=_KINDS[offer.kind],
        card=card,
        memory=_share_memory(offer, memory // offer.replicas),
        portion=portion / offer.replicas,
        count=offer.count,
        suffix=suffix,
    )


def _share_memory(offer: NodeOffer, even: int) -> int:
    pinned = offer.memory_mib * _MIB
    return pinned if offer.kind is OfferKind.SHARE and pinned < even * _EVEN else even


def _compute_slices(product: str) -> int:
    model = model_by_product(product)
    if model is None or model.table is None:
        return _COMPUTE_SLICES
    return max(row.compute_slices for row in model.table.profiles)
