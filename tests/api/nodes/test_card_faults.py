"""The two annotations of the breaker: round trip, bounds, and values that nobody should trust."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tessera.api.nodes.card_faults import (
    CardFault,
    CardRule,
    NodeCards,
    decode_cards,
    decode_spared,
    encode_cards,
    encode_spared,
)
from tessera.limits.nodes import CARD_FAULTS, CARD_FAULTS_TEXT, NODE_CARDS

FAULT = CardFault("GPU-1", "XID 48", 1_700_000_000)


def test_what_an_agent_writes_is_read_again() -> None:
    assert decode_cards(encode_cards(8, [FAULT])) == NodeCards(8, (FAULT,))
    assert decode_spared(encode_spared([FAULT.key])) == {CardRule("GPU-1", "XID 48")}


def test_an_agent_writes_no_more_than_readers_accept() -> None:
    many = [CardFault(f"GPU-{'a' * 60}{number}", f"XID {number}", 2**40) for number in range(CARD_FAULTS + 9)]
    strange = [CardFault("GPU-1", "XID 9999999"), CardFault("card\n", "XID 1")]
    found = decode_cards(encode_cards(NODE_CARDS + 1, [*many, *strange]))
    assert (found.count, len(found.faults)) == (NODE_CARDS, CARD_FAULTS)
    assert encode_cards(1, strange) == encode_cards(1, [])
    assert len(encode_cards(1, many)) <= CARD_FAULTS_TEXT


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        '{"count": -1}',
        '{"count": 65}',
        '{"count": 1, "faults": [{"gpu": "x", "rule": "XID 1", "since": 0}]}',
        '{"count": 1, "faults": [{"gpu": "GPU-1", "rule": "XID 1\\n", "since": 0}]}',
        '{"count": 1, "faults": [{"gpu": "GPU-1", "rule": "XID 1", "since": -1}]}',
        "[" * 5000,
        " " * (CARD_FAULTS_TEXT + 1),
    ],
)
def test_a_value_that_cannot_be_read_is_none(text: str) -> None:
    assert decode_cards(text) == NodeCards()
    assert decode_spared(text) == frozenset()


@given(st.text(max_size=200))
def test_any_text_is_answered(text: str) -> None:
    assert decode_cards(text).count <= NODE_CARDS
    assert len(decode_spared(text)) <= CARD_FAULTS
