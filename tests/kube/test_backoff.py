"""A slow API server is written to less often."""

import pytest

from tessera.kube.retries import pause_after_write


@pytest.mark.parametrize(
    ("took", "rest"), [(0.0, 0.0), (0.009, 0.0), (0.02, 0.08), (0.2, 0.8), (0.25, 1.0), (30.0, 1.0)]
)
def test_a_state_rests_four_times_the_write_and_a_second_at_most(took: float, rest: float) -> None:
    assert pause_after_write(took) == pytest.approx(rest)
