"""What the churn benchmark says about its own table."""

from typing import Any

import pytest
from bench.churn import print_findings


def row(rule: str, alloc: float, most_moves: float) -> dict[str, Any]:
    """A row of the cell that has bars."""
    cell = {"cards": 256, "lives": "exponential", "load": 1.0, "mix": "big", "rule": rule}
    return {**cell, "alloc_percent": alloc, "most_moves_percent": most_moves}


def test_a_rule_that_moves_more_than_its_budget_for_one_seed_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    print_findings([row("mix-aware", 94.1, 0.0), row("mix-aware+moves", 95.9, 4.01)])
    told = capsys.readouterr().out
    assert (
        "more than 4 moves per 100 accepted for some seed: (256, 'exponential', 1.0, 'big', 'tessera+moves')\n" in told
    )
    print_findings([row("mix-aware+moves", 95.9, 4.0)])
    assert "more than 4 moves per 100 accepted for some seed: none\n" in capsys.readouterr().out


def test_a_cell_below_first_fit_and_a_missed_bar_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    print_findings([row("mix-aware", 94.0, 0.0), row("first-fit", 94.05, 0.0)])
    told = capsys.readouterr().out
    assert "below first-fit: (256, 'exponential', 1.0, 'big')\n" in told
    assert "bar for tessera, big, 256 cards, load 1.0: 94.1, reached 94.00, short by 0.10\n" in told
