"""Tables as kubectl prints them: columns of built-in kinds, and a custom resource's own columns.

Columns of a built-in kind are headers and one function that computes the cells. Names, order and wide columns (priority
1) are those of Kubernetes 1.32's printers. Columns of a custom resource are the JSON paths of its definition.
:mod:`request.negotiation` builds the Table document from the rows (``includeObject``, watch frames).
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from tessera_lab.apiserver.interfaces import Columns, Obj
from tessera_lab.apiserver.tables import core_columns, other_columns, workload_columns
from tessera_lab.apiserver.tables.core_columns import format_age
from tessera_lab.apiserver.tables.jsonpath import find_values, parse_path

Cells = Callable[[Mapping[str, Any], float], Sequence[Any]]


class BuiltinColumns:
    """Implements :class:`tessera_lab.apiserver.interfaces.Columns`.

    Args:
        headers: names; ``+`` before a name means a wide column, ``:integer`` after it a type other than string.
        cells: computes the cells from an object and the seconds since 1970.
    """

    def __init__(self, headers: Sequence[str], cells: Cells) -> None:
        self._definitions = [_definition(header) for header in headers]
        self._cells = cells

    def definitions(self) -> Sequence[Obj]:
        """``Table.columnDefinitions``."""
        return self._definitions

    def cells(self, obj: Mapping[str, Any], now: float) -> Sequence[Any]:
        """One row."""
        return self._cells(obj, now)


def _definition(header: str) -> Obj:
    name, _, kind = header.lstrip("+").partition(":")
    return {
        "name": name,
        "type": kind or "string",
        "format": "name" if name == "Name" else "",
        "description": "",
        "priority": 1 if header.startswith("+") else 0,
    }


def _plain(obj: Mapping[str, Any], now: float) -> Sequence[Any]:
    return [obj["metadata"].get("name"), format_age(obj["metadata"].get("creationTimestamp"), now)]


def builtin_columns(group: str, kind: str) -> Columns:
    """Returns the columns of a built-in kind; name and age if Kubernetes has no columns for it."""
    for module in (core_columns, workload_columns, other_columns):
        found = module.COLUMNS.get((group, kind))
        if found:
            return BuiltinColumns(*found)
    return BuiltinColumns(("Name", "Age"), _plain)


_AGE = {"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"}
_NAME: Obj = {"name": "Name", "type": "string", "format": "name", "description": "Name of the object", "priority": 0}


class CustomColumns:
    """Implements :class:`tessera_lab.apiserver.interfaces.Columns` from a CRD's ``additionalPrinterColumns``.

    Args:
        columns: as in the CRD, with paths that :mod:`jsonpath` parses; an empty list means age only.
    """

    def __init__(self, columns: Sequence[Mapping[str, Any]]) -> None:
        self._columns = [(each, parse_path(each["jsonPath"])) for each in columns or [_AGE]]

    def definitions(self) -> Sequence[Obj]:
        """``Table.columnDefinitions``, the name first."""
        return [_NAME, *(_custom_definition(each) for each, _ in self._columns)]

    def cells(self, obj: Mapping[str, Any], now: float) -> Sequence[Any]:
        """Returns one row; a cell whose path has no value is empty."""
        found = ((each["type"], find_values(steps, obj)) for each, steps in self._columns)
        return [
            obj["metadata"].get("name"),
            *(_cell(kind, values[0], now) if values else None for kind, values in found),
        ]


def _custom_definition(column: Mapping[str, Any]) -> Obj:
    default = f"Custom resource definition column (in JSONPath format): {column['jsonPath']}"
    return {
        "name": column["name"],
        "type": column["type"],
        "format": column.get("format", ""),
        "description": column.get("description") or default,
        "priority": column.get("priority", 0),
    }


def _cell(kind: str, value: Any, now: float) -> Any:
    """Converts a value to its column's type; None if it does not fit."""
    if kind == "date":
        return format_age(value, now) if isinstance(value, str) else None
    if kind == "string":
        return value if isinstance(value, str) else msgspec.json.encode(value).decode()
    if kind == "boolean":
        return value if isinstance(value, bool) else None
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return int(value) if kind == "integer" else value
