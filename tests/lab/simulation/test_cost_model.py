"""The declared costs of the simulated world."""

import random
import statistics

import msgspec
import pytest

from tessera_lab.simulation.cost_model import CostModel, draw_durations, draw_log_normal, list_costs


def test_every_number_says_what_it_is_and_where_it_comes_from() -> None:
    table = list_costs(CostModel(compile_seconds=123))
    assert [each.name for each in table] == [field.name for field in msgspec.structs.fields(CostModel)]
    assert all(each.meaning and each.source for each in table)
    assert next(each.value for each in table if each.name == "compile_seconds") == 123


def test_durations_spread_around_their_mean() -> None:
    draw = draw_durations(CostModel(spread=0.2), random.Random(1))
    drawn = [draw(100.0) for _ in range(4000)]
    assert statistics.fmean(drawn) == pytest.approx(100, rel=0.02)
    assert statistics.stdev(drawn) == pytest.approx(20, rel=0.05)
    assert min(drawn) > 0


def test_without_spread_there_is_no_chance() -> None:
    assert draw_log_normal(random.Random(1), 100.0, 0.0) == 100.0
    assert draw_log_normal(random.Random(1), 0.0, 0.5) == 0.0


def test_what_is_drawn_for_one_step_does_not_change_what_another_takes() -> None:
    """Two orders of the same steps are compared on the same durations."""
    alone, between = draw_durations(CostModel(), random.Random(1)), draw_durations(CostModel(), random.Random(1))
    compiled = [alone(170.0) for _ in range(3)]
    assert [(between(170.0), between(2.0), between(25.0))[0] for _ in range(3)] == compiled
    assert len(set(compiled)) == 3
