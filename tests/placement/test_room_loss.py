"""The loss of a node counts the free parts of cards that the known requests could not use."""

import pytest

from tessera.placement.card_demand import CardRequest, FreeCards, TypicalRequests
from tessera.placement.room_rating import RoomLoss

SMALL = CardRequest(4000, 0, 1, 300, ("A100", "H100"), pinned=False)
WHOLE = CardRequest(8000, 0, 1, 1000, ("A100", "H100"), pinned=False)
PINNED = CardRequest(8000, 0, 2, 1000, ("H100",), pinned=True)
LOSS = RoomLoss(TypicalRequests(((SMALL, 0.5), (WHOLE, 0.25), (PINNED, 0.25))))


@pytest.mark.parametrize(
    ("kind", "cards", "cpu", "lost"),
    [
        ("H100", ((1000, 2),), 64000, 0.0),
        ("H100", ((1000, 1),), 64000, 250.0),  # no pair of cards
        ("A100", ((1000, 2),), 64000, 500.0),  # the pinned pod does not suit
        ("A100", ((400, 1),), 64000, 200.0),  # a small pod alone could use it
        ("A100", ((200, 1),), 64000, 200.0),  # nobody
        ("H100", ((1000, 2),), 4000, 1000.0),  # CPU for the small one alone
        ("H100", ((1000, 2),), 0, 2000.0),
    ],
)
def test_each_request_loses_what_it_could_not_use(kind: str, cards: FreeCards, cpu: int, lost: float) -> None:
    assert LOSS.of(kind, cards)(cpu, 0) == pytest.approx(lost)


@pytest.mark.parametrize(("cpu", "memory", "lost"), [(26000, 26000, 0), (13000, 26000, 1000), (26000, 6500, 1500)])
def test_cards_without_cpu_or_memory_beside_them_are_lost_as_well(cpu: int, memory: int, lost: float) -> None:
    """A card needs 1.3 times the average of 10 CPU and 10,000 MiB; the scarcer of the two decides."""
    loss = RoomLoss(TypicalRequests((), cpu_a_part=10, memory_a_part=10))
    assert loss.of("A100", ((1000, 2),))(cpu, memory) == pytest.approx(lost)
