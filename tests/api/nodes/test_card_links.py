"""The annotation tessera.dev/card-links: short, bounded, and none if it cannot be read."""

import json
from itertools import combinations

import pytest

from tessera.api.nodes.node_cards import CARD_LINKS_TEXT, LINK_POINTS, CardLinks, decode_links, encode_links, make_links

PAIRS = (430, 10, 10, 10, 10, 430)


@pytest.mark.parametrize("links", [CardLinks(8, (1800,)), CardLinks(4, PAIRS), CardLinks(4, PAIRS, (0, 3))])
def test_a_value_is_read_as_it_was_written(links: CardLinks) -> None:
    assert decode_links(encode_links(links)) == links


def test_cards_that_are_all_joined_alike_are_described_once_and_without_free_ones() -> None:
    assert make_links(8, (1800,) * 28, [0, 1]) == CardLinks(8, (1800,))
    assert encode_links(CardLinks(8, (1800,))) == '{"cards":8,"points":[1800]}'


@pytest.mark.parametrize("cards", [0, 1, 17])
def test_a_single_card_and_more_cards_than_machines_have_get_no_description(cards: int) -> None:
    assert make_links(cards, (10,) * (cards * (cards - 1) // 2), None) is None


def test_the_largest_description_is_within_the_limit() -> None:
    points = tuple(LINK_POINTS - number for number, _ in enumerate(combinations(range(16), 2)))
    found = make_links(16, points, range(16))
    assert found is not None
    assert len(encode_links(found)) <= CARD_LINKS_TEXT
    assert decode_links(encode_links(found)) == found


@pytest.mark.parametrize(
    "text",
    [
        "",
        "no",
        "[]",
        "[" * 2000,
        " " * 10_000,
        json.dumps({"cards": 4}),
        json.dumps({"cards": 4, "points": []}),
        json.dumps({"cards": 4, "points": [1, 2]}),
        json.dumps({"cards": 4, "points": [-1]}),
        json.dumps({"cards": 4, "points": [10**9]}),
        json.dumps({"cards": 2_000_000_000, "points": [1]}),
        json.dumps({"cards": 4, "points": PAIRS, "free": [4]}),
        json.dumps({"cards": 4, "points": PAIRS, "free": [1, 1]}),
        json.dumps({"cards": 4, "points": PAIRS, "free": [3, 0]}),
        json.dumps({"cards": 4, "points": PAIRS, "free": "all"}),
        '{"cards":4,"points":[1],"free":["\ud800"]}',
    ],
)
def test_a_value_that_breaks_a_rule_counts_as_none(text: str) -> None:
    assert decode_links(text) is None
