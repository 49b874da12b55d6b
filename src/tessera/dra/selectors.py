"""Selectors of devices: CEL over ``device``, as kube-scheduler evaluates it.

``device.attributes["domain"].name`` and ``device.capacity["domain"].name``; a domain that the device lacks is an empty
map, a name that it lacks is an error. Where kube-scheduler stops at an error, here the device does not match and the
error is a reason: one device without an attribute must not hide the others.

Results are remembered by the values that an expression reads, so the alike devices of a large cluster cost one
evaluation. Source: k8s.io/dynamic-resource-allocation/cel, ``compile.go``.
"""

from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any

import msgspec

from tessera.cel.evaluator import CelError, EvaluationError, Meter, Program, compile_expression
from tessera.cel.kubernetes_values import Quantity
from tessera.cel.syntax import Call, CelExpression, Identifier, Index, ListLiteral, Literal, MapLiteral, Select, parse
from tessera.cel.values import DefaultMap
from tessera.dra.devices import Device
from tessera.limits.claims import EXPRESSION_COST, EXPRESSION_USUAL_COST, EXPRESSIONS
from tessera.text import one_line

_VARIABLES = frozenset({"device"})
_FIELDS = {"device": frozenset({"driver", "attributes", "capacity", "allowMultipleAllocations"})}
#: A part of a device that an expression reads: ``attributes`` or ``capacity``, domain, and name or None for all.
_Read = tuple[str, str, str | None]


class SelectorResult(msgspec.Struct, frozen=True):
    """Whether a device matches, or why that cannot be said."""

    matches: bool
    problem: str = ""


class _Compiled(msgspec.Struct, frozen=True):
    """An expression, or the mistake in it. ``reads`` is None if it may read everything."""

    program: Program | None
    reads: tuple[_Read, ...] | None = None
    problem: str = ""


class DeviceSelectors:
    """Evaluates expressions, remembers results, and bounds what all evaluations of one expression cost."""

    def __init__(self) -> None:
        self._evaluate = lru_cache(maxsize=65_536)(self._evaluate_now)
        #: Units that an expression has cost beyond what selectors usually cost; emptied at the limit.
        self._excess: dict[str, float] = {}

    def matches(self, expression: str, device: Device) -> SelectorResult:
        """Returns whether a device fulfils an expression."""
        compiled = _compile(expression)
        if compiled.program is None:
            return SelectorResult(False, compiled.problem)
        return self._evaluate(expression, _values_read(device, compiled.reads))

    @property
    def evaluations(self) -> int:
        """The number of evaluations whose results are remembered."""
        return self._evaluate.cache_info().currsize

    def _evaluate_now(self, expression: str, values: "_Values") -> SelectorResult:
        if self._excess.get(expression, 0) > EXPRESSION_COST:
            return SelectorResult(False, f"its evaluations cost more than {EXPRESSION_COST:,} units; make it shorter")
        meter = Meter(EXPRESSION_COST)
        try:
            return SelectorResult(_evaluate(expression, values, meter))
        except EvaluationError as error:
            return SelectorResult(False, one_line(error, 200))
        finally:
            if len(self._excess) >= EXPRESSIONS:
                self._excess.clear()
            excess = max(meter.limit - meter.left - EXPRESSION_USUAL_COST, 0)
            self._excess[expression] = self._excess.get(expression, 0) + excess


@lru_cache(maxsize=1024)
def _compile(expression: str) -> _Compiled:
    try:
        program = compile_expression(expression, _VARIABLES, _FIELDS)
        return _Compiled(program, _all_reads(parse(expression)))
    except CelError as error:
        return _Compiled(None, None, f"it does not compile: {one_line(error, 200)}")


class _Values(msgspec.Struct, frozen=True):
    """What an expression can see of a device, hashable."""

    driver: str
    shared: bool
    attributes: tuple[tuple[str, type, Any], ...]
    capacity: tuple[tuple[str, Any], ...]


def _values_read(device: Device, reads: Sequence[_Read] | None) -> _Values:
    def wanted(kind: str, items: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
        if reads is None:
            yield from sorted(items.items())
            return
        for part, domain, name in reads:
            if part != kind:
                continue
            if name is None:
                yield from sorted((key, value) for key, value in items.items() if key.startswith(f"{domain}/"))
            elif (key := f"{domain}/{name}") in items:
                yield key, items[key]

    return _Values(
        device.id.driver,
        device.shared,
        tuple((name, type(value), value) for name, value in wanted("attributes", device.attributes)),
        tuple((name, value.value) for name, value in wanted("capacity", device.capacity)),
    )


def _evaluate(expression: str, values: _Values, meter: Meter) -> bool:
    program = _compile(expression).program
    assert program is not None
    variables = {
        "device": {
            "driver": values.driver,
            "allowMultipleAllocations": values.shared,
            "attributes": _by_domain((name, value) for name, _kind, value in values.attributes),
            "capacity": _by_domain((name, Quantity(value)) for name, value in values.capacity),
        }
    }
    return program.is_true(variables, meter)


def _by_domain(items: Iterator[tuple[str, Any]]) -> DefaultMap:
    found = DefaultMap()
    for name, value in items:
        domain, _, key = name.partition("/")
        found.setdefault(domain, {})[key] = value
    return found


# -- what an expression reads -----------------------------------------------------------------------------------------


def _all_reads(tree: CelExpression) -> tuple[_Read, ...] | None:
    try:
        return tuple(sorted(set(_reads(tree)), key=str))
    except LookupError:
        return None


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
            yield (*_domain(node), None)
        case _:
            for each in _children(node):
                yield from _reads(each)


def _domain(node: Index) -> tuple[str, str] | tuple[()]:
    match node:
        case Index(
            target=Select(target=Identifier(name="device"), field=("attributes" | "capacity") as part),
            key=Literal(value=str(domain)),
        ):
            return part, domain
    return ()


def _children(node: CelExpression) -> Iterator[CelExpression]:
    match node:
        case Select(target=target):
            yield target
        case Index(target=target, key=key):
            yield from (target, key)
        case Call(target=target, args=args):
            yield from args if target is None else (target, *args)
        case ListLiteral(items=items):
            yield from items
        case MapLiteral(entries=entries):
            yield from (part for entry in entries for part in entry)
        case _:
            pass
