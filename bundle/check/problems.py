"""What a rule finds."""

from collections.abc import Callable, Iterator
from typing import NamedTuple

from bundle.check.reading import Bundle

ERROR, WARNING = "error", "warning"


class Problem(NamedTuple):
    """One finding.

    Attributes:
        level: :data:`ERROR` or :data:`WARNING`.
        text: the field, its value, the rule.
    """

    level: str
    text: str


#: A rule, named by what holds.
Rule = Callable[[Bundle], Iterator[Problem]]


def error(text: str) -> Problem:
    """A finding for which catalogues refuse a bundle."""
    return Problem(ERROR, text)


def warning(text: str) -> Problem:
    """A finding that reviewers ask about."""
    return Problem(WARNING, text)
