"""Cards are taken where they fit; what is left of them is counted by its size."""

import pytest

from tessera.placement.card_demand import CardRequest, FreeCards, list_uses, usable_parts


def asks(cards: int, part: int = 1000) -> CardRequest:
    return CardRequest(0, 0, cards, part, ("A100",), pinned=False)


@pytest.mark.parametrize(
    ("cards", "request_", "uses"),
    [
        (((400, 1), (1000, 2)), asks(1), [(1000, ((400, 1), (1000, 1)))]),
        (((400, 1), (1000, 2)), asks(2), [(1000, ((400, 1),))]),
        (((400, 1), (1000, 2)), asks(3), []),
        (((400, 1), (1000, 1)), asks(1, 400), [(400, ((1000, 1),)), (1000, ((400, 1), (600, 1)))]),
        (((400, 2),), asks(1, 300), [(400, ((100, 1), (400, 1)))]),
        (((400, 1),), asks(0, 0), [(0, ((400, 1),))]),
    ],
)
def test_the_ways_to_take_cards(cards: FreeCards, request_: CardRequest, uses: list[tuple[int, FreeCards]]) -> None:
    assert list_uses(cards, request_) == uses


@pytest.mark.parametrize(
    ("request_", "usable"),
    [(asks(1), 2000), (asks(2), 2000), (asks(3), 0), (asks(1, 400), 2400), (asks(1, 401), 2000)],
)
def test_the_parts_that_a_request_could_use(request_: CardRequest, usable: int) -> None:
    assert usable_parts(((400, 1), (1000, 2)), request_) == usable


def test_a_request_is_rounded_up_so_that_alike_requests_share_what_is_computed() -> None:
    one, other = (
        CardRequest(cpu, memory, 1, 1000, ("A100",), pinned=False) for cpu, memory in ((3500, 9000), (4000, 1))
    )
    assert one.rounded[:2] == (4000, 12288)
    assert other.rounded[:2] == (4000, 4096)
