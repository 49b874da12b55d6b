"""What Kubernetes refuses in the ``aggregationRule`` of a ClusterRole."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tessera_lab.apiserver.field_errors import forbidden_cause, invalid_cause, required_cause
from tessera_lab.apiserver.interfaces import StatusCause

Read = Mapping[str, Any]

_SELECTORS = "aggregationRule.clusterRoleSelectors"


def validate_cluster_role(obj: Read) -> Sequence[StatusCause]:
    """Returns the errors of an aggregation rule: it must select, by operators that exist."""
    rule = obj.get("aggregationRule")
    if rule is None:
        return ()
    selectors = rule.get("clusterRoleSelectors") or ()
    if not selectors:
        text = "at least one clusterRoleSelector required if aggregationRule is non-nil"
        return [required_cause(_SELECTORS, text)]
    return [
        cause
        for at, selector in enumerate(selectors)
        for number, each in enumerate(selector.get("matchExpressions") or ())
        for cause in _expression(f"{_SELECTORS}[{at}].matchExpressions[{number}]", each)
    ]


def _expression(field: str, expression: Read) -> Iterator[StatusCause]:
    operator, values = expression.get("operator"), expression.get("values")
    match operator:
        case "In" | "NotIn" if not values:
            yield required_cause(f"{field}.values", "must be specified when `operator` is 'In' or 'NotIn'")
        case "Exists" | "DoesNotExist" if values:
            text = "may not be specified when `operator` is 'Exists' or 'DoesNotExist'"
            yield forbidden_cause(f"{field}.values", text)
        case "In" | "NotIn" | "Exists" | "DoesNotExist":
            pass
        case _:
            yield invalid_cause(f"{field}.operator", operator, "not a valid selector operator")
