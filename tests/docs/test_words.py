"""Readers find each page by its question; CONTRIBUTING.md has short cells, and no everyday word with a new meaning."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
#: Pages that list others, in the order in which a newcomer needs them.
LISTS = ("start.md", "user-guide.md", "security.md")
#: Words of a household that had a meaning of their own once.
HOUSEHOLD = {
    "pass",
    "turn",
    "room",
    "holder",
    "company",
    "look",
    "kept",
    "keep",
    "told",
    "spared",
    "gain",
    "speak",
    "mark",
}
LONGEST = 30
LONGEST_SENTENCE = 46


def rows(text: str) -> Iterator[list[str]]:
    for line in text.splitlines():
        if line.startswith("|") and not line.startswith("|---"):
            yield [cell.strip() for cell in line.strip("|").split(" | ")]


def test_no_cell_is_longer_than_a_reader_remembers() -> None:
    assert [cell for row in rows(PAGE) for cell in row if len(cell.split()) > LONGEST] == []


@pytest.mark.parametrize(
    "wanted",
    ["a label of GPU feature discovery", "a reason why a pod waits", "a column of `tessera top`", "a kind of request"],
)
def test_everyday_requests_have_their_row(wanted: str) -> None:
    found = [row for row in rows(PAGE) if row[0].startswith(wanted)]
    assert [len(row) for row in found] == [3]


def test_the_glossary_gives_no_everyday_word_a_new_meaning() -> None:
    words = {
        word.strip().removeprefix("to ")
        for row in rows(PAGE.partition("\n## Words\n")[2])
        for word in row[0].replace(";", ",").split(",")
    }
    assert len(words) > 60
    assert words & HOUSEHOLD == set()


def test_every_page_is_listed_for_newcomers() -> None:
    listed = {
        link
        for name in LISTS
        for link in re.findall(r"\]\(([\w-]+\.md)", (ROOT / "docs" / name).read_text(encoding="utf-8"))
    }
    assert {path.name for path in (ROOT / "docs").glob("*.md")} - listed - {"start.md"} == set()


def test_no_page_is_a_book() -> None:
    """A page answers one question; only the list of limits is longer."""
    longest = {path.name: len(path.read_text(encoding="utf-8").split()) for path in (ROOT / "docs").glob("*.md")}
    assert {name for name, words in longest.items() if words > 4000} <= {"limits.md"}


def sentences(text: str) -> Iterator[str]:
    """The sentences of a page outside of its tables and examples."""
    prose = re.sub(r"^ *```.*?^ *```", "", text, flags=re.DOTALL | re.MULTILINE)
    lines = "\n".join(line for line in prose.splitlines() if not line.lstrip().startswith(("|", "#")))
    for paragraph in re.split(r"\n\s*\n|\n\s*[-*] |\n\d\. ", lines):
        yield from re.split(r"(?<=[.!?])\s+(?=[A-Z`*\[(])", " ".join(paragraph.split()))


@pytest.mark.parametrize(
    "page",
    [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))],
    ids=lambda page: str(page.relative_to(ROOT)),
)
def test_a_sentence_is_read_once(page: Path) -> None:
    assert [each for each in sentences(page.read_text(encoding="utf-8")) if len(each.split()) > LONGEST_SENTENCE] == []
