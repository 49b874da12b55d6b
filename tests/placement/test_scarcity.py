"""A model is dear when more is bound to it than is free of it."""

import pytest

from tessera.placement.scarcity import scarcity


@pytest.mark.parametrize(
    ("pinned", "free_of_model", "price"),
    [
        (0, 10, 0.0),
        (25, 25, 1.0),  # a quarter of the requests, a quarter of what is free
        (25, 50, 0.5),
        (50, 25, 2.0),
        (25, 0, 25.0),  # nothing is free: as if one card were
    ],
)
def test_the_price_compares_bound_requests_with_free_cards(pinned: int, free_of_model: int, price: float) -> None:
    assert scarcity(pinned, 100, 100, free_of_model) == price


def test_without_requests_nothing_is_scarce() -> None:
    assert scarcity(0, 0, 100, 10) == 0.0
