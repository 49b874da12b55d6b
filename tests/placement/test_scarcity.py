"""A model is dear when more is bound to it than is free of it."""

import pytest

from tessera.placement.card_demand import scarcity


@pytest.mark.parametrize(
    ("bound", "free_of_group", "price"),
    [
        (0, 10, 0.0),
        (100, 100, 0.0),  # every request suits every model
        (25, 25, 0.75),  # a quarter of the requests, a quarter of what is free
        (25, 50, 0.25),
        (50, 25, 1.5),
        (25, 0, 24.75),  # nothing is free: as if one card were
    ],
)
def test_the_price_compares_bound_requests_with_free_cards(bound: int, free_of_group: int, price: float) -> None:
    assert scarcity(bound, 100, 100, free_of_group) == price


def test_a_group_with_nothing_free_in_a_cluster_with_nothing_free_has_no_negative_price() -> None:
    assert scarcity(25, 100, 0, 0) == 0.0


def test_without_requests_nothing_is_scarce() -> None:
    assert scarcity(0, 0, 100, 10) == 0.0
