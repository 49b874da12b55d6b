"""The page's types in TypeScript are those of the documents that Python makes."""

from pathlib import Path

from scripts.page_types import page_types

SOURCE = Path(__file__).parents[2] / "web" / "src" / "documents.ts"


def test_the_types_of_the_page_are_made_from_the_documents() -> None:
    assert SOURCE.read_text(encoding="utf-8") == page_types(), "run make page"
