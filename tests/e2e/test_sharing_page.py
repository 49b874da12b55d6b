"""The page docs/sharing.md, run from top to bottom as its reader would; see :mod:`tests.support.pages`."""

import re
import textwrap
from pathlib import Path

import pytest
from tests.support.pages import ROOT, Page, Shell, shows

PAGE = Page(ROOT / "docs" / "sharing.md")
EXAMPLES = ROOT / "examples" / "sharing"


def test_every_command_prints_what_the_page_shows(lab_folder: Path) -> None:
    PAGE.play(Shell(lab_folder))
    assert not lab_folder.exists()


def test_every_setting_that_the_page_shows_stands_in_an_example() -> None:
    files = [_indented(path.read_text(encoding="utf-8")) for path in sorted(EXAMPLES.glob("*.yaml"))]
    for block in PAGE.blocks("yaml"):
        assert any(block in text for file in files for text in file), f"in no file of {EXAMPLES.name}:\n{block}"


def _indented(text: str) -> list[str]:
    """The text, and what it holds below each depth of indentation, as it would stand alone."""
    return [re.sub(rf"^ {{{depth}}}", "", text, flags=re.MULTILINE) for depth in (0, 2, 4, 6)]


def test_it_has_no_blocks_but_commands_settings_and_what_is_for_a_real_cluster() -> None:
    assert PAGE.languages == {"console", "yaml", "sh"}


@pytest.mark.parametrize(
    ("shown", "printed", "same"),
    [
        (["node/a labeled"], "node/a labeled\n", True),
        (["node/a labeled"], "node/a labeled\nmore\n", False),
        (["a", "...", "z"], "a\nb\nc\nz\n", True),
        (["a", "...", "z"], "a\nz\n", True),
        (["a", "..."], "b\n", False),
        (["a ... d"], "a b c d\n", True),
        (["a ... d"], "a b\nc d\n", False),
        (["NAME   AGE", "x      3s"], "NAME        AGE\nx           12m3s\n", True),
        (["nvidia-test-a100-2jxt2 Running"], "nvidia-test-a100-zzzz9 Running\n", True),
        (["set 9ced6bb78c"], "set 0830a22958\n", True),
        (["set 9ced6bb78c"], "set 525.125.06\n", False),
    ],
)
def test_what_counts_as_the_same(shown: list[str], printed: str, same: bool) -> None:
    assert shows(shown, textwrap.dedent(printed)) is same
