"""The site in a real browser that opens it from files: the search works, and nothing is asked of a network."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page
from tests.support.browsers import running_browser


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with running_browser() as found:
        yield found


def open_page(browser: Browser, site: Path, name: str) -> tuple[Page, list[str], list[str]]:
    """A page; with the addresses that it asks for, and the errors of its scripts."""
    page, asked, errors = browser.new_page(), list[str](), list[str]()
    page.on("request", lambda request: asked.append(request.url))
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.goto((site / name).as_uri())
    return page, asked, errors


@pytest.mark.parametrize("name", ["index.html", "how-it-works.html", "see-it.html", "decisions/index.html"])
def test_a_page_from_a_file_asks_for_files_only(browser: Browser, site: Path, name: str) -> None:
    page, asked, errors = open_page(browser, site, name)
    page.wait_for_load_state("networkidle")
    assert [each for each in asked if not each.startswith(("file:", "data:", "blob:"))] == []
    assert errors == []


def test_the_search_works_without_a_server(browser: Browser, site: Path) -> None:
    page, asked, errors = open_page(browser, site, "index.html")
    page.locator("input.md-search__input").focus()
    page.keyboard.type("all-balanced")
    first = page.locator(".md-search-result__item a").first
    first.wait_for(state="attached", timeout=60_000)
    assert "sharing.html" in {
        (link.get_attribute("href") or "").partition("?")[0].rpartition("/")[2].partition("#")[0]
        for link in page.locator(".md-search-result__item a").all()
    }
    assert [each for each in asked if not each.startswith(("file:", "data:", "blob:"))] == []
    assert errors == []


@pytest.mark.parametrize("name", ["install.html", "support-matrix.html", "troubleshooting.html", "security.html"])
def test_a_phone_shows_each_table_whole_and_each_cell_of_a_wide_one_below_its_heading(
    browser: Browser, site: Path, name: str
) -> None:
    page, _, _ = open_page(browser, site, name)
    page.set_viewport_size({"width": 390, "height": 844})
    page.locator(".md-typeset__scrollwrap").first.wait_for(state="attached")
    cut = "tables => tables.filter(each => each.scrollWidth > each.clientWidth + 1).length"
    assert page.locator(".md-typeset__scrollwrap").evaluate_all(cut) == 0
    heading = "cells => cells.map(each => getComputedStyle(each, '::before').content)"
    shown = page.locator("table[data-stacked] td:not(:first-child)").evaluate_all(heading)
    assert "none" not in shown
    widths = "cells => cells.map(each => each.clientWidth)"
    assert all(width > 250 for width in page.locator("table[data-stacked] td").evaluate_all(widths) if width)


@pytest.mark.soak
def test_a_diagram_is_a_picture_that_is_shown(browser: Browser, site: Path) -> None:
    page, _, _ = open_page(browser, site, "how-it-works.html")
    widths = page.locator("img.diagram").evaluate_all("images => images.map(image => image.naturalWidth)")
    assert len(widths) == 2
    assert all(width > 100 for width in widths)
