"""The driver part against chance: people, registries, machines and processes do what they like, then all comes right.

What must hold at every moment is told in :mod:`tests.cluster.storm.always`, what must hold in the end in
:mod:`tests.cluster.storm.calm`. A seed that fails prints what happened; ``python -m tests.cluster.storm SEED`` plays it
again. One that found a defect stays in :data:`SEEDS`.
"""

import os
import random
from pathlib import Path

import pytest
from tests.cluster.storm.run import storm

#: Played by ``make soak``: some that found defects, and all networks.
SEEDS = (1, 2, 3, 4, 5, 9, 10, 44, 270014920)
#: Each search also plays so many that nobody has seen.
SEARCHED = 30 if os.environ.get("TESSERA_SEARCH") else 0


def weathered(folder: Path, seed: int, rounds: int = 3) -> None:
    story = storm(folder, seed, rounds)
    assert not story.problems, story.text(f"storm {seed}")


@pytest.mark.soak
def test_a_short_storm_passes(tmp_path: Path) -> None:
    weathered(tmp_path, seed=10, rounds=1)


@pytest.mark.soak
@pytest.mark.parametrize("seed", [*SEEDS, *(f"any-{number}" for number in range(SEARCHED))])
def test_long_storms_pass(tmp_path: Path, seed: int | str) -> None:
    weathered(tmp_path, seed if isinstance(seed, int) else random.SystemRandom().randrange(10**9))
