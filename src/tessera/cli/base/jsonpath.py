"""kubectl's ``-o jsonpath``: templates with ``{.field}``, ``[0]``, ``[*]``, ``{range ...}{end}`` and ``{"text"}``.

No library is used: those on the index bring a parser generator for a language that is not kubectl's. Filters and slices
are refused with a word; ``-o json | jq`` has them.
"""

import json
import re
from collections.abc import Iterator, Sequence
from typing import Any

_EXPRESSION = re.compile(r"\{((?:\"(?:[^\"\\]|\\.)*\"|'[^']*'|[^{}])*)\}")
_STEP = re.compile(
    r"\.(?P<key>(?:[^.\[\]\\\s]|\\.)+)|\[(?P<index>\*|-?[0-9]{1,6})\]|\[(?P<quote>['\"])(?P<name>.*?)(?P=quote)\]"
)


def render(template: str, document: Any) -> str:
    """The text of a template for a document of JSON values.

    Raises:
        ValueError: the template has another form; the text names the part.
    """
    pieces = _EXPRESSION.split(template if "{" in template else f"{{{template}}}")
    if any("{" in text or "}" in text for text in pieces[::2]):
        raise ValueError(f"jsonpath {template[:60]!r}: braces do not match; write for example {{.pods[0].name}}")
    words = [(at % 2 == 1, piece) for at, piece in enumerate(pieces) if piece]
    text, end = _render(words, 0, document)
    if end < len(words):
        raise ValueError(f"jsonpath {template[:60]!r}: {{end}} without {{range}}")
    return text


def _render(words: Sequence[tuple[bool, str]], at: int, value: Any) -> tuple[str, int]:
    """The text up to the end of this range, and where that is."""
    text = ""
    while at < len(words):
        is_expression, word = words[at][0], words[at][1].strip() if words[at][0] else words[at][1]
        at += 1
        if not is_expression:
            text += word
        elif word == "end":
            return text, at - 1
        elif word.startswith("range "):
            rounds = [_render(words, at, each) for each in find(word.removeprefix("range ").strip(), value)]
            end = rounds[0][1] if rounds else _render(words, at, None)[1]
            if end == len(words):
                raise ValueError(f"jsonpath: {{{word}}} has no {{end}}")
            text, at = text + "".join(each for each, _ in rounds), end + 1
        elif word[:1] in {'"', "'"}:
            text += _literal(word)
        else:
            text += " ".join(map(_text, find(word, value)))
    return text, at


def _literal(word: str) -> str:
    try:
        return str(json.loads(word)) if word[0] == '"' else word[1:-1]
    except ValueError:
        raise ValueError(f"jsonpath: {word[:40]} is no text in quotes") from None


def find(path: str, value: Any) -> list[Any]:
    """The values at a path; what is missing is left out."""
    rest = path.removeprefix("$").removeprefix("@")
    rest = rest if not rest or rest[0] in ".[" else f".{rest}"
    found, at = [value], 0
    while at < len(rest) and rest != ".":
        step = _STEP.match(rest, at)
        if step is None:
            raise ValueError(f"jsonpath {path[:60]!r}: {rest[at:][:20]!r} is not supported; use -o json and jq")
        key = re.sub(r"\\(.)", r"\1", step["key"] or step["name"] or "")
        found = [each for one in found for each in _step(one, key, step["index"])]
        at = step.end()
    return found


def _step(value: Any, key: str, index: str | None) -> Iterator[Any]:
    if index == "*" or key == "*":
        yield from value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    elif index is not None:
        if isinstance(value, list) and -len(value) <= int(index) < len(value):
            yield value[int(index)]
    elif isinstance(value, dict) and key in value:
        yield value[key]


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
