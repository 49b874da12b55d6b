"""Selectors of devices: CEL over ``device``, as kube-scheduler evaluates it.

``device.attributes["domain"].name`` and ``device.capacity["domain"].name``; a domain that the device lacks is an empty
map, a name that it lacks is an error. Where kube-scheduler stops at an error, here the device does not match and the
error is a reason: one device without an attribute must not hide the others.

Results are remembered by the values that an expression reads, so the alike devices of a large cluster cost one
evaluation. Source: k8s.io/dynamic-resource-allocation/cel, ``compile.go``.
"""

from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import Any

import msgspec

from tessera.cel.evaluator import CelError, EvaluationError, Meter, Program, compile_expression
from tessera.cel.kubernetes_values import DefaultMap, Quantity
from tessera.cel.syntax import Call, CelExpression, Identifier, Index, Literal, Select, children, parse
from tessera.dra.devices import Device
from tessera.dra.limits import EXPRESSION_COST, EXPRESSION_USUAL_COST, EXPRESSIONS, SELECTOR_RESULTS
from tessera.text import one_line

#: What a selector may name, and the fields of it.
VARIABLES = frozenset({"device"})
FIELDS = {"device": frozenset({"driver", "attributes", "capacity", "allowMultipleAllocations"})}
#: A value that an expression reads: of ``attributes`` or ``capacity``, with domain and name.
_Read = tuple[str, str, str]


class SelectorResult(msgspec.Struct, frozen=True):
    """Whether a device matches, or why that cannot be said."""

    matches: bool
    problem: str = ""


_NO_MATCH = SelectorResult(False)


class _Compiled(msgspec.Struct, frozen=True):
    """An expression, or the mistake in it.

    Attributes:
        program: the expression.
        problem: the mistake.
        attributes: qualified names of the attributes that it reads.
        capacity: the same of amounts.
        everything: it may read anything else too.
        wanted: attributes with a value, without which it is false.
    """

    program: Program | None = None
    problem: str = ""
    attributes: tuple[str, ...] = ()
    capacity: tuple[str, ...] = ()
    everything: bool = False
    wanted: tuple[tuple[str, str | int], ...] = ()


class DeviceSelectors:
    """Evaluates expressions, remembers results, and bounds what all evaluations of one expression cost."""

    def __init__(self) -> None:
        #: By expression and the values that it reads; emptied at the limit.
        self._results: dict[tuple[str, object], SelectorResult] = {}
        #: Units that an expression has cost beyond what selectors usually cost; emptied at the limit.
        self._excess: dict[str, float] = {}

    def matches(self, expression: str, device: Device, budget: Meter | None = None) -> SelectorResult:
        """Returns whether a device fulfils an expression.

        Args:
            expression: the selector.
            device: the device.
            budget: what evaluations of one decision may cost; results that are remembered cost nothing.

        Raises:
            OutOfBudgetError: the budget is used up.
        """
        compiled = _compile(expression)
        if any(is_other(device.attributes.get(name), value) for name, value in compiled.wanted):
            return _NO_MATCH
        key = (expression, _values_read(compiled, device))
        found = self._results.get(key)
        if found is None:
            if len(self._results) >= SELECTOR_RESULTS:
                self._results.clear()
            meter = Meter(EXPRESSION_COST)
            found = self._results[key] = self._evaluate(compiled, device, expression, meter)
            if budget is not None:
                budget.charge(meter.limit - meter.left)
        return found

    def _evaluate(self, compiled: _Compiled, device: Device, expression: str, meter: Meter) -> SelectorResult:
        if compiled.program is None:
            return SelectorResult(False, compiled.problem)
        if self._excess.get(expression, 0) > EXPRESSION_COST:
            return SelectorResult(False, f"its evaluations cost more than {EXPRESSION_COST:,} units; make it shorter")
        try:
            return SelectorResult(compiled.program.is_true({"device": _as_cel(device)}, meter))
        except EvaluationError as error:
            return SelectorResult(False, one_line(error, 200))
        finally:
            if len(self._excess) >= EXPRESSIONS:
                self._excess.clear()
            excess = max(meter.limit - meter.left - EXPRESSION_USUAL_COST, 0)
            self._excess[expression] = self._excess.get(expression, 0) + excess


def attributes_read(expression: str) -> frozenset[str] | None:
    """Returns the qualified names of the attributes that an expression reads; None if it may read any."""
    compiled = _compile(expression)
    return None if compiled.everything else frozenset(compiled.attributes)


def values_wanted(expression: str) -> Iterable[tuple[str, str | int]]:
    """Returns attributes, by qualified name, each with a value: the expression is false for any other of its type."""
    return _compile(expression).wanted


def is_other(value: object, wanted: str | int) -> bool:
    """True for a value of the same type that is not the wanted one."""
    return type(value) is type(wanted) and value != wanted


@lru_cache(maxsize=1024)
def _compile(expression: str) -> _Compiled:
    try:
        program = compile_expression(expression, VARIABLES, FIELDS)
    except CelError as error:
        return _Compiled(problem=f"it does not compile: {one_line(error, 200)}")
    tree = parse(expression)
    wanted = tuple(_wanted(tree))
    try:
        reads = sorted(set(_reads(tree)))
    except LookupError:
        return _Compiled(program, everything=True, wanted=wanted)
    attributes, capacity = (
        tuple(f"{domain}/{name}" for each, domain, name in reads if each == part) for part in ("attributes", "capacity")
    )
    return _Compiled(program, attributes=attributes, capacity=capacity, wanted=wanted)


def _values_read(compiled: _Compiled, device: Device) -> object:
    """The values of a device on which the result may depend, hashable."""
    attributes, capacity = device.attributes, device.capacity
    if compiled.everything:
        everything = [(name, _typed(value)) for name, value in sorted(attributes.items())]
        amounts = [(name, value.value) for name, value in sorted(capacity.items())]
        return device.id.driver, device.shared, tuple(everything), tuple(amounts)
    values = [_typed(attributes.get(name)) for name in compiled.attributes]
    for name in compiled.capacity:
        amount = capacity.get(name)
        values.append(None if amount is None else amount.value)
    return device.id.driver, device.shared, tuple(values)


def _typed(value: Any) -> Any:
    """The value so that true differs from 1."""
    return str(value).encode() if value is True or value is False else value


def _as_cel(device: Device) -> dict[str, Any]:
    return {
        "driver": device.id.driver,
        "allowMultipleAllocations": device.shared,
        "attributes": _by_domain(device.attributes.items()),
        "capacity": _by_domain((name, Quantity(capacity.value)) for name, capacity in device.capacity.items()),
    }


def _by_domain(items: Iterable[tuple[str, Any]]) -> DefaultMap:
    found = DefaultMap()
    for name, value in items:
        domain, _, key = name.partition("/")
        found.setdefault(domain, {})[key] = value
    return found


# -- what an expression reads -----------------------------------------------------------------------------------------


def _reads(node: CelExpression) -> Iterator[_Read]:
    """Yields what a tree reads.

    Raises:
        LookupError: it may read anything, for instance by ``device.attributes.all(...)``.
    """
    match node:
        case Select(target=Identifier(name="device"), field=field):
            if field not in ("driver", "allowMultipleAllocations"):
                raise LookupError
        case Identifier(name="device"):
            raise LookupError
        case Select(target=Index() as target, field=field) if _domain(target):
            yield (*_domain(target), field)
        case Index(target=Index() as target, key=Literal(value=str(field))) if _domain(target):
            yield (*_domain(target), field)
        case Index() if _domain(node):
            raise LookupError
        case _:
            for each in children(node):
                yield from _reads(each)


def _wanted(node: CelExpression) -> Iterator[tuple[str, str | int]]:
    """Yields the comparisons with a constant of which all must be true."""
    match node:
        case Call(name="&&", args=args):
            for each in args:
                yield from _wanted(each)
        case Call(name="==", args=(one, Literal(value=(str() | int()) as value))) if not isinstance(value, bool):
            found = _attribute(one)
            if found:
                yield found, value


def _attribute(node: CelExpression) -> str:
    match node:
        case Select(target=Index() as target, field=name, optional=False):
            pass
        case Index(target=Index() as target, key=Literal(value=str(name)), optional=False):
            pass
        case _:
            return ""
    found = _domain(target)
    return f"{found[1]}/{name}" if found and found[0] == "attributes" and not target.optional else ""


def _domain(node: Index) -> tuple[str, str] | tuple[()]:
    match node:
        case Index(
            target=Select(target=Identifier(name="device"), field=("attributes" | "capacity") as part),
            key=Literal(value=str(domain)),
        ):
            return part, domain
    return ()
