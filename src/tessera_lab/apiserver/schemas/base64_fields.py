"""Fields of bytes: base64 in JSON, and where a text is not, in Go's words (``encoding/base64``). Pure."""

import re

#: Bytes that Go skips wherever they stand.
_LINES = re.compile(r"[\r\n]+")
_GOOD = re.compile(r"(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?")
_LETTERS = re.compile(r"[A-Za-z0-9+/\r\n]*")
_QUANTUM = 4


def is_base64(text: str) -> bool:
    """Whether a field of bytes may hold the text."""
    return _GOOD.fullmatch(_LINES.sub("", text) if "\n" in text or "\r" in text else text) is not None


def base64_flaw(text: str) -> str:
    """What Go says of a text that is not base64; empty for one that is."""
    return "" if is_base64(text) else f"illegal base64 data at input byte {_flaw(text)}"


def _flaw(text: str) -> int:
    """The byte at which Go stops."""
    data = text.encode()
    letters = _LETTERS.match(text)
    assert letters is not None  # the empty text matches
    stop = letters.end()
    over = sum(each not in b"\r\n" for each in data[:stop]) % _QUANTUM
    if stop == len(data):
        return stop - over
    if data[stop : stop + 1] != b"=" or over < _QUANTUM // 2:
        return stop
    missing = _QUANTUM - over
    for _ in range(missing):
        while data[stop : stop + 1] in {b"\r", b"\n"}:
            stop += 1
        if stop == len(data):
            return stop
        if data[stop : stop + 1] != b"=":
            return stop - 1
        stop += 1
    while data[stop : stop + 1] in {b"\r", b"\n"}:
        stop += 1
    return stop
