"""Reads files that people write: YAML or JSON, strictly; reports every mistake with its path.

NVIDIA's tools ignore unknown keys, so ``replica: 4`` there means no sharing and no message. Rules here:

- a key that is not part of the format is refused, with its path and the probable key;
- a duplicate key is refused: YAML would keep the last one silently;
- all mistakes of a file are found in one reading, not one per attempt;
- the loaded document is about as large as the file: aliases for repeated parts (``&a``, ``*a``) may add a megabyte, and
  no part may contain itself, so any reader may walk the whole document;
- a quotation of the file in a message is short;
- ``1:0`` is text, as in the YAML that Kubernetes reads, and not sixty as in YAML 1.1; so is a number of more than 20
  characters.

A path looks like this: ``sharing.timeSlicing.resources[0].replicas``; a key with a dot in it is quoted. This module
does not know the meaning of any format.
"""

import json
import re
import reprlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from difflib import get_close_matches
from typing import Any

import msgspec

from tessera.limits.messages import KEY_SHOWN, VALUE_SHOWN, YAML_FAULT_SHOWN
from tessera.limits.settings import SETTINGS_MISTAKES, SETTINGS_REPEATED, SETTINGS_TEXT, SETTINGS_VALUES
from tessera.phrasing import list_alternatives


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
    """The mistakes found while one file is read."""

    def __init__(self) -> None:
        self.problems: list[Problem] = []
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
            self.add(join_path(path, key), f"unknown; {suggest(key, known)}")
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
        """Returns a whole number of at least ``least``; for any other value, notes the mistake and returns ``None``."""
        if isinstance(value, int) and not isinstance(value, bool):
            if value >= least:
                return value
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


def load_document(text: str, *, limited: bool = True) -> Any:
    """Returns the document in a file; ``None`` for an empty file.

    Args:
        text: the file's content.
        limited: True for a file of settings, which others may write; False for a user's own measurements.

    Raises:
        FileRefused: neither YAML nor JSON, more than one document, a duplicate key, or over a limit.
    """
    documents = load_documents(text, limited=limited)
    if len(documents) > 1:
        raise FileRefused([Problem("", f"holds {len(documents)} documents; write one, without '---'")])
    return documents[0] if documents else None


def load_documents(text: str, *, limited: bool = True) -> list[Any]:
    """Returns the documents in a file, separated by ``---``; leaves out empty ones.

    Args:
        text: the file's content.
        limited: as for :func:`load_document`.

    Raises:
        FileRefused: neither YAML nor JSON, a duplicate key, or over a limit.
    """
    if limited and len(text) > SETTINGS_TEXT:
        raise FileRefused([Problem("", f"has {len(text):,} characters; a file of settings has {SETTINGS_TEXT}")])
    try:
        return [each for each in _documents(text, SETTINGS_VALUES if limited else None) if each is not None]
    except FileRefused:
        raise
    except RecursionError as error:
        raise FileRefused([Problem("", "is nested too deeply to be read")]) from error
    except (ValueError, OverflowError) as error:  # values that Python cannot make, such as the number 0x_
        raise FileRefused([Problem("", f"not YAML: {_shorten(str(error), YAML_FAULT_SHOWN)}")]) from error


def _documents(text: str, most: int | None) -> list[Any]:
    if text.lstrip().startswith("{"):
        with suppress(json.JSONDecodeError):  # YAML allows a little more between braces, and its errors name the line
            document = json.loads(text, object_pairs_hook=_unique)
            if most is not None and _more_than(most, document):
                raise _too_many()
            return [document]
    import yaml

    try:
        return list(yaml.load_all(text, Loader=_loader(most)))
    except yaml.YAMLError as error:
        raise FileRefused(
            [Problem("", f"not YAML: {_shorten(' '.join(str(error).split()), YAML_FAULT_SHOWN)}")]
        ) from error


def _more_than(most: int, document: Any) -> bool:
    """True if a document has more keys and values than ``most``."""
    count, waiting = 0, [document]
    while waiting and count <= most:
        value = waiting.pop()
        if isinstance(value, Mapping):
            count += len(value)
            waiting.extend(value.values())
        elif isinstance(value, list):
            waiting.extend(value)
        count += 1
    return count > most


def _too_many() -> FileRefused:
    return FileRefused([Problem("", f"has too many keys and values; a file of settings has {SETTINGS_VALUES}")])


def join_path(path: str, key: str) -> str:
    """Returns the path of a key below a path; quotes a key that is more than a word."""
    key = _shorten(key, KEY_SHOWN)
    plain = re.fullmatch(r"[A-Za-z0-9_-]+", key) is not None
    return f"{path}.{key}" if path and plain else f'{path}["{key}"]' if path else key


def suggest(key: str, known: Collection[str]) -> str:
    """Returns ``did you mean replicas?`` or, if no key is close, the known keys."""
    close = _closest(key, known)
    return f"did you mean {close}?" if close else f"the keys here are {', '.join(sorted(known))}"


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
    return _shorten(text, VALUE_SHOWN)


def _shorten(text: str, most: int) -> str:
    return text if len(text) <= most else text[: most - 3] + "..."


def _closest(word: str, known: Collection[str]) -> str | None:
    if len(word) > KEY_SHOWN:
        return None
    folded = {each.casefold(): each for each in known}
    close = get_close_matches(word.casefold(), folded, n=1, cutoff=0.6)
    return folded[close[0]] if close else None


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise FileRefused([Problem("", f"key {quote_value(key)} stands twice in one mapping; keep one")])
        found[key] = value
    return found


def _loader(most: int | None) -> Any:
    """Returns a YAML reader without base-60 numbers and silent duplicates; imports PyYAML late, as it is slow.

    Args:
        most: limit on keys and values; None for no limit.
    """
    import yaml

    class Strict(yaml.SafeLoader):
        """Plain values only, whole numbers in decimal, octal and hexadecimal."""

        # PyYAML's table of patterns by first character, without those for dates and base-60 numbers.
        yaml_implicit_resolvers = {  # noqa: RUF012 - the name and shape are PyYAML's
            first: [
                (tag, _WHOLE if tag.endswith(":int") else _FLOAT if tag.endswith(":float") else pattern)
                for tag, pattern in rows
                if not tag.endswith(":timestamp")
            ]
            for first, rows in yaml.SafeLoader.yaml_implicit_resolvers.items()
        }

        def __init__(self, stream: str) -> None:
            super().__init__(stream)
            self._size = 0
            self._sizes: dict[Any, int] = {}
            self._repeated = 0
            self._parts = 0

        def compose_node(self, parent: Any, index: Any) -> Any:
            """Measures one part of the file before a value is made of it."""
            self._parts += 1
            if most is not None and self._parts > most:
                raise _too_many()
            event: Any = self.peek_event()  # type: ignore[no-untyped-call]  # the stubs say nothing of it
            before = self._size
            if getattr(event, "tag", None) not in _TAGS:
                raise _at(
                    event,
                    f"tag {_shorten(event.tag.replace(_YAMLS, '!!'), VALUE_SHOWN)} says what a value is; leave it out",
                )
            node = super().compose_node(parent, index)
            if isinstance(event, yaml.AliasEvent):
                self._repeat(event, node)
                return node
            self._size += 1 + (len(node.value) if isinstance(node, yaml.ScalarNode) else 0)
            if event.anchor is not None:
                self._sizes[node] = self._size - before
            if isinstance(node, yaml.MappingNode):
                _check_keys(node)
            return node

        def _repeat(self, event: Any, node: Any) -> None:
            if node not in self._sizes:
                raise _at(event, f"*{_shorten(event.anchor, VALUE_SHOWN)} holds itself")
            self._size += self._sizes[node]
            self._repeated += self._sizes[node]
            if self._repeated > SETTINGS_REPEATED:
                name = _shorten(event.anchor, VALUE_SHOWN)
                text = f"names such as *{name} repeat too much: {SETTINGS_REPEATED} are allowed; write what is meant"
                raise _at(event, text)

    return Strict


def _check_keys(node: Any) -> None:
    """Refuses a duplicate key; checked early, since ``<<`` later adds keys that may also be present."""
    seen = set()
    for key, _ in node.value:
        if not isinstance(key.value, str):
            continue
        if key.value in seen:
            raise _at(key, f"key {quote_value(key.value)} stands twice in one mapping; keep one")
        seen.add(key.value)


def _at(place: Any, text: str) -> FileRefused:
    return FileRefused([Problem("", f"line {place.start_mark.line + 1}: {text}")])


_YAMLS = "tag:yaml.org,2002:"
#: Allowed tags. With others PyYAML would make numbers and dates of other texts, or they are application-specific.
_TAGS = frozenset([None, *(f"{_YAMLS}{each}" for each in ("str", "binary", "map", "seq"))])
#: Short, since Python keeps all whole numbers that are alike modulo 2^61 - 1 in one place of a mapping.
_WHOLE = re.compile(r"^(?=.{1,20}$)(?:[-+]?0b[01_]+|[-+]?0o?[0-7_]+|[-+]?(?:0|[1-9][0-9_]*)|[-+]?0x[0-9a-fA-F_]+)$")
_FLOAT = re.compile(
    r"^(?:[-+]?[0-9][0-9_]*\.[0-9_]*(?:[eE][-+]?[0-9]+)?|[-+]?\.[0-9][0-9_]*|[-+]?\.(?:inf|Inf)|\.nan)$"
)
