"""The site builds offline, each link and anchor on it leads somewhere, and no page loads anything from elsewhere."""

import functools
import json
import re
from collections.abc import Iterator
from html import unescape
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote, urlsplit

import pytest
import yaml
from markdown import Markdown
from website.diagrams.blocks import FOLDER, blocks, missing_pictures, picture_name
from website.hooks import slugify
from website.navigation import fill_navigation
from website.sources import Sources
from website.tables import LabelTables

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
#: Attributes by which a page loads something at once, by element; a plain link loads nothing.
LOADED = {"img": "src", "script": "src", "iframe": "src", "link": "href", "source": "src", "form": "action"}


#: A tag, and one of its attributes. Each page has the whole navigation: a parser of all their HTML takes seconds.
TAG = re.compile(r"<([a-z][a-z0-9]*)\b((?:[^>\"]|\"[^\"]*\")*)>")
ATTRIBUTE = re.compile(r"\b(id|name|href|src|action)=(?:\"([^\"]*)\"|([^\s>]+))")


class PageParts(NamedTuple):
    """What a page loads, where its links lead, and its anchors."""

    loads: set[str]
    links: set[str]
    anchors: set[str]


@functools.cache
def parts(page: Path) -> PageParts:
    found = PageParts(set(), set(), set())
    for tag, text in TAG.findall(page.read_text(encoding="utf-8")):
        attributes = {name: unescape(quoted or plain) for name, quoted, plain in ATTRIBUTE.findall(text)}
        found.anchors.update(attributes[name] for name in ("id", "name") if name in attributes)
        if tag in LOADED and LOADED[tag] in attributes:
            found.loads.add(attributes[LOADED[tag]])
        if tag == "a" and "href" in attributes:
            found.links.add(attributes["href"])
    return found


def test_the_parts_of_a_page_are_found(tmp_path: Path) -> None:
    file = tmp_path / "page.html"
    file.write_text(
        '<h2 id="a>b"><img alt="1" src=x.png><a title=">" name=n href="c?d&amp;e#f">x</a><link href="s.css"/>'
    )
    assert parts(file) == PageParts({"x.png", "s.css"}, {"c?d&e#f"}, {"a>b", "n"})


def pages(site: Path) -> list[Path]:
    return sorted(site.rglob("*.html"))


def test_every_page_of_the_documentation_is_on_it(site: Path) -> None:
    for page in DOCS.rglob("*.md"):
        built = page.relative_to(DOCS).with_suffix(".html")
        name = built.with_name("index.html") if built.name == "README.html" else built
        assert (site / name).is_file(), name
    assert (site / "index.html").is_file()
    assert (site / "contributing.html").is_file()


def test_nothing_is_loaded_from_another_host(site: Path) -> None:
    for page in pages(site):
        foreign = [each for each in parts(page).loads if urlsplit(each).netloc or each.startswith("//")]
        assert foreign == [], page
        inline = re.findall(r"<style[^>]*>.*?</style>|style=\"[^\"]*\"", page.read_text(encoding="utf-8"), re.DOTALL)
        assert not any("//" in each for each in inline), page
    for sheet in site.rglob("*.css"):
        pairs = re.findall(r"url\(([^)]*)\)|@import ([^;]*)", sheet.read_text(encoding="utf-8"))
        loaded = [each.lstrip("\"'") for pair in pairs for each in pair if each]
        assert [each for each in loaded if "//" in each and not each.startswith("data:")] == [], sheet


def test_every_link_leads_somewhere(site: Path) -> None:
    for page in pages(site):
        if page.name != "404.html":
            assert list(broken(site, page)) == [], page


def broken(site: Path, page: Path) -> Iterator[str]:
    for link in parts(page).links | parts(page).loads:
        target = urlsplit(link)
        if target.scheme in {"http", "https", "mailto", "data"}:
            continue
        path = linked(page.parent, target.path) if target.path else page
        anchor = unquote(target.fragment)
        missing = path is None or not path.is_relative_to(site)
        if missing or (path and anchor and path.suffix == ".html" and anchor not in parts(path).anchors):
            yield link


@functools.cache
def linked(folder: Path, target: str) -> Path | None:
    """The file to which pages of a folder link; None if there is none."""
    path = (folder / unquote(target)).resolve()
    path = path / "index.html" if path.is_dir() else path
    return path if path.is_file() else None


def test_its_search_knows_the_pages_without_a_server(site: Path) -> None:
    script = (site / "search" / "search_index.js").read_text(encoding="utf-8")
    index = json.loads(script.removeprefix("var __index = "))
    locations = {each["location"].partition("#")[0] for each in index["docs"]}
    assert {"install.html", "sharing.html", "decisions/index.html"} <= locations
    assert not any(each.startswith("source/") for each in locations)


def test_every_diagram_has_its_picture_and_no_picture_is_left_over() -> None:
    assert list(missing_pictures(DOCS)) == [], "run make pictures"
    drawn = {picture_name(block) for page in DOCS.rglob("*.md") for block in blocks(page.read_text(encoding="utf-8"))}
    assert {path.name for path in (DOCS / FOLDER).glob("diagram-*.svg")} == drawn


def test_a_page_that_nobody_placed_comes_at_the_end(tmp_path: Path) -> None:
    (tmp_path / "more").mkdir()
    for name in ("a.md", "b.md", "more/README.md", "more/c.md"):
        (tmp_path / name).write_text("# x\n", encoding="utf-8")
    assert fill_navigation([{"A": "a.md"}, {"Folder": "more/"}], tmp_path) == [
        {"A": "a.md"},
        {"Folder": ["more/README.md", "more/c.md"]},
        {"More": ["b.md"]},
    ]


def test_every_page_has_its_place_in_the_navigation() -> None:
    text = (ROOT / "website" / "mkdocs.yml").read_text(encoding="utf-8")
    entries = yaml.safe_load(text.partition("\nnav:\n")[2])
    moved = [{"Start": ["index.md", "contributing.md"]}]
    assert [each for each in fill_navigation([*entries, *moved], DOCS) if "More" in each] == [], "website/mkdocs.yml"


def test_a_link_out_of_the_pages_leads_to_a_page_with_the_file() -> None:
    sources = Sources(ROOT)
    text = "[rules](../deploy/rbac.yaml), [all](../examples/kueue), [top](../README.md#test-it), `[no](link)`"
    assert sources.rewrite(text, "docs/decisions/../security.md", "security.md").startswith(
        "[rules](source/deploy/rbac.yaml.md), [all](source/examples/kueue/README.md), [top](index.md#test-it)"
    )
    assert "kind: ServiceAccount" in sources.pages["source/deploy/rbac.yaml.md"]
    assert "(queues.yaml.md)" in sources.pages["source/examples/kueue/README.md"]


def test_the_cells_of_a_wide_table_carry_their_headings() -> None:
    text = "| you see | `it` means | do |\n|---|---|---|\n| a | b | c |\n"
    page = Markdown(extensions=["tables", LabelTables()]).convert(text)
    assert re.findall(r'data-label="([^"]*)">(\w)<', page) == [("you see", "a"), ("it means", "b"), ("do", "c")]
    assert "<table data-stacked" in page


def test_a_table_of_two_columns_stays_as_it_is() -> None:
    page = Markdown(extensions=["tables", LabelTables()]).convert("| a | b |\n|---|---|\n| c | d |\n")
    assert "data-" not in page


def test_code_is_not_rewritten() -> None:
    text = "```\n[a](../b.md)\n```\n"
    assert Sources(ROOT).rewrite(text, "docs/x.md", "x.md") == text


@pytest.mark.parametrize(
    ("heading", "anchor"),
    [
        ("Try it on a cluster without GPUs (kind, k3s)", "try-it-on-a-cluster-without-gpus-kind-k3s"),
        ("NVIDIA's operator", "nvidias-operator"),
        ("A -- B", "a----b"),
    ],
)
def test_anchors_are_those_of_github(heading: str, anchor: str) -> None:
    assert slugify(heading, "-") == anchor
