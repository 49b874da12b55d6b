"""Loads files that people write: YAML or JSON, strictly.

NVIDIA's tools ignore unknown keys, so ``replica: 4`` there means no sharing and no message. Here
:mod:`tessera.api.problems` refuses them. Rules of loading:

- a duplicate key is refused; in a file that Helm or NVIDIA's programs read too it is noted, as they keep the last one;
- the loaded document is about as large as the file: aliases for repeated parts (``&a``, ``*a``) may add a megabyte, and
  no part may contain itself, so any reader may walk the whole document;
- ``1:0`` is text, as in the YAML that Kubernetes reads, and not sixty as in YAML 1.1; so is a number of more than 20
  characters.
"""

import json
import re
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

import msgspec

from tessera.api.problems import FileRefused, Notice, Problem, quote_value, shorten
from tessera.limits import SETTINGS_MISTAKES, SETTINGS_REPEATED, SETTINGS_TEXT, SETTINGS_VALUES, VALUE_SHOWN
from tessera.nesting import NESTING, nests_deep
from tessera.text import one_line

#: Most characters: the YAML reader's message about a file. A reader's longest explanation fits; it repeats lines of the
#: file.
YAML_FAULT_SHOWN = 1_000

T = TypeVar("T")

#: A part of a path in an error of msgspec; entries of mappings with free keys have no name there.
_PATH_PART = re.compile(r"\.(\w+)|\[(?:(\d+)|(\.\.\.))\]")


def convert_document(text: str, kind: type[T], where: str) -> T:
    """Reads a file of settings into a struct; an empty file is one without keys.

    Args:
        text: the file's content.
        kind: the struct.
        where: the file's name in messages.

    Raises:
        ValueError: the text names the first mistake: field, value and rule.
    """
    document: Any = None
    try:
        document = load_document(text)
        return msgspec.convert({} if document is None else document, kind)
    except FileRefused as error:
        raise ValueError(f"{where}: {one_line(error)}") from None
    except msgspec.ValidationError as error:
        raise ValueError(f"{where}: {one_line(error)}{_stated(document, str(error))}; correct the file") from None


def _stated(document: Any, error: str) -> str:
    """The value to which an error's path leads, as ``: 65``; empty for a list or mapping, or if a part has no name."""
    value = document
    for key, number, nameless in _PATH_PART.findall(error.partition(" - at `$")[2]):
        if nameless:
            return ""
        value = value[key] if key else value[int(number)]
    return "" if isinstance(value, dict | list) else f": {quote_value(value)}"


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


def first_document(text: str) -> tuple[Any, tuple[Notice, ...]]:
    """Returns the first document of a file of settings, and a notice on further ones, which NVIDIA's programs ignore.

    Raises:
        FileRefused: as for :func:`load_documents`.
    """
    notices: list[Notice] = []
    documents = load_documents(text, repeated=notices)
    more = f"holds {len(documents)} documents between '---'; only the first one counts, as with NVIDIA's programs"
    if len(documents) > 1:
        notices.append(Notice("file", more))
    return documents[0] if documents else None, tuple(notices)


def load_documents(text: str, *, limited: bool = True, repeated: list[Notice] | None = None) -> list[Any]:
    """Returns the documents in a file, separated by ``---``; leaves out empty ones.

    Args:
        text: the file's content.
        limited: as for :func:`load_document`.
        repeated: receives notices on duplicate keys, of which the last one counts; without it they are refused.

    Raises:
        FileRefused: neither YAML nor JSON, a duplicate key, or over a limit.
    """
    if limited and len(text) > SETTINGS_TEXT:
        raise FileRefused([Problem("", f"has {len(text):,} characters; a file of settings has {SETTINGS_TEXT}")])
    try:
        return [each for each in _documents(text, SETTINGS_VALUES if limited else None, repeated) if each is not None]
    except FileRefused:
        raise
    except RecursionError:
        raise _too_deep() from None
    except (ValueError, OverflowError) as error:  # values that Python cannot make, such as the number 0x_
        raise FileRefused([Problem("", f"not YAML: {shorten(str(error), YAML_FAULT_SHOWN)}")]) from error


def _documents(text: str, most: int | None, repeated: list[Notice] | None) -> list[Any]:
    if text.lstrip().startswith("{"):
        with suppress(json.JSONDecodeError):  # YAML allows a little more between braces, and its errors name the line
            document = json.loads(text, object_pairs_hook=partial(_unique, repeated))
            if nests_deep(text.encode(errors="replace")):
                raise _too_deep()
            if most is not None and _more_than(most, document):
                raise _too_many()
            return [document]
    import yaml

    try:
        return list(yaml.load_all(text, Loader=_make_loader(most, repeated)))
    except yaml.YAMLError as error:
        raise FileRefused(
            [Problem("", f"not YAML: {shorten(' '.join(str(error).split()), YAML_FAULT_SHOWN)}")]
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


def _too_deep() -> FileRefused:
    return FileRefused([Problem("", f"is nested too deeply to be read: {NESTING} levels are")])


def _too_many() -> FileRefused:
    return FileRefused([Problem("", f"has too many keys and values; a file of settings has {SETTINGS_VALUES}")])


def _unique(repeated: list[Notice] | None, pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            _repeat_key(key, "file", repeated)
        found[key] = value
    return found


def _repeat_key(key: str, place: str, repeated: list[Notice] | None) -> None:
    """Notes or refuses a duplicate key."""
    text = f"key {quote_value(key)} stands twice in one mapping"
    if repeated is None or key == "<<":
        raise FileRefused([Problem("" if place == "file" else place, f"{text}; keep one")])
    if len(repeated) < SETTINGS_MISTAKES:
        repeated.append(Notice(place, f"{text}; the last one counts, as with Helm and NVIDIA's programs"))


def _make_loader(most: int | None, repeated: list[Notice] | None) -> Any:
    """Returns a YAML reader without base-60 numbers and silent duplicates; imports PyYAML late, as it is slow.

    Args:
        most: limit on keys and values; None for no limit.
        repeated: as for :func:`load_documents`.
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
                raise _refuse_at(
                    event,
                    f"tag {shorten(event.tag.replace(_YAMLS, '!!'), VALUE_SHOWN)} says what a value is; leave it out",
                )
            node = super().compose_node(parent, index)
            if isinstance(event, yaml.AliasEvent):
                self._repeat(event, node)
                return node
            self._size += 1 + (len(node.value) if isinstance(node, yaml.ScalarNode) else 0)
            if event.anchor is not None:
                self._sizes[node] = self._size - before
            if isinstance(node, yaml.MappingNode):
                _check_keys(node, repeated)
            return node

        def _repeat(self, event: Any, node: Any) -> None:
            if node not in self._sizes:
                raise _refuse_at(event, f"*{shorten(event.anchor, VALUE_SHOWN)} holds itself")
            self._size += self._sizes[node]
            self._repeated += self._sizes[node]
            if self._repeated > SETTINGS_REPEATED:
                name = shorten(event.anchor, VALUE_SHOWN)
                text = f"names such as *{name} repeat too much: {SETTINGS_REPEATED} are allowed; write what is meant"
                raise _refuse_at(event, text)

    return Strict


def _check_keys(node: Any, repeated: list[Notice] | None) -> None:
    """Notes or refuses a duplicate key; checked early, since ``<<`` later adds keys that may also be present."""
    seen = set()
    for key, _ in node.value:
        if not isinstance(key.value, str):
            continue
        if key.value in seen:
            _repeat_key(key.value, f"line {key.start_mark.line + 1}", repeated)
        seen.add(key.value)


def _refuse_at(place: Any, text: str) -> FileRefused:
    return FileRefused([Problem("", f"line {place.start_mark.line + 1}: {text}")])


_YAMLS = "tag:yaml.org,2002:"
#: Allowed tags. With others PyYAML would make numbers and dates of other texts, or they are application-specific.
_TAGS = frozenset([None, *(f"{_YAMLS}{each}" for each in ("str", "binary", "map", "seq"))])
#: Short, since Python keeps all whole numbers that are alike modulo 2^61 - 1 in one place of a mapping.
_WHOLE = re.compile(r"^(?=.{1,20}$)(?:[-+]?0b[01_]+|[-+]?0o?[0-7_]+|[-+]?(?:0|[1-9][0-9_]*)|[-+]?0x[0-9a-fA-F_]+)$")
_FLOAT = re.compile(
    r"^(?:[-+]?[0-9][0-9_]*\.[0-9_]*(?:[eE][-+]?[0-9]+)?|[-+]?\.[0-9][0-9_]*|[-+]?\.(?:inf|Inf)|\.nan)$"
)
