"""CEL selectors of devices, as the API server judges them before it stores them. Pure.

Source: ``validateCELSelector`` of ``pkg/apis/resource/validation`` (Kubernetes 1.36): too long, does not compile, or
costs too much in the worst case. The worst case is an estimate: one unit a node of the expression, and a macro as often
as its list may be long. What an expression really costs is bounded again when it is evaluated.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from tessera.cel.evaluator import compile_expression
from tessera.cel.syntax import Call, CelError, CelExpression, ListLiteral, MapLiteral, children, parse
from tessera.dra.limits import EXPRESSION_COST
from tessera.dra.selectors import FIELDS, VARIABLES
from tessera_lab.apiserver.field_errors import forbidden_cause, invalid_cause, required_cause, too_long_cause
from tessera_lab.apiserver.interfaces import StatusCause

#: Longest expression, bytes (``CELSelectorExpressionMaxLength``).
LENGTH = 10 * 1024
#: Entries of a map or a list of unknown length: a device has so many attributes at most.
_ENTRIES = 32
_MACROS = frozenset({"all", "exists", "exists_one", "filter", "map"})


def check_selector(selector: Mapping[str, Any], path: str) -> Iterator[StatusCause]:
    """Yields the errors of a selector."""
    if not selector.get("cel"):
        yield required_cause(f"{path}.cel")
        return
    expression, place = str(selector["cel"].get("expression") or ""), f"{path}.cel.expression"
    if len(expression.encode()) > LENGTH:
        yield too_long_cause(place, LENGTH)
        return
    try:
        compile_expression(expression, VARIABLES, FIELDS)
    except CelError as error:
        yield invalid_cause(place, expression, f"compilation failed: {error}")
        return
    if _worst_cost(parse(expression)) > EXPRESSION_COST:
        yield forbidden_cause(place, "too complex, exceeds cost limit")


def _worst_cost(node: CelExpression) -> int:
    if isinstance(node, Call) and node.name in _MACROS and node.target is not None:
        body = sum(map(_worst_cost, node.args[1:]))
        return 1 + _worst_cost(node.target) + _longest(node.target) * (1 + body)
    return 1 + sum(map(_worst_cost, children(node)))


def _longest(node: CelExpression) -> int:
    if isinstance(node, ListLiteral):
        return len(node.items)
    return len(node.entries) if isinstance(node, MapLiteral) else _ENTRIES
