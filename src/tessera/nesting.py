"""JSON of no known shape that others write: bounds how deep it nests.

A decoder with a type makes no value that its type lacks, however deep a text nests. One without a type makes them all,
and whoever walks such a value by recursion fails at the deepest one. Python 3.11 stopped the decoder at some 900
levels; later ones take as many as fit into the stack. So JSON without a type is decoded here, with one bound. It is
apart from :mod:`tessera.text`, which the start of the command line loads: that loads no library but click.
"""

import re
from typing import Any

import msgspec

#: Most levels that are read. No kind of Kubernetes nests half as deep; its API server takes 10,000 levels.
NESTING = 128

#: A whole text, or the beginning or end of a level.
_TEXT_OR_BRACKET = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"|[{}\[\]]', re.DOTALL)
_BRACKETS_IN_TEXT = re.compile(rb'"[^"]*"')
_BRACES = bytes.maketrans(b"[]", b"{}")
_OTHERS = bytes(set(range(256)) - set(b'[]{}"'))
_NOT_OPENING = bytes(set(range(256)) - set(b"[{"))
_REPLACEMENT = b'"nested too deep, %d levels are read"' % NESTING


class TooDeepError(msgspec.DecodeError):
    """JSON nests deeper than :data:`NESTING`."""

    def __init__(self) -> None:
        super().__init__(f"nested too deeply: {NESTING} levels are read")


def decode_json(text: bytes | str | msgspec.Raw, kind: Any = Any) -> Any:
    """Decodes JSON whose shape is not known, or known at its top alone.

    Args:
        text: the JSON.
        kind: the type of the value, such as ``dict[str, Any]``.

    Raises:
        msgspec.DecodeError: it is no JSON, or not of the type.
        TooDeepError: it nests deeper than :data:`NESTING`; a DecodeError too.
        UnicodeDecodeError: it is no UTF-8.
        UnicodeEncodeError: it has half a character.
    """
    try:
        found = msgspec.json.decode(text, type=kind)
    except RecursionError:
        raise TooDeepError from None
    if nests_deep(text.encode() if isinstance(text, str) else text):
        raise TooDeepError
    return found


def nests_deep(body: bytes | msgspec.Raw) -> bool:
    """Whether JSON nests deeper than :data:`NESTING`; of a text that is no JSON it may say either."""
    body = bytes(body)
    if len(body.translate(None, _NOT_OPENING)) <= NESTING:  # several times as fast as to count the two
        return False
    if b"\\" in body:  # without escaped quotes, each quote begins or ends a text
        body = body.replace(rb"\\", b"").replace(rb"\"", b"")
    braces = _BRACKETS_IN_TEXT.sub(b"", body.translate(_BRACES, _OTHERS).replace(b'""', b""))
    for _ in range(NESTING):  # each time without the innermost levels
        if not braces:
            return False
        braces = braces.replace(b"{}", b"")
    return bool(braces)


def cut_nesting(body: bytes) -> bytes:
    """Returns the same JSON with a text in place of each too deep object and array."""
    if not nests_deep(body):
        return body
    pieces, depth, begin = [], 0, 0
    for level in _TEXT_OR_BRACKET.finditer(body):
        if level[0] in (b"{", b"["):
            depth += 1
            if depth == NESTING + 1:
                pieces.append(body[begin : level.start()])
                pieces.append(_REPLACEMENT)
        elif level[0] in (b"}", b"]"):
            if depth == NESTING + 1:
                begin = level.end()
            depth -= 1
    pieces.append(body[begin:] if depth <= NESTING else b"")
    return b"".join(pieces)
