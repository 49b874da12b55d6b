"""What others write, made safe for people to read; and errors and words for people.

Names, annotations, messages and labels come from users and nodes. Printed raw, they can clear a reader's terminal,
imitate our lines or run in a page. Code that shows such a text passes it through this module first: :func:`one_line`
for terminals, logs, events and conditions, :func:`html` for pages, :func:`json` for programs. The command line does so
in one place, :mod:`tessera.cli.base.console`.
"""

import math
import unicodedata
from collections.abc import Sequence

from tessera.limits import ECHOED

#: Unicode categories that steer a terminal, reorder what is read or have no agreed width: controls (C0, C1, DEL),
#: format characters (bidirectional overrides, zero-width joiners), surrogates, private use, line and paragraph ends.
_UNSAFE = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})
_ELLIPSIS = "…"

#: Bring back what was deleted of Tessera's own objects, as one word and as a step.
INSTALLATION = "`tessera install --reuse` or `helm upgrade`"
REINSTALL = "an administrator runs the installation again: tessera install --reuse, or helm upgrade"


def one_line(text: object, most: int = ECHOED) -> str:
    r"""``text`` as one printable line of at most ``most`` characters.

    Characters that steer a terminal become escapes as Python writes them (``\x1b``, ``\n``, ``\u202e``). A cut text
    ends in an ellipsis. Work is bounded by ``most``, however long the text is.
    """
    whole = text if isinstance(text, str) else str(text)
    start = whole[: most + 1]
    shown = start if start.isprintable() else "".join(_escape(each) for each in start)
    return shown if len(shown) <= most else shown[: max(most - 1, 0)] + _ELLIPSIS


def lines(text: object, most: int = ECHOED) -> list[str]:
    """:func:`one_line` of each line of a text that may have several: a table, a manifest, a traceback."""
    return [one_line(each, most) for each in str(text).split("\n")]


def json(document: str) -> str:
    r"""JSON in which every unsafe character is escaped as JSON escapes it (``\u202e``).

    Encoders escape no more than JSON demands, which leaves the second set of controls, DEL and bidirectional overrides.
    The meaning stays the same: outside of strings JSON has none of these but blanks and ends of lines.
    """
    if document.isascii() and "\x7f" not in document:
        return document
    return "".join(each if each in "\n\t\r" or not _is_unsafe(each) else _escape_json(each) for each in document)


def html(text: object, most: int = ECHOED) -> str:
    """:func:`one_line` with the characters escaped that mean something in HTML, attributes included."""
    import html as standard  # its table of names costs every command's start

    return standard.escape(one_line(text, most), quote=True)


# Words of messages and tables


def age(seconds: float) -> str:
    """A span of time as kubectl prints ages, in one unit: ``42s``, ``7m``, ``3h``, ``12d``."""
    whole = max(0, int(seconds))
    for size, unit in ((86400, "d"), (3600, "h"), (60, "m")):
        if whole >= 2 * size:
            return f"{whole // size}{unit}"
    return f"{whole}s"


def percent(share: float, digits: int = 0) -> str:
    """A share of 1 in percent: ``63%`` for 5/8. Halves are rounded up, as on the page; Python rounds them to even."""
    scale = 10.0**digits
    return f"{math.floor(share * 100 * scale + 0.5) / scale:.{digits}f}%"


def count_noun(number: int, noun: str) -> str:
    """``1 node``, ``2 nodes``; for nouns whose plural ends in s."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def list_alternatives(words: Sequence[str]) -> str:
    """``a``, ``a or b``, ``a, b or c``."""
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} or {words[-1]}"


def list_names(names: Sequence[str], most: int = 5, separator: str = ", ") -> str:
    """Names with a separator; after ``most`` of them only how many more there are: ``a, b and 3 more``."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return separator.join(names[:most]) + more


# Characters


def _escape(character: str) -> str:
    if not _is_unsafe(character):
        return character
    return character.encode("unicode_escape").decode("ascii")


def _is_unsafe(character: str) -> bool:
    return unicodedata.category(character) in _UNSAFE


def _escape_json(character: str) -> str:
    units = character.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[at] << 8 | units[at + 1]:04x}" for at in range(0, len(units), 2))


class UserError(Exception):
    """An error whose text names what is wrong and what to do next; a command prints it as one line and ends with 1."""
