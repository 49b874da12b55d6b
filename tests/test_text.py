"""Text of others cannot steer a terminal, forge a line or run in a page."""

import json
import unicodedata
from html.parser import HTMLParser

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tessera.text import html, lines, one_line
from tessera.text import json as json_text


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain, grün, 図", "plain, grün, 図"),
        ("\x1b[2Jgone", r"\x1b[2Jgone"),
        ("a\nWhat would help: nothing", r"a\nWhat would help: nothing"),
        ("\u202eevil", r"\u202eevil"),
        ("tab\there\r", r"tab\there\r"),
        ("\u2028", r"\u2028"),
        ("\x9b31m", r"\x9b31m"),
    ],
)
def test_what_steers_a_terminal_is_escaped(text: str, shown: str) -> None:
    assert one_line(text) == shown


def test_a_long_text_is_cut_with_an_ellipsis() -> None:
    assert one_line("x" * 11, most=10) == "x" * 9 + "…"
    assert one_line("x" * 10, most=10) == "x" * 10


@given(st.text(), st.integers(min_value=1, max_value=50))
def test_any_text_becomes_one_printable_line_within_its_length(text: str, most: int) -> None:
    line = one_line(text, most)
    assert len(line) <= most
    assert len(line.splitlines()) <= 1
    assert "\x1b" not in line


@given(st.text())
def test_any_text_in_a_page_is_text(text: str) -> None:
    found: list[str] = []

    class Reader(HTMLParser):
        def handle_starttag(self, tag: str, attrs: object) -> None:
            found.append(tag)

    Reader().feed(f'<p title="{html(text)}">{html(text)}</p>')
    assert found == ["p"]


@given(st.text())
def test_json_keeps_its_meaning_and_steers_no_terminal(text: str) -> None:
    shown = json_text(json.dumps({"a": text}, ensure_ascii=False))
    assert json.loads(shown) == {"a": text}
    assert not [each for each in shown if unicodedata.category(each) in {"Cc", "Cf", "Zl", "Zp"}]


def test_ends_of_lines_within_json_stay() -> None:
    assert json_text('{\n  "a": "\x9b \U000e0001"\n}') == '{\n  "a": "\\u009b \\udb40\\udc01"\n}'


def test_a_text_of_several_lines_keeps_its_lines() -> None:
    assert lines("a\n\x1bb\r\n") == ["a", r"\x1bb\r", ""]
