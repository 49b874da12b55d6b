"""The pictures of the live page show the page that is shipped."""

import hashlib
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PICTURES = ROOT / "docs" / "pictures"
#: What the pictures follow from: the built page, and the scene that it shows.
SOURCES = (
    *sorted((ROOT / "src" / "tessera" / "dashboard" / "assets").glob("*")),
    ROOT / "tests" / "dashboard" / "browser" / "scene.py",
)


def test_they_were_made_of_this_page() -> None:
    digest = hashlib.sha256(b"".join(each.read_bytes() for each in SOURCES)).hexdigest()
    assert (PICTURES / "live-page.sha256").read_text(encoding="utf-8").strip() == digest, "run make pictures"


def test_each_one_that_a_page_shows_is_there_and_small() -> None:
    shown = {
        name
        for page in (ROOT / "docs").glob("*.md")
        for name in re.findall(r"pictures/(live-page[a-z0-9-]*\.png)", page.read_text(encoding="utf-8"))
    }
    assert shown
    for name in shown:
        assert 0 < (PICTURES / name).stat().st_size < 200_000
