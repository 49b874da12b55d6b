"""The page about claims names issues of NVIDIA's DRA driver; tests that bear their numbers hold what it says."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/claims.md").read_text(encoding="utf-8")
SECTION = PAGE.partition("## What differs from NVIDIA's DRA driver\n")[2].partition("\n## ")[0]
ROWS = re.findall(r"^\| (\d[^|]*) \|", SECTION, re.MULTILINE)
ISSUES = [number for row in ROWS for number in re.findall(r"\d+", row)]
TESTS = "".join(
    (ROOT / path).read_text(encoding="utf-8") for path in re.findall(r"\(\.\./(tests/[\w/]+\.py)\)", SECTION)
)


def test_all_known_issues_have_their_row() -> None:
    assert sorted(map(int, ISSUES)) == [840, 883, 897, 932, 933, 1055, 1092, 1278, 1452, 1480]


@pytest.mark.parametrize("number", ISSUES)
def test_each_issue_has_a_test_of_its_number(number: str) -> None:
    assert f"def test_{number}_" in TESTS
