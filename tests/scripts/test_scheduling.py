"""A test that ends its process, as one that hangs does at last, costs its own result alone."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.support.pages import ROOT

CONFTEST = """
from tests.support.scheduling import GroupScheduling

def pytest_xdist_make_scheduler(config, log):
    return GroupScheduling(config, log)
"""
ENDS = """
import os

def test_before(): ...
def test_ends(): os._exit(1)
def test_after(): ...
"""


@pytest.mark.parametrize("workers", [1, 2])
def test_a_test_that_ends_its_worker_runs_once_and_the_others_too(workers: int, tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "test_a.py").write_text(ENDS)
    (tmp_path / "test_b.py").write_text("def test_alone(): ...\n")
    command = [sys.executable, "-m", "pytest", "-q", "-n", str(workers), "--rootdir", str(tmp_path), str(tmp_path)]
    own = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    done = subprocess.run(
        command, env={**own, "PYTHONPATH": str(ROOT)}, cwd=tmp_path, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 1, done.stderr
    assert "test_a.py::test_ends" in done.stdout
    assert "1 failed, 3 passed" in done.stdout
