"""The two annotations of the breaker: round trip, bounds, and values that nobody should trust."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tessera.api.nodes.card_faults import (
    CARD_FAULTS,
    CARD_FAULTS_TEXT,
    CardFault,
    CardRule,
    ListedCard,
    NodeCards,
    decode_cards,
    decode_spared,
    encode_cards,
    encode_spared,
)
from tessera.api.nodes.health import describe_xid
from tessera.limits import NODE_CARDS, NODE_INDEXES

CARDS = tuple(ListedCard(number, f"GPU-{number}") for number in range(8))
FAULT = CardFault("GPU-1", "XID 48", 1_700_000_000)


def test_what_an_agent_writes_is_read_again() -> None:
    assert decode_cards(encode_cards(CARDS, [FAULT])) == NodeCards(8, (FAULT,), (), CARDS)
    assert decode_spared(encode_spared([FAULT.key])) == {CardRule("GPU-1", "XID 48")}


def test_lost_cards_and_those_that_stay_allocated_are_listed_apart_from_what_the_breaker_counts() -> None:
    lost = CardFault("GPU-2", "probe", index=2, asks="reboot", lost=True, text="the card does not answer")
    rows = CardFault("GPU-3", "row-remapping", index=3, asks="attention", text="no spare row")
    assert decode_cards(encode_cards(CARDS, [lost, rows, FAULT])) == NodeCards(8, (FAULT,), (lost, rows), CARDS)


def test_the_words_of_an_xid_are_not_carried_and_read_again() -> None:
    told = CardFault("GPU-1", "XID 48", asks="reset", text=describe_xid(48))
    (found,) = decode_cards(encode_cards(CARDS, [told])).faults
    assert (found.text, found.evidence().text) == ("", told.text)


FAULTS = st.builds(
    CardFault,
    gpu=st.from_regex(r"GPU-[0-9a-z-]{1,64}", fullmatch=True),
    rule=st.one_of(st.sampled_from(["probe", "driver"]), st.integers(0, 99999).map(lambda xid: f"XID {xid}")),
    since=st.integers(0, 2**40),
    index=st.integers(-1, 63),
    part=st.integers(-1, 14),
    asks=st.sampled_from(["attention", "uncordon", "withhold", "reset", "reboot"]),
    text=st.text(),
    lost=st.booleans(),
    reset=st.booleans(),
)


@given(FAULTS)
def test_every_fault_that_an_agent_has_is_read_as_written(fault: CardFault) -> None:
    found = decode_cards(encode_cards(CARDS, [fault]))
    (each,) = (*found.faults, *found.others)
    assert (each.key, each.asks, each.lost, each.part) == (fault.key, fault.asks, fault.lost, fault.part)


def test_an_agent_writes_no_more_than_readers_accept() -> None:
    many = [
        CardFault(f"GPU-{'a' * 60}{number}", "probe", 2**40, 63, 9999, "reset", '"' * 500, reset=True)
        for number in range(CARD_FAULTS + 9)
    ]
    strange = [
        CardFault("GPU-1", "XID 9999999"),
        CardFault("card\n", "XID 1"),
        CardFault("GPU-1", "XID 94", part=10_000),
        CardFault("GPU-1", "probe", index=NODE_INDEXES + 1),
        CardFault("GPU-1", "probe", since=-1),
    ]
    cards = [ListedCard(number, f"GPU-{'a' * 36}{number}") for number in range(NODE_CARDS + 1)]
    found = decode_cards(encode_cards(cards, [*many, *strange]))
    assert (found.count, len(found.faults), len(found.gpus)) == (NODE_CARDS, CARD_FAULTS, NODE_CARDS)
    assert encode_cards(CARDS, strange) == encode_cards(CARDS, [])
    assert encode_cards([ListedCard(0, "card\n")], []) == '{"count":1}'
    assert encode_cards([ListedCard(-1, "GPU-1")], []) == encode_cards([ListedCard(0, "card\n")], [])
    assert len(encode_cards(cards, many)) <= CARD_FAULTS_TEXT


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
