"""String formats of OpenAPI schemas, and fields of bytes, as kube-apiserver reads them. Pure.

A format that Kubernetes does not know is ignored, as kube-apiserver does. Bytes are base64 in JSON; the messages about
wrong base64 are those of Go's ``encoding/base64``.
"""

import base64
import binascii
import ipaddress
import re
from collections.abc import Callable, Mapping
from datetime import date

from tessera.clock import parse_rfc3339

_HOSTNAME = re.compile(r"^(?=.{1,255}$)[A-Za-z0-9]([A-Za-z0-9-]{0,62})?(\.[A-Za-z0-9]([A-Za-z0-9-]{0,62})?)*\.?$")
_UUID = re.compile(r"(?i)^[0-9a-f]{8}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{12}$")
_EMAIL = re.compile(r"^[^@\s]+@[^@\s]+$")
_MAC = re.compile(r"(?i)^[0-9a-f]{2}([:-][0-9a-f]{2}){5}$")
_DURATION = re.compile(
    r"^[+-]?((\d+(\.\d*)?|\.\d+)(ns|us|µs|ms|s|m|h|d|w|hr|hour|hours|min|minutes|sec|seconds|days|weeks))+$"
)
_URI = re.compile(r"^([A-Za-z][A-Za-z0-9+.-]*:.+|/.*)$")


def _raises(parse: Callable[[str], object]) -> Callable[[str], bool]:
    def fits(text: str) -> bool:
        try:
            parse(text)
        except (ValueError, binascii.Error):
            return False
        return True

    return fits


def _matches(pattern: re.Pattern[str]) -> Callable[[str], bool]:
    return lambda text: pattern.match(text) is not None


def _date_time(text: str) -> None:
    if "T" not in text.upper():
        raise ValueError(text)
    parse_rfc3339(text)


FORMATS: Mapping[str, Callable[[str], bool]] = {
    "byte": _raises(lambda text: base64.b64decode(text, validate=True)),
    "cidr": _raises(lambda text: ipaddress.ip_network(text, strict=False) if "/" in text else int("")),
    "date": _raises(date.fromisoformat),
    "date-time": _raises(_date_time),
    "datetime": _raises(_date_time),
    "duration": _matches(_DURATION),
    "email": _matches(_EMAIL),
    "hostname": _matches(_HOSTNAME),
    "ipv4": _raises(ipaddress.IPv4Address),
    "ipv6": _raises(ipaddress.IPv6Address),
    "mac": _matches(_MAC),
    "uri": _matches(_URI),
    "uuid": _matches(_UUID),
}


def matches_format(kind: str, text: str) -> bool:
    """True if the text has the format; true for formats that Kubernetes does not check."""
    check = FORMATS.get(kind)
    return check is None or check(text)


#: Bytes that Go skips anywhere in base64.
_LINES = re.compile(r"[\r\n]+")
_GOOD = re.compile(r"(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?")
_LETTERS = re.compile(r"[A-Za-z0-9+/\r\n]*")
_QUANTUM = 4


def is_base64(text: str) -> bool:
    """True if the text is valid base64 for a field of bytes."""
    return _GOOD.fullmatch(_LINES.sub("", text) if "\n" in text or "\r" in text else text) is not None


def describe_base64_error(text: str) -> str:
    """Returns Go's error about a text that is not base64; empty if it is base64."""
    return "" if is_base64(text) else f"illegal base64 data at input byte {_flaw(text)}"


def _flaw(text: str) -> int:
    """Returns the index of the byte at which Go stops."""
    data = text.encode()
    letters = _LETTERS.match(text)
    assert letters is not None  # the pattern also matches the empty text
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
