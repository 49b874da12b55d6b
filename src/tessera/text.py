"""Text of others, made safe to show.

Names, annotations, messages and labels come from tenants and nodes. Printed raw, they can clear a reader's terminal,
forge lines of ours or run in a page. Whatever shows such a text passes it through here first: :func:`one_line` for
terminals, logs, events and conditions, :func:`html` for pages.
"""

import html as _html
import unicodedata

from tessera.limits import ECHOED

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
    shown = "".join(_escaped(each) for each in start)
    return shown if len(shown) <= most else shown[: max(most - 1, 0)] + _ELLIPSIS


def html(text: object, most: int = ECHOED) -> str:
    """:func:`one_line` with the characters escaped that mean something in HTML, attributes included."""
    return _html.escape(one_line(text, most), quote=True)


def _escaped(character: str) -> str:
    if unicodedata.category(character) not in _UNSAFE:
        return character
    return character.encode("unicode_escape").decode("ascii")
