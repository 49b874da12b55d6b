"""Small samples are described as their size allows, and no further."""

import math
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tessera.provisioning.start_times import (
    needed_samples,
    quantile,
    supported_share,
    upper_bound,
)

SAMPLE = st.lists(st.floats(0.001, 10_000), min_size=1, max_size=60)


def test_quantiles_lie_between_neighbours() -> None:
    assert quantile([1.0, 2.0, 3.0, 4.0], 0.5) == 2.5
    assert quantile([4.0, 1.0], 0.0) == 1.0
    assert quantile([4.0, 1.0], 1.0) == 4.0


@given(SAMPLE, st.floats(0, 1))
def test_a_quantile_lies_within_the_sample(values: list[float], share: float) -> None:
    assert min(values) <= quantile(values, share) <= max(values)


@pytest.mark.parametrize(("share", "n"), [(0.5, 5), (0.9, 29), (0.95, 59), (0.99, 299)])
def test_a_quantile_needs_so_many_values(share: float, n: int) -> None:
    assert needed_samples(share) == n
    assert upper_bound([float(i) for i in range(n)], share) == n - 1
    assert upper_bound([float(i) for i in range(n - 1)], share) is None
    assert supported_share(n) >= share > supported_share(n - 1)


@given(SAMPLE, st.sampled_from([0.5, 0.9, 0.95]))
def test_the_bound_is_never_below_the_samples_own_quantile(values: list[float], share: float) -> None:
    bound = upper_bound(values, share)
    assert bound is None or bound >= quantile(values, share) * (1 - 1e-12)


def test_the_bound_holds_as_often_as_it_says() -> None:
    rng = Random(1)
    true_p90 = math.exp(1.2815515655446004)  # of a lognormal
    held = 0
    for _ in range(600):
        bound = upper_bound([rng.lognormvariate(0, 1) for _ in range(40)], 0.9)
        held += bound is not None and bound >= true_p90
    assert held / 600 >= 0.93
