"""Ages, counted nouns and cut lists."""

import pytest

from tessera.text import age, count_noun, list_names, percent


@pytest.mark.parametrize(("seconds", "text"), [(-1, "0s"), (90, "90s"), (150, "2m"), (7200, "2h"), (900_000, "10d")])
def test_ages(seconds: float, text: str) -> None:
    assert age(seconds) == text


def test_a_noun_has_its_number() -> None:
    assert (count_noun(1, "node"), count_noun(2, "node"), count_noun(0, "node")) == ("1 node", "2 nodes", "0 nodes")


@pytest.mark.parametrize(
    ("share", "digits", "text"),
    [
        (0.625, 0, "63%"),
        (0.125, 0, "13%"),
        (0.005, 0, "1%"),
        (0.20925, 1, "20.9%"),
        (1.0, 1, "100.0%"),
        (0.29, 0, "29%"),
    ],
)
def test_percent_rounds_halves_up(share: float, digits: int, text: str) -> None:
    assert percent(share, digits) == text


def test_a_long_list_is_cut() -> None:
    assert list_names(["a", "b"], 2) == "a, b"
    assert list_names(["a", "b", "c", "d"], 2) == "a, b and 2 more"
    assert list_names([]) == ""
