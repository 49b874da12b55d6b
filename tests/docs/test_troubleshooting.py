"""Each symptom on the page of troubleshooting is a text that the program really has."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "troubleshooting.md"
SOURCE = ROOT / "src" / "tessera"
#: Texts of other programs.
FOREIGN = {
    "exceeded quota": "kube-apiserver",
    "failed calling webhook": "kube-apiserver",
    "libcuda.so.1": "a program",
    "server returned HTTP status 401": "Prometheus",
}


def symptoms() -> list[str]:
    """The code spans in the first column of the tables."""
    rows = re.findall(r"^\| (.*?) \|", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    return [span for row in rows if not set(row) <= {"-", "|"} for span in re.findall(r"`([^`]+)`", row)]


def texts(path: Path) -> Iterator[str]:
    """The literal texts of a module; parts of one f-string are joined, with a mark for each value."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.JoinedStr):
            yield "".join(
                each.value if isinstance(each, ast.Constant) and isinstance(each.value, str) else "\0"
                for each in node.values
            )
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


@pytest.fixture(scope="module")
def said() -> list[str]:
    return [text for path in sorted(SOURCE.rglob("*.py")) for text in texts(path)]


@pytest.mark.parametrize("symptom", symptoms())
def test_a_symptom_is_a_text_of_the_program(symptom: str, said: list[str]) -> None:
    if symptom in FOREIGN:
        return
    parts = [part.strip() for part in symptom.split("...")]
    assert any(all(part in text for part in parts) for text in said), symptom


def test_there_are_many_and_each_foreign_one_is_used() -> None:
    assert len(symptoms()) > 40
    assert FOREIGN.keys() <= set(symptoms())
