"""Tests in forks end as they do in one process, and a fork that dies is a failure."""

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
OUTCOMES = """
import os
import pytest

@pytest.fixture(scope="session")
def shared(tmp_path_factory):
    yield tmp_path_factory.mktemp("shared")
    print("session ends in", os.getpid())

def test_passes(shared):
    assert shared.is_dir()

def test_fails(shared):
    print("printed by the test")
    assert [1, 2] == [1, 3]

def test_is_skipped():
    pytest.skip("nothing to do")

@pytest.mark.xfail
def test_fails_as_expected():
    raise AssertionError

@pytest.fixture
def broken():
    yield
    raise RuntimeError("broken teardown")

def test_ends_badly(broken):
    pass
"""
DIES = """
import os

def test_before():
    pass

def test_dies():
    os._exit(3)

def test_after():
    pass
"""


def run(folder: Path, *arguments: str) -> str:
    """What pytest prints about the folder's tests."""
    command = [sys.executable, "-m", "pytest", "-p", "tests.support.forked_workers", "-p", "no:cacheprovider"]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [*command, "--rootdir", str(folder), f"--basetemp={folder / 'temporary'}", *arguments, str(folder)],
        env=env,
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=120,
    )
    return f"{done.stdout}{done.stderr}exit status {done.returncode}\n"


def test_outcomes_and_outputs_are_those_of_one_process(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / f"test_{name}.py").write_text(OUTCOMES, encoding="utf-8")
    told = run(tmp_path, "--forks", "2")
    assert "2 failed, 4 passed, 2 skipped, 2 xfailed, 2 errors" in told
    assert len(re.findall(r"-- Captured stdout call --+\nprinted by the test\n", told)) == 2
    assert len(re.findall(r"^E +RuntimeError: broken teardown", told, re.MULTILINE)) == 2
    assert "assert [1, 2] == [1, 3]" in told
    assert "exit status 1\n" in told


def test_a_worker_that_dies_fails_its_test_and_those_to_come(tmp_path: Path) -> None:
    (tmp_path / "test_a.py").write_text(DIES, encoding="utf-8")
    (tmp_path / "test_b.py").write_text(OUTCOMES, encoding="utf-8")
    told = run(tmp_path, "--forks", "2", "-ra")
    assert re.findall(r"FAILED (test_a\S+) - its worker ended with status 3", told) == [
        "test_a.py::test_dies",
        "test_a.py::test_after",
    ]
    assert "3 failed, 3 passed" in told


def test_files_that_no_worker_is_left_for_are_told(tmp_path: Path) -> None:
    for name in ("a", "b", "c"):
        (tmp_path / f"test_{name}.py").write_text(DIES, encoding="utf-8")
    told = run(tmp_path, "--forks", "2")
    assert "3 tests have not run: all workers have died" in told
    assert "exit status 1\n" in told


def test_enough_failures_end_it(tmp_path: Path) -> None:
    for name in "ab":
        (tmp_path / f"test_{name}.py").write_text(OUTCOMES, encoding="utf-8")
    told = run(tmp_path, "--forks", "1", "--maxfail", "1")
    assert re.search(r"stopping after \d failures", told)
