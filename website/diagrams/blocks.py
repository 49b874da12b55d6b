"""Replaces each block of mermaid in a page by the picture that was drawn of it."""

import hashlib
import re
from collections.abc import Iterator
from pathlib import Path

#: The pictures in the folder of pages; each has the digest of its block in its name.
FOLDER = "pictures"
_BLOCK = re.compile(r"^```mermaid\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_HEADING = re.compile(r"^#+ (.*)$", re.MULTILINE)


def blocks(text: str) -> Iterator[str]:
    """The diagrams of a page."""
    for found in _BLOCK.finditer(text):
        yield found[1]


def picture_name(block: str) -> str:
    """The file of a diagram's picture; another text has another one."""
    return f"diagram-{hashlib.sha256(block.encode()).hexdigest()[:12]}.svg"


def show_pictures(text: str, page: str) -> str:
    """Returns a page with pictures instead of blocks.

    Args:
        text: the page.
        page: its path on the site.
    """
    up = "../" * page.count("/")

    def picture(found: re.Match[str]) -> str:
        headings = _HEADING.findall(text[: found.start()])
        title = f"Diagram: {headings[-1]}" if headings else "Diagram"
        return f"![{title}]({up}{FOLDER}/{picture_name(found[1])}){{ .diagram }}"

    return _BLOCK.sub(picture, text)


def missing_pictures(docs: Path) -> Iterator[tuple[str, str]]:
    """File and text of the diagrams of all pages that have no picture yet."""
    for page in sorted(docs.rglob("*.md")):
        for block in blocks(page.read_text(encoding="utf-8")):
            if not (docs / FOLDER / picture_name(block)).is_file():
                yield picture_name(block), block
