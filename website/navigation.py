"""Fills the navigation: folders become their pages, and pages that nobody placed come at the end."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

Entry = str | Mapping[str, Any]


def fill_navigation(entries: Sequence[Entry], docs: Path) -> list[Entry]:
    """Returns the navigation with every page of ``docs``.

    Args:
        entries: that of the configuration; a value that ends with ``/`` stands for the pages of a folder.
        docs: the folder of the pages.
    """
    filled = [_fill(each, docs) for each in entries]
    placed = set(_pages_in(filled))
    every = [path.relative_to(docs).as_posix() for path in sorted(docs.rglob("*.md"))]
    missing = [name for name in every if name not in placed]
    if missing:
        filled.append({"More": missing})
    return filled


def _fill(entry: Entry, docs: Path) -> Entry:
    if isinstance(entry, str):
        return entry
    ((title, value),) = entry.items()
    if isinstance(value, list):
        return {title: [_fill(each, docs) for each in value]}
    if isinstance(value, str) and value.endswith("/"):
        return {title: folder_pages(docs, value)}
    return entry


def folder_pages(docs: Path, folder: str) -> list[str]:
    """The pages of a folder: its overview first, the others by name."""
    names = sorted((docs / folder).glob("*.md"), key=lambda path: (path.name != "README.md", path.name.casefold()))
    return [path.relative_to(docs).as_posix() for path in names]


def _pages_in(entries: Sequence[Entry]) -> Iterator[str]:
    for entry in entries:
        values: Sequence[Any] = [entry] if isinstance(entry, str) else list(entry.values())
        for value in values:
            if isinstance(value, str):
                yield value
            else:
                yield from _pages_in(value)
