"""The annotation with a node's offers: it is bounded, and equal offers give equal text."""

import re
from contextlib import suppress
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from tessera.api.nodes.offers import (
    NodeOffer,
    OfferKind,
    decode_offers,
    encode_offers,
    placement_offers,
)
from tessera.limits import OFFERS_TEXT
from tessera.offers import GIB, Offer, OfferedKind

WHOLE = NodeOffer(
    resource="nvidia.com/gpu",
    kind=OfferKind.WHOLE,
    product="NVIDIA A100-SXM4-40GB",
    card_memory_mib=40536,
    memory_mib=40536,
    compute_capability="8.0",
    nvlink=True,
    ecc=True,
    count=8,
)
SHARED = replace(
    WHOLE,
    resource="nvidia.com/gpu.shared",
    kind=OfferKind.SHARE,
    memory_mib=10134,
    count=32,
    replicas=4,
    one_per_request=True,
)
SLICE = replace(
    WHOLE, resource="nvidia.com/mig-3g.20gb", kind=OfferKind.SLICE, memory_mib=19968, count=16, profile="3g.20gb"
)
FULL = (
    '{"resource":"nvidia.com/gpu.shared","kind":"share","product":"NVIDIA A100-SXM4-40GB","cardMemoryMib":40536,'
    '"memoryMib":10134,"computeCapability":"8.0","nvlink":true,"ecc":true,"count":32,"replicas":4,'
    '"onePerRequest":true}'
)


def test_the_text_of_an_offer() -> None:
    assert encode_offers([SHARED]) == f"[{FULL}]"
    assert encode_offers([]) == "[]"


def test_the_order_follows_from_the_offers() -> None:
    assert encode_offers([SLICE, WHOLE, SHARED]) == encode_offers([SHARED, SLICE, WHOLE])


def test_what_a_newer_agent_says_beside_is_passed_over() -> None:
    assert decode_offers(f'[{FULL[:-1]},"colour":"green"}}]') == (SHARED,)


def changed(**fields: Any) -> str:
    text = FULL
    for key, value in fields.items():
        text = re.sub(rf'"{key}":("[^"]*"|[^,}}]*)', f'"{key}":{value}', text)
    return f"[{text}]"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", ["annotation tessera.dev/offers: "]),
        ("{}", ["Expected `array`"]),
        ('[{"resource":"nvidia.com/gpu"}]', ["[0]: ", "missing required field `kind`"]),
        (changed(kind='"part"'), ["[0].kind: Invalid enum value 'part'"]),
        (changed(count="-1"), ["[0].count: Expected `int` >= 0"]),
        (changed(count="99999999999"), ["[0].count: Expected `int` <= 1048576"]),
        (changed(replicas="0"), ["[0].replicas: Expected `int` >= 1"]),
        (changed(cardMemoryMib="1e99"), ["[0].cardMemoryMib: Expected `int`"]),
        (changed(computeCapability='"eight"'), ["[0].computeCapability: "]),
        (changed(resource='"a b"'), ["[0].resource: "]),
        (changed(kind='"slice"'), ['[0].profile: "" is not a MIG profile']),
        (f'[{FULL[:-1]},"profile":"half"}}]', ['[0].profile: "half" is not a MIG profile']),
        ("[" * 60_000, ["annotation tessera.dev/offers: "]),
        ('"\ud800"', ["annotation tessera.dev/offers: "]),
        (f'[{FULL[:-1]},"x":"{"y" * OFFERS_TEXT}"}}]', [f"bytes; {OFFERS_TEXT} are allowed"]),
    ],
)
def test_what_is_not_of_the_form_is_refused_with_its_place(text: str, words: list[str]) -> None:
    with pytest.raises(ValueError, match=r"annotation tessera\.dev/offers") as caught:
        decode_offers(text)
    for word in words:
        assert word in str(caught.value)


def test_more_than_readers_accept_is_not_written() -> None:
    with pytest.raises(ValueError, match=str(OFFERS_TEXT)):
        encode_offers(replace(WHOLE, product=f"Card {number}") for number in range(400))


OFFERS = st.builds(
    NodeOffer,
    resource=st.from_regex(r"\A[a-z]{1,8}\.com/[a-z0-9.-]{1,20}[a-z]\Z"),
    kind=st.just(OfferKind.SHARE),
    product=st.text(max_size=60),
    card_memory_mib=st.integers(0, 2**24),
    memory_mib=st.integers(0, 2**24),
    compute_capability=st.sampled_from(["7.5", "8.0", "12.1"]),
    nvlink=st.booleans(),
    ecc=st.booleans(),
    count=st.integers(0, 2**20),
    replicas=st.integers(1, 2**16),
    one_per_request=st.booleans(),
    profile=st.sampled_from(["", "1g.5gb+me", "1c.3g.20gb"]),
)


@given(st.lists(OFFERS, max_size=6))
def test_what_is_written_is_read(offers: list[NodeOffer]) -> None:
    assert decode_offers(encode_offers(offers)) == tuple(sorted(offers))


@given(st.text())
def test_no_text_does_more_than_be_refused(text: str) -> None:
    with suppress(ValueError):
        decode_offers(text)


# -- compared with requirements --------------------------------------------------------------------------------------


def compared(offer: NodeOffer) -> Offer:
    (found,) = placement_offers([offer])
    return found


def test_a_whole_card_counts_with_the_memory_it_is_sold_with() -> None:
    found = compared(WHOLE)
    assert (found.kind, found.memory, found.portion) == (OfferedKind.WHOLE, 40 * GIB, Fraction(1))
    assert (found.card.compute_capability, found.nvlink, found.card.ecc, found.count) == ((8, 0), True, True, 8)


def test_a_share_counts_with_its_part_or_with_the_limit_that_was_pinned() -> None:
    assert (compared(SHARED).memory, compared(SHARED).portion) == (10 * GIB, Fraction(1, 4))
    assert compared(replace(SHARED, memory_mib=8192)).memory == 8 * GIB
    assert compared(replace(SHARED, memory_mib=20268)).memory == 10 * GIB, "nobody is promised a part of a neighbour's"


@pytest.mark.parametrize(
    ("product", "profile", "mib", "gib", "portion"),
    [
        ("NVIDIA A100-SXM4-40GB", "3g.20gb", 19968, 20, Fraction(3, 7)),
        ("NVIDIA A30", "2g.12gb", 11968, 12, Fraction(2, 4)),
        ("NVIDIA A100-SXM4-40GB", "1c.3g.20gb", 19968, 20, Fraction(1, 7)),
        ("NVIDIA H200", "1g.18gb", 16384, 16, Fraction(1, 7)),
        ("NVIDIA H200", "3g.71gb", 71424, 70, Fraction(3, 7)),
        ("A card of tomorrow", "7g.400gb", 0, 400, Fraction(1)),
    ],
)
def test_a_slice_counts_with_the_memory_that_it_has(
    product: str, profile: str, mib: int, gib: int, portion: Fraction
) -> None:
    """Its name promises more on some cards; the name counts where the memory is unknown."""
    found = compared(replace(SLICE, product=product, profile=profile, memory_mib=mib))
    assert (found.kind, found.memory, found.portion) == (OfferedKind.FIXED_SLICE, gib * GIB, portion)


def test_a_slice_that_takes_what_a_card_has_once_keeps_its_suffix() -> None:
    found = compared(replace(SLICE, kind=OfferKind.DYNAMIC_SLICE, profile="1g.5gb+me"))
    assert (found.kind, found.suffix) == (OfferedKind.DYNAMIC_SLICE, "+me")


def test_shares_of_a_slice_divide_the_slice() -> None:
    shared = replace(SLICE, kind=OfferKind.SHARE, replicas=2, memory_mib=9984, resource="nvidia.com/mig-3g.20gb.shared")
    assert (compared(shared).memory, compared(shared).portion) == (10 * GIB, Fraction(3, 14))
