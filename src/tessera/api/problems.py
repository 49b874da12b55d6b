"""Mistakes in files that people write, each with its path and the right content.

A reader takes values from a loaded document through a :class:`ProblemCollector`. It notes every mistake and goes on
with a harmless value, so one reading finds all mistakes of a file. A key that is not part of the format is refused,
with its path and the probable key, or the place where the key belongs. A quotation of the file in a message is short.

A path looks like this: ``sharing.timeSlicing.resources[0].replicas``; a key with a dot in it is quoted. This module
does not know the meaning of any format.
"""

import json
import re
import reprlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from difflib import get_close_matches
from typing import Any

import msgspec

from tessera.limits import KEY_SHOWN, SETTINGS_MISTAKES, VALUE_SHOWN
from tessera.text import list_alternatives


class Problem(msgspec.Struct, frozen=True, order=True):
    """One mistake.

    Attributes:
        path: its place in the file; empty for the whole file.
        text: the mistake, the rule, and the right content.
    """

    path: str
    text: str

    def __str__(self) -> str:
        return f"{self.path}: {self.text}" if self.path else self.text


class FileRefused(ValueError):  # noqa: N818 - says what happened to the file
    """Raised for a file with mistakes.

    Attributes:
        problems: all of them, in the order of the file.
    """

    def __init__(self, problems: Sequence[Problem]) -> None:
        self.problems = tuple(problems)
        super().__init__("; ".join(map(str, problems)))


class Notice(msgspec.Struct, frozen=True, order=True):
    """Something in a valid file that its author should know, for instance a setting without effect, and the reason."""

    path: str
    text: str

    def __str__(self) -> str:
        return f"{self.path}: {self.text}"


class ProblemCollector:
    """The mistakes found while one file is read.

    Args:
        places: the paths of all keys of the format, the usual ones first; ``[]`` ends the name of a list.
    """

    def __init__(self, places: Sequence[str] = ()) -> None:
        self.problems: list[Problem] = []
        self._places = places
        self._unlisted = 0

    def add(self, path: str, text: str) -> None:
        """Adds a mistake; reading goes on."""
        if len(self.problems) < SETTINGS_MISTAKES:
            self.problems.append(Problem(path, text))
        else:
            self._unlisted += 1

    def raise_problems(self) -> None:
        """Ends the reading.

        Raises:
            FileRefused: there was a mistake.
        """
        if self._unlisted:
            raise FileRefused([*self.problems, Problem("", f"{self._unlisted:,} more mistakes are not listed")])
        if self.problems:
            raise FileRefused(self.problems)

    def mapping(self, value: Any, path: str, known: Collection[str]) -> dict[str, Any]:
        """Returns a mapping with known keys; null counts as empty; notes unknown keys and leaves them out."""
        found = self.free_mapping(value, path)
        for key in [key for key in found if key not in known]:
            self.add(join_path(path, key), f"unknown; {suggest(key, known, self._places)}")
            del found[key]
        return found

    def free_mapping(self, value: Any, path: str) -> dict[str, Any]:
        """Returns a mapping whose keys are names that people chose."""
        if value is None:
            return {}
        if not isinstance(value, Mapping):
            self.add(path, f"must be a mapping of keys to values, not {quote_value(value)}")
            return {}
        found = {}
        for key, item in value.items():
            if isinstance(key, str):
                found[key] = item
            else:
                self.add(path, f"key {quote_value(key)} must be text; put it in quotes")
        return found

    def items(self, value: Any, path: str) -> Iterator[tuple[Any, str]]:
        """Yields the items of a list with their paths."""
        if value is None:
            return
        if not isinstance(value, list):
            self.add(path, f"must be a list, not {quote_value(value)}")
            return
        for number, item in enumerate(value):
            yield item, f"{path}[{number}]"

    def text(self, value: Any, path: str) -> str:
        """Returns a text; for any other value, notes the mistake and returns an empty text."""
        if isinstance(value, str):
            return value
        self.add(path, f"must be text, not {quote_value(value)}")
        return ""

    def boolean(self, value: Any, path: str) -> bool:
        """Returns true or false."""
        if isinstance(value, bool):
            return value
        self.add(path, f"must be true or false, not {quote_value(value)}")
        return False

    def integer(self, value: Any, path: str, least: int) -> int | None:
        """Returns a whole number of at least ``least``; for any other value, notes the mistake and returns ``None``.

        ``4.0`` is a whole number, as in JSON.
        """
        if isinstance(value, int | float) and not isinstance(value, bool) and value == value // 1:
            if value >= least:
                return int(value)
            self.add(path, f"must be {least} or more, not {quote_value(value)}")
        else:
            self.add(path, f"must be a whole number, not {quote_value(value)}")
        return None

    def choice(self, value: Any, path: str, allowed: Sequence[str]) -> str:
        """Returns one of a few words; for any other value, notes the mistake and returns the first word."""
        if isinstance(value, str) and value in allowed:
            return value
        close = _closest(value, allowed) if isinstance(value, str) else None
        hint = f"; did you mean {close}?" if close else ""
        self.add(path, f"must be {list_alternatives(allowed)}, not {quote_value(value)}{hint}")
        return allowed[0]


def join_path(path: str, key: str) -> str:
    """Returns the path of a key below a path; quotes a key that is more than a word."""
    key = shorten(key, KEY_SHOWN)
    plain = re.fullmatch(r"[A-Za-z0-9_-]+", key) is not None
    return f"{path}.{key}" if path and plain else f'{path}["{key}"]' if path else key


def suggest(key: str, known: Collection[str], places: Sequence[str] = ()) -> str:
    """Returns ``did you mean replicas?`` or, if no key is close, the known keys.

    Args:
        key: the unknown key.
        known: the keys that may stand where it stands.
        places: the paths of all keys of the format, as of a :class:`ProblemCollector`.
    """
    close = _closest(key, known, 0.8) or _find_place(key, places) or _closest(key, known)
    return f"did you mean {close}?" if close else f"the keys here are {', '.join(sorted(known))}"


def _find_place(key: str, places: Sequence[str]) -> str | None:
    """The path of a key of this name, or whose words are this name: ``mig.strategy`` for ``migStrategy``."""
    folded = _fold(key)
    same = [place for place in places if len(key) <= KEY_SHOWN and _fold(place.rpartition(".")[2]) == folded]
    whole = [place for place in places if _fold(place) == folded]
    return min(whole or same, key=lambda place: place.count("."), default=None)


def _fold(name: str) -> str:
    """A name as people compare it: ``MIG_STRATEGY`` and ``mig-strategy`` are ``migstrategy``."""
    return re.sub(r"[^0-9a-z]", "", name.casefold())


def quote_value(value: Any) -> str:
    """Returns a value as the file has it, shortened."""
    if value is None:
        return "nothing"
    text = ""
    try:
        for piece in json.JSONEncoder(default=str, check_circular=False).iterencode(value):
            text += piece
            if len(text) > VALUE_SHOWN:  # the rest may be endless
                break
    except (ValueError, TypeError):  # YAML can have keys that JSON has not
        text = reprlib.repr(value)
    return shorten(text, VALUE_SHOWN)


def shorten(text: str, most: int) -> str:
    """Cuts a text to this length; an ellipsis marks the cut."""
    return text if len(text) <= most else text[: most - 3] + "..."


def _closest(word: str, known: Collection[str], cutoff: float = 0.6) -> str | None:
    if len(word) > KEY_SHOWN:
        return None
    folded = {_fold(each): each for each in known}
    close = get_close_matches(_fold(word), folded, n=1, cutoff=cutoff)
    return folded[close[0]] if close else None
