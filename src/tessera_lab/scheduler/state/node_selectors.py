"""Terms of node selectors: of a pod's affinity, a volume, or an allocation of devices."""

from collections.abc import Mapping, Sequence
from typing import Any

Json = Mapping[str, Any]


def term_matches(term: Json, labels: Mapping[str, str], name: str) -> bool:
    """True if one node selector term admits the node: all its requirements hold. A term without any matches nothing."""
    expressions = term.get("matchExpressions") or ()
    fields = term.get("matchFields") or ()
    if not expressions and not fields:
        return False
    return all(_is_met(item, labels) for item in expressions) and all(
        _is_met(item, {"metadata.name": name}) for item in fields
    )


def _is_met(requirement: Json, labels: Mapping[str, str]) -> bool:
    value = labels.get(requirement.get("key", ""))
    values = requirement.get("values") or ()
    match requirement.get("operator"):
        case "In":
            return value is not None and value in values
        case "NotIn":
            return value is None or value not in values
        case "Exists":
            return value is not None
        case "DoesNotExist":
            return value is None
        case "Gt":
            return _compares(value, values, 1)
        case "Lt":
            return _compares(value, values, -1)
        case _:
            return False


def _compares(value: str | None, values: Sequence[str], sign: int) -> bool:
    """Compares for Gt and Lt; a value that is no integer never matches."""
    if value is None or len(values) != 1:
        return False
    try:
        return sign * (int(value) - int(values[0])) > 0
    except ValueError:
        return False
