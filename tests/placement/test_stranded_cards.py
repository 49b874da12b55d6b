"""Free cards count as stranded when the node's CPU would not do for pods as they are."""

import pytest

from tessera.placement.stranded_cards import CPU_A_CARD, stranded


@pytest.mark.parametrize(
    ("free", "cpu", "lost"),
    [
        (4, 4 * 10 * CPU_A_CARD, 0.0),
        (4, 100 * 10 * CPU_A_CARD, 0.0),
        (4, 3 * 10 * CPU_A_CARD, 1.0),
        (4, 0, 4.0),
        (0, 0, 0.0),
    ],
)
def test_cards_beyond_the_cpu_are_stranded(free: int, cpu: float, lost: float) -> None:
    assert stranded(free, cpu, 10) == pytest.approx(lost)


def test_pods_without_cpu_strand_nothing() -> None:
    assert stranded(4, 0, 0) == 0.0
