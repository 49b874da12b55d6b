"""Names the field at which an object breaks its type, with its value and the rule.

The decoder names a field below a map as ``$.spec.podAllocationRequests[...].slices[0].start`` and leaves its value out;
a person who repairs the object needs both. Pure. Costs a few decodings of an object that is refused anyway.
"""

import re
from collections.abc import Callable
from typing import Any

import msgspec

from tessera.text import one_line

#: The words between the decoder's text and the path.
_PATH = " - at `"
#: A field, or the text in brackets: ``...`` for an entry of a map, or an index.
_STEP = re.compile(r"\.([^.\[]+)|\[([^\]]+)\]")


def locate_error(raw: bytes | msgspec.Raw, decode: Callable[[bytes], object], error: str) -> str:
    """Returns the decoder's error with the field's whole name and its value.

    Args:
        raw: the object's JSON.
        decode: the function that refuses it.
        error: the text of the refusal.
    """
    rule, _, path = error.rpartition(_PATH)
    try:
        document = msgspec.json.decode(raw)
        steps = _parse_path(path.rpartition("$")[2].rstrip("`"))
        name, value = _follow_path(document, steps, lambda: _decode_error(decode, document) == error)
    except (ValueError, LookupError, TypeError, RecursionError):
        return one_line(error)  # not JSON as a whole, or a path of another form
    shown = value if isinstance(value, str | int | float | bool | None) else f"of {len(value)} entries"
    said = f'"{one_line(shown, 60)}"' if isinstance(shown, str) and shown is value else one_line(shown, 60)
    return f"{one_line(name) or 'the object'} is {said}: {rule}"


def _parse_path(path: str) -> list[str]:
    """``.a[...].b[0]`` as ``["a", "...", "b", "0"]``."""
    return [first or second for first, second in _STEP.findall(path)]


def _follow_path(value: Any, steps: list[str], same_error: Callable[[], bool]) -> tuple[str, Any]:
    name = ""
    for step in steps:
        if isinstance(value, list):
            value, name = value[int(step)], f"{name}[{step}]"
        else:
            key = _find_bad_entry(value, same_error) if step == "..." else step
            value, name = value[key], f"{name}.{key}" if name else key
    return name, value


def _find_bad_entry(entries: dict[str, Any], same_error: Callable[[], bool]) -> str:
    """The entry of a map without which the refusal is another one; leaves the map with that entry alone."""
    everything, keys = dict(entries), list(entries)
    while len(keys) > 1:
        half = keys[: len(keys) // 2]
        _keep_only(entries, everything, half)
        keys = half if same_error() else keys[len(half) :]
    _keep_only(entries, everything, keys)
    return keys[0]


def _keep_only(entries: dict[str, Any], everything: dict[str, Any], keys: list[str]) -> None:
    entries.clear()
    entries.update((key, everything[key]) for key in keys)


def _decode_error(decode: Callable[[bytes], object], document: object) -> str:
    try:
        decode(msgspec.json.encode(document))
    except ValueError as error:
        return str(error)
    return ""
