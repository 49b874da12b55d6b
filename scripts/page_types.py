"""Writes the live page's types: the documents of the feed in TypeScript, from those that Python makes.

    python scripts/page_types.py > web/src/documents.ts

Each struct that a document holds becomes an interface; a field that Python leaves out at its default may be missing.
Comments are those of the structs.
"""

import inspect
import re
import textwrap
from collections.abc import Iterator, Mapping
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

import msgspec

from tessera.dashboard import documents
from tessera.dashboard.past import PastDocument

#: Names on the page that differ from those in Python: TypeScript has others of these names.
NAMES = {
    "HistoryDocument": "FleetHistory",
    "NodeDocument": "NodeState",
    "PromiseDocument": "PodPromise",
    "ServiceRow": "Service",
    "SpareSlices": "Spare",
}
HEAD = "// Made by scripts/page_types.py from the documents of Python. A value that was not measured is missing."


def page_types() -> str:
    """Returns the text of ``web/src/documents.ts``."""
    found: dict[type[msgspec.Struct], None] = {}
    for each in (*get_args(documents.Document), PastDocument):
        _collect(each, found)
    return "\n\n".join([HEAD, *("\n".join(_interface(each)) for each in found)]) + "\n"


def _collect(kind: Any, found: dict[type[msgspec.Struct], None]) -> None:
    """Adds the structs that a type holds, the inner ones first."""
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        for hint in get_type_hints(kind).values():
            _collect(hint, found)
        found.setdefault(kind)
    for each in get_args(kind):
        _collect(each, found)


def _interface(kind: type[msgspec.Struct]) -> Iterator[str]:
    summary, about = _comments(kind)
    hints = get_type_hints(kind)
    yield from _comment(summary, "")
    yield f"export interface {name_of(kind)} {{"
    for field in msgspec.structs.fields(kind):
        missing = kind.__struct_config__.omit_defaults and not field.required
        yield from _comment(about.get(field.name, ""), "  ")
        yield f"  {field.encode_name}{'?' if missing else ''}: {_type(_present(hints[field.name], missing))};"
    yield "}"


def name_of(kind: type[msgspec.Struct]) -> str:
    """The name of a struct on the page."""
    return NAMES.get(kind.__name__, kind.__name__.removesuffix("Document"))


def _comments(kind: type[msgspec.Struct]) -> tuple[str, Mapping[str, str]]:
    """The first sentences of a struct's docstring, and those about its fields."""
    summary, _, attributes = inspect.getdoc(kind).partition("\nAttributes:\n")  # type: ignore[union-attr]
    parts = re.split(r"^    (\w+): ", attributes, flags=re.MULTILINE)[1:]
    return _plain(summary), {name: _plain(text) for name, text in zip(parts[::2], parts[1::2], strict=True)}


def _plain(text: str) -> str:
    """A comment without the marks of Sphinx."""
    plain = re.sub(r":\w+:`([^`]*)`", r"\1", " ".join(text.split())).replace("``", "`")
    return plain[:1].upper() + plain[1:]


def _comment(text: str, indent: str) -> Iterator[str]:
    if not text:
        return
    if len(line := f"{indent}/** {text} */") <= 120:
        yield line
        return
    yield f"{indent}/**"
    yield from textwrap.wrap(text, 120, initial_indent=f"{indent} * ", subsequent_indent=f"{indent} * ")
    yield f"{indent} */"


def _present(hint: Any, missing: bool) -> Any:
    """The type of a field that is there: one that is left out at its default is never null."""
    return hint if not missing else Union[tuple(each for each in _parts(hint) if each is not NoneType)]  # noqa: UP007


def _parts(hint: Any) -> tuple[Any, ...]:
    return get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)


def _type(hint: Any) -> str:
    arguments, origin = get_args(hint), get_origin(hint)
    if origin in (Union, UnionType):
        return " | ".join(dict.fromkeys(map(_type, arguments)))
    if origin is tuple:
        inner = _type(arguments[0])
        return f"({inner})[]" if " " in inner else f"{inner}[]"
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return f"Record<{_type(arguments[0])}, {_type(arguments[1])}>"
    if isinstance(hint, type) and issubclass(hint, msgspec.Struct):
        return name_of(hint)
    return {str: "string", bool: "boolean", int: "number", float: "number", NoneType: "null"}[hint]


if __name__ == "__main__":
    print(page_types(), end="")
