"""What the examination found."""

from collections.abc import Sequence
from enum import Enum

import msgspec


class Verdict(Enum):
    """How a check ended; the order is that of its importance.

    Attributes:
        ERROR: something does not work, or will not.
        WARNING: it works with a restriction that somebody should know.
        UNKNOWN: the asker lacks a right, or the cluster did not answer.
        OK: as it should be.
    """

    ERROR = "error"
    WARNING = "warning"
    UNKNOWN = "unknown"
    OK = "ok"


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """The result of one check.

    Attributes:
        check: the name of the check, the same in each version.
        verdict: how it ended.
        text: what was found.
        advice: what to do; empty if nothing is to be done.
        objects: the objects that it is about, as ``node/NAME``.
    """

    check: str
    verdict: Verdict
    text: str
    advice: str = ""
    objects: tuple[str, ...] = ()


def ok(check: str, text: str) -> Finding:
    """A finding about something that is as it should be."""
    return Finding(check=check, verdict=Verdict.OK, text=text)


def error(check: str, text: str, advice: str, objects: Sequence[str] = ()) -> Finding:
    """A finding about something that does not work."""
    return Finding(check=check, verdict=Verdict.ERROR, text=text, advice=advice, objects=tuple(objects))


def warning(check: str, text: str, advice: str, objects: Sequence[str] = ()) -> Finding:
    """A finding about a restriction."""
    return Finding(check=check, verdict=Verdict.WARNING, text=text, advice=advice, objects=tuple(objects))


def unknown(check: str, text: str, advice: str = "") -> Finding:
    """A finding about something that could not be examined."""
    return Finding(check=check, verdict=Verdict.UNKNOWN, text=text, advice=advice)
