"""Makes foreign text safe to show.

Names, annotations, messages and labels come from users and nodes. Printed raw, they can clear a reader's terminal,
imitate our lines or run in a page. Code that shows such a text passes it through this module first: :func:`one_line`
for terminals, logs, events and conditions, :func:`html` for pages, :func:`json` for programs. The command line does so
in one place, :mod:`tessera.cli.base.console`.
"""

import html as _html
import unicodedata

from tessera.limits.messages import ECHOED

#: Unicode categories that steer a terminal, reorder what is read or have no agreed width: controls (C0, C1, DEL),
#: format characters (bidirectional overrides, zero-width joiners), surrogates, private use, line and paragraph ends.
_UNSAFE = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})
_ELLIPSIS = "…"


def one_line(text: object, most: int = ECHOED) -> str:
    r"""``text`` as one printable line of at most ``most`` characters.

    Characters that steer a terminal become escapes as Python writes them (``\x1b``, ``\n``, ``\u202e``). What is cut
    ends in an ellipsis. Work is bounded by ``most``, however long the text is.
    """
    whole = text if isinstance(text, str) else str(text)
    start = whole[: most + 1]
    shown = start if start.isprintable() else "".join(_escaped(each) for each in start)
    return shown if len(shown) <= most else shown[: max(most - 1, 0)] + _ELLIPSIS


def lines(text: object, most: int = ECHOED) -> list[str]:
    """:func:`one_line` of each line of a text that may have several: a table, a manifest, a traceback."""
    return [one_line(each, most) for each in str(text).split("\n")]


def json(document: str) -> str:
    r"""JSON in which every character that steers a terminal is escaped as JSON escapes it (``\u202e``).

    Encoders escape no more than JSON demands, which leaves the second set of controls, DEL and bidirectional overrides.
    The meaning stays the same: outside of strings JSON has none of these but blanks and ends of lines.
    """
    if document.isascii() and "\x7f" not in document:
        return document
    return "".join(each if each in "\n\t\r" or not _steers(each) else _in_json(each) for each in document)


def html(text: object, most: int = ECHOED) -> str:
    """:func:`one_line` with the characters escaped that mean something in HTML, attributes included."""
    return _html.escape(one_line(text, most), quote=True)


def _escaped(character: str) -> str:
    if not _steers(character):
        return character
    return character.encode("unicode_escape").decode("ascii")


def _steers(character: str) -> bool:
    return unicodedata.category(character) in _UNSAFE


def _in_json(character: str) -> str:
    units = character.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[at] << 8 | units[at + 1]:04x}" for at in range(0, len(units), 2))
