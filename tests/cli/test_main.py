"""The command line as a whole: it starts fast."""

import os
import subprocess
import sys

import pytest

#: Seconds of CPU that starting may cost; a second kubectl plugin call in a pipe must not be felt.
BUDGET = 0.150


def cpu_seconds(*arguments: str) -> float:
    """CPU time of one run, Python's own start included."""
    before = os.times()
    subprocess.run([sys.executable, "-m", "tessera", *arguments], check=True, capture_output=True)
    after = os.times()
    return after.children_user + after.children_system - before.children_user - before.children_system


@pytest.mark.parametrize(
    "arguments", [["--version"], ["--help"], ["map", "--help"], ["why", "--help"], ["lab", "--help"]]
)
def test_starting_costs_less_than_150_ms_of_cpu(arguments: list[str]) -> None:
    assert min(cpu_seconds(*arguments) for _ in range(3)) < BUDGET
