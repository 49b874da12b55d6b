"""Ratings of nodes by how their free cards are joined."""

from itertools import combinations

import pytest

from tessera.placement.topology import Joined, LinkRatings

#: 0 with 1 and 2 with 3 have NVLinks.
PAIRS = (430, 10, 10, 10, 10, 430)


def pairs(*free: int) -> Joined:
    return (4, PAIRS, free)


@pytest.mark.parametrize(
    ("joined", "size", "points"),
    [
        (pairs(0, 1, 2, 3), 2, 430),
        (pairs(0, 1), 2, 430),
        (pairs(1, 2), 2, 10),
        (pairs(0, 2, 3), 2, 430),
        (pairs(0, 1, 2, 3), 4, 900),
        ((4, PAIRS, None), 2, 0),
        ((8, (1800,), None), 2, 1800),
        ((8, (1800,), None), 4, 10_800),
    ],
)
def test_a_request_gets_the_points_of_the_best_free_cards(joined: Joined, size: int, points: int) -> None:
    free = joined[0] if joined[2] is None else len(joined[2])
    assert LinkRatings().points(joined, free, size) == points


def test_cards_of_pods_on_their_way_are_not_counted() -> None:
    # The agent lists four free cards; a pod with two is pinned, and gets one pair. A pod with one leaves a whole pair.
    ratings = LinkRatings()
    assert ratings.points(pairs(0, 1, 2, 3), 2, 2) == 430
    assert ratings.points(pairs(0, 2, 3), 2, 2) == 430
    assert ratings.points(pairs(0, 1, 2), 2, 2) == 430
    assert ratings.points(pairs(0, 1), 1, 2) == 0


def test_cards_that_are_not_listed_as_free_yet_count_as_unjoined() -> None:
    assert LinkRatings().points(pairs(1), 3, 2) == 0
    assert LinkRatings().points(pairs(), 2, 2) == 0


@pytest.mark.parametrize(
    ("joined", "loss"),
    [
        (pairs(0, 1, 2, 3), 400),
        (pairs(1, 2), 0),
        (pairs(3), 0),
        (pairs(2, 3), 400),
        (pairs(0, 1, 2), 0),
        ((4, (50, 10, 10, 10, 10, 50), (0, 1)), 0),
        ((8, (1800,), None), 0),
    ],
)
def test_one_card_loses_the_nvlinks_of_the_card_that_it_gets(joined: Joined, loss: int) -> None:
    free = joined[0] if joined[2] is None else len(joined[2])
    assert LinkRatings().loss(joined, free) == loss


def test_machines_of_sixteen_cards_are_rated_by_growth() -> None:
    points = tuple(1200 if one // 4 == other // 4 else 10 for one, other in combinations(range(16), 2))
    assert LinkRatings().points((16, points, tuple(range(16))), 16, 4) == 6 * 1200
