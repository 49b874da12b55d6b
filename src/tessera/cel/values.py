"""Values of CEL that JSON does not have, their types' names, and the error of an expression without a value."""

from typing import Any, ClassVar

import msgspec


class EvaluationError(Exception):
    """The expression has no value here: a missing field, a type that does not fit, a division by zero."""


class OptionalValue(msgspec.Struct, frozen=True):
    """A value that may be missing, from ``.?field`` and ``[?key]``."""

    cel_name: ClassVar[str] = "optional"

    present: bool
    value: Any = None


NOTHING = OptionalValue(present=False)


class DefaultMap(dict[str, Any]):
    """A map that has a value for every key: an empty map, as ``device.attributes`` for a domain that is absent."""

    cel_name: ClassVar[str] = "map"

    def __missing__(self, key: str) -> Any:
        return {}


_NAMES = {type(None): "null", bool: "bool", int: "int", float: "double", str: "string", list: "list", dict: "map"}


def type_name(value: Any) -> str:
    """CEL's name of the value's type."""
    kind = type(value)
    return _NAMES.get(kind) or str(getattr(kind, "cel_name", kind.__name__))
