"""What one experiment of one sample comes to, and that its cluster leaves no task, file or thread behind."""

import tempfile
from pathlib import Path

import pytest
from tests.support.virtual_lab import ENTRYPOINT

from tessera_lab.experiments.clusters import PUBLIC
from tessera_lab.experiments.runs import OURS, UPSTREAM, policy_reset


@pytest.mark.parametrize("operator", [UPSTREAM, OURS])
def test_files_of_a_world_go_with_it_and_its_first_reset_does_not_count(
    operator: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    told = policy_reset(PUBLIC, 1, operator=operator, make=ENTRYPOINT)
    assert not list(tmp_path.iterdir())
    (sample,) = told.samples
    assert told.first is not None
    assert told.first > sample, "the first reset pulls images, and does not count"
