"""Table columns of built-in kinds: headers, and for each kind one function that computes the cells.

Names, order and wide columns (priority 1) are those of Kubernetes 1.32's printers. :mod:`request.negotiation` builds
the Table document from the rows (``includeObject``, watch frames).
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tessera_lab.apiserver.interfaces import Columns, Obj
from tessera_lab.apiserver.tables import core_columns, other_columns, storage_columns, workload_columns
from tessera_lab.apiserver.tables.ages import format_age

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
    for module in (core_columns, workload_columns, storage_columns, other_columns):
        found = module.COLUMNS.get((group, kind))
        if found:
            return BuiltinColumns(*found)
    return BuiltinColumns(("Name", "Age"), _plain)
