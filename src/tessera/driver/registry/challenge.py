"""What a registry asks for with 401: the ``WWW-Authenticate`` header, and whether a token server may be told secrets.

Pure. The header's grammar is RFC 9110, 11.6.1: schemes with parameters, several in one header or in several.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from urllib.parse import urlsplit

import msgspec

from tessera.limits import CHALLENGE

_TOKEN = r"[!#$%&'*+.^_`|~0-9A-Za-z-]+"  # noqa: S105 - a word of the grammar
_PARAMETER = re.compile(rf'({_TOKEN})\s*=\s*(?:"((?:[^"\\]|\\.)*)"|({_TOKEN}))\s*(?:,\s*|$)')
_SCHEME = re.compile(rf"({_TOKEN})(?:\s+|\s*,\s*|$)")
_ESCAPED = re.compile(r"\\(.)")


class Challenge(msgspec.Struct, frozen=True, kw_only=True):
    """One way to say who one is.

    Attributes:
        scheme: ``bearer`` or ``basic``, in lower case; others are not known here.
        parameters: names in lower case: realm, service, scope, error.
    """

    scheme: str
    parameters: Mapping[str, str]


def challenges(headers: Iterable[str]) -> tuple[Challenge, ...]:
    """All challenges of an answer's headers, in order; what cannot be read ends its header."""
    return tuple(each for header in headers for each in _of_header(header[:CHALLENGE]))


def chosen(found: Iterable[Challenge]) -> Challenge | None:
    """The one that is answered: a token before a password, since a token is worth less to a thief."""
    known = [each for each in found if each.scheme in ("bearer", "basic")]
    return min(known, key=lambda each: each.scheme != "bearer", default=None)


def may_be_told(realm: str, registry: str, *, plain: bool) -> bool:
    """Whether a token server may get what proves who we are.

    A registry names its token server itself, so it could name any. Over TLS that is what the protocol asks for; over
    plain HTTP secrets go only to the registry's own host, and only if that is asked over plain HTTP as well.

    Args:
        realm: the token server's URL.
        registry: host of the registry, with its port.
        plain: the registry is asked over plain HTTP.
    """
    try:
        parts = urlsplit(realm)
        own = urlsplit(f"//{registry}").hostname
    except ValueError:
        return False
    return parts.scheme == "https" or (plain and parts.scheme == "http" and parts.hostname == own)


def _of_header(header: str) -> Iterator[Challenge]:
    rest = header.strip()
    while rest and (scheme := _SCHEME.match(rest)):
        rest = rest[scheme.end() :]
        parameters: dict[str, str] = {}
        while found := _PARAMETER.match(rest):
            value = found[3] if found[2] is None else _ESCAPED.sub(r"\1", found[2])
            parameters.setdefault(found[1].lower(), value)
            rest = rest[found.end() :]
        yield Challenge(scheme=scheme[1].lower(), parameters=parameters)
