"""The cluster of an experiment leaves no task, file or thread behind."""

import tempfile
from pathlib import Path

import pytest
from tests.support.virtual_lab import ENTRYPOINT

from tessera_lab.experiments.runs import OURS, UPSTREAM, policy_reset
from tessera_lab.experiments.scenarios import PUBLIC


@pytest.mark.parametrize("operator", [UPSTREAM, OURS])
def test_files_of_a_world_go_with_it(operator: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    policy_reset(PUBLIC, 1, operator=operator, make=ENTRYPOINT)
    assert not list(tmp_path.iterdir())
