"""Tables for narrow screens: each cell carries the heading of its column, so that a row can be shown as a list.

A table of three columns or more does not fit a phone: its words are broken, or its last column is out of sight. The
site's style sheet stacks the cells of such a row there, each below its heading. Two columns fit as they are.
"""

from collections.abc import Iterator
from xml.etree.ElementTree import Element

from markdown import Markdown
from markdown.extensions import Extension
from markdown.treeprocessors import Treeprocessor

#: Fewest columns of a table that is stacked.
COLUMNS = 3


class LabelTables(Extension):
    """Adds the headings once the page's tables are made."""

    def extendMarkdown(self, md: Markdown) -> None:  # noqa: N802 (the library's name)
        """Registers the step below that of inline text (20), so that a heading is text and not Markdown."""
        md.treeprocessors.register(_Labels(md), "tables", 5)


class _Labels(Treeprocessor):
    def run(self, root: Element) -> None:
        for table in root.iter("table"):
            label(table)


def label(table: Element) -> None:
    """Marks a wide table with ``data-stacked``, and its cells with ``data-label``."""
    headings = ["".join(each.itertext()).strip() for each in table.iter("th")]
    if len(headings) < COLUMNS:
        return
    table.set("data-stacked", "")
    for row in _rows(table):
        for heading, cell in zip(headings, row.iter("td"), strict=False):
            cell.set("data-label", heading)


def _rows(table: Element) -> Iterator[Element]:
    for body in table.iter("tbody"):
        yield from body.iter("tr")
