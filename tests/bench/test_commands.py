"""The commands in the benchmarks' docstrings run as they are written."""

import re
from pathlib import Path

import pytest

BENCH = Path(__file__).parents[2] / "bench"


@pytest.mark.parametrize("path", sorted(BENCH.glob("*.py")), ids=lambda path: path.stem)
def test_a_benchmark_that_imports_others_is_started_as_a_module(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    if re.search(r"^\s*from bench[. ]", text, re.MULTILINE):
        assert f"python bench/{path.name}" not in text
