"""A part of the Common Expression Language: admission policies, rules of CRDs, and selectors of devices (DRA).

Supported: null, booleans, 64-bit integers, doubles, strings, lists, maps, quantities, semantic versions, optional
values; field access, indices, the optional forms ``.?f`` and ``[?k]``; ``has()``, ``cel.bind()`` and the macros all,
exists, exists_one, filter, map, optMap, optFlatMap; the operators; the functions in :mod:`tessera.cel.functions` and
those that the caller adds. :func:`compile_expression` refuses everything else by name (unsigned integers, bytes,
timestamps, Kubernetes' other libraries), so nobody keeps an expression that cannot be evaluated.

Semantics: ``&&`` and ``||`` ignore an error on one side if the other side decides; numbers of different types can be
equal, other values of different types never are; a missing field is an error.

Why no library: docs/decisions/cel-engine.md.

Cost: one unit a node that is evaluated, a tenth of a unit a character and a unit an element that a function reads, the
same for a text that is longer than what it is made from, and the worst case of a pattern; as cel-go counts, but for
patterns, which Go runs in linear time. Work is charged before it is done.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from tessera.cel.functions import FUNCTIONS, METHODS, NAMESPACES, PATTERN_METHODS, boolean
from tessera.cel.kubernetes_values import NOTHING, DefaultMap, EvaluationError, OptionalValue, count_choices, type_name
from tessera.cel.syntax import (
    Call,
    CelError,
    CelExpression,
    Identifier,
    Index,
    ListLiteral,
    Literal,
    MapLiteral,
    Select,
    parse,
)


class OutOfBudgetError(Exception):
    """The budget is used up. Not an EvaluationError, which operators may absorb."""


class Meter:
    """A budget of cost units.

    Attributes:
        limit: its size.
        left: units that are left; negative once an expression was stopped.
    """

    def __init__(self, limit: float = math.inf) -> None:
        self.limit = limit
        self.left = limit

    def charge(self, cost: float) -> None:
        """Takes units.

        Raises:
            OutOfBudgetError: there are not enough.
        """
        self.left -= cost
        if self.left < 0:
            raise OutOfBudgetError


def charge_call(name: str, args: Sequence[Any], meter: Meter) -> None:
    """Takes the units of a function, before it is called.

    Raises:
        OutOfBudgetError: there are not enough.
    """
    meter.charge(1)
    for each in args:
        _charge_value(each, meter)
    if name in PATTERN_METHODS and all(isinstance(each, str) for each in args[:2]):
        meter.charge(count_choices(args[1], len(args[0])) * (len(args[0]) + 1) / 10)
    elif name == "replace" and all(isinstance(each, str) for each in args):
        text, old, new = args
        meter.charge((text.count(old) if old else len(text) + 1) * len(new) / 10)
    elif name == "join" and len(args) > 1 and isinstance(args[0], list) and isinstance(args[1], str):
        meter.charge(len(args[0]) * len(args[1]) / 10)
    elif name.startswith("sets.") and all(isinstance(each, list) for each in args):
        meter.charge(len(args[0]) * len(args[1]))


def _charge_value(value: Any, meter: Meter) -> None:
    if isinstance(value, str):
        meter.charge(len(value) / 10)
    elif isinstance(value, (list, dict)):
        meter.charge(len(value))
        for each in value.values() if isinstance(value, dict) else value:
            _charge_value(each, meter)


__all__ = ["CelError", "EvaluationError", "Meter", "Program", "compile_expression"]

#: Functions by name: the allowed numbers of arguments, and the function.
Functions = Mapping[str, tuple[Sequence[int], Callable[..., Any]]]


class _Frame(msgspec.Struct, frozen=True):
    """Values of the variables during one evaluation."""

    values: Mapping[str, Any]
    meter: Meter

    def bind(self, name: str, value: Any) -> "_Frame":
        return _Frame({**self.values, name: value}, self.meter)


_Code = Callable[[_Frame], Any]


class Program:
    """A checked expression."""

    def __init__(self, text: str, code: _Code) -> None:
        self.text = text
        self._code = code

    def evaluate(self, variables: Mapping[str, Any], meter: Meter | None = None) -> Any:
        """Returns the value of the expression.

        Args:
            variables: their values.
            meter: the budget; None is no limit.

        Raises:
            EvaluationError: there is none, or the budget is used up.
        """
        meter = meter or Meter()
        try:
            return self._code(_Frame(variables, meter))
        except OutOfBudgetError:
            raise EvaluationError(f"the expression costs more than {meter.limit:,.0f} units") from None
        except RecursionError:
            raise EvaluationError("a value is nested too deep") from None

    def is_true(self, variables: Mapping[str, Any], meter: Meter | None = None) -> bool:
        """Returns the value of a condition.

        Raises:
            EvaluationError: there is no value, it is not a boolean, or the budget is used up.
        """
        found = self.evaluate(variables, meter)
        if not isinstance(found, bool):
            raise EvaluationError(f"the expression is {type_name(found)}, a condition must be bool")
        return found


def compile_expression(
    text: str,
    variables: frozenset[str],
    fields: Mapping[str, frozenset[str]] | None = None,
    methods: Functions | None = None,
) -> Program:
    """Compiles an expression over the named variables.

    Args:
        text: the expression.
        variables: names of the variables that it may use.
        fields: fields of each variable whose type is known.
        methods: more functions of a target.

    Raises:
        CelError: it is not valid, or uses something that is not supported.
    """
    compiler = _Compiler(variables, fields or {}, {**METHODS, **(methods or {})})
    try:
        return Program(text, compiler.compile(parse(text)))
    except RecursionError:
        raise CelError("the expression is nested too deep") from None


class _Compiler(msgspec.Struct, frozen=True):
    """Checks a tree and turns it into nested functions, which run about twice as fast as a walk over the tree."""

    known: frozenset[str]
    fields: Mapping[str, frozenset[str]]
    methods: Functions

    def _with(self, name: str) -> "_Compiler":
        """This compiler with one more variable, whose type is not known."""
        fields = {key: value for key, value in self.fields.items() if key != name}
        return _Compiler(self.known | {name}, fields, self.methods)

    def compile(self, node: CelExpression) -> _Code:
        """Returns the code of a node."""
        match node:
            case Literal(value=value):
                return lambda _frame: value
            case Identifier():
                return self._identifier(node)
            case Select():
                return self._select(node)
            case Index(target=target, key=key, optional=optional):
                return _index(self.compile(target), self.compile(key), optional=optional)
            case ListLiteral(items=items):
                parts = [self.compile(each) for each in items]
                return lambda frame: [each(frame) for each in parts]
            case MapLiteral(entries=entries):
                pairs = [(self.compile(key), self.compile(value)) for key, value in entries]
                return lambda frame: {_map_key(key(frame)): value(frame) for key, value in pairs}
            case Call():
                return self._call(node)
        raise AssertionError(node)

    def _identifier(self, node: Identifier) -> _Code:
        name = node.name
        if name not in self.known:
            raise CelError(f"undeclared reference to '{name}' at {node.at}")

        def read(frame: _Frame) -> Any:
            frame.meter.charge(1)
            return frame.values[name]

        return read

    def _select(self, node: Select) -> _Code:
        target, field, optional = self.compile(node.target), node.field, node.optional
        known = self.fields.get(node.target.name) if isinstance(node.target, Identifier) else None
        if known is not None and field not in known:
            raise CelError(f"undefined field '{field}' at {node.at}")

        def select(frame: _Frame) -> Any:
            frame.meter.charge(1)
            return _select_field(target(frame), field, optional=optional)

        return select

    def _call(self, call: Call) -> _Code:
        name, target = call.name, call.target
        if isinstance(target, Identifier) and target.name in NAMESPACES - self.known:
            name, target = f"{target.name}.{name}", None
        if target is not None and name in _MACROS:
            return self._macro(call, target)
        if target is not None and name in ("optMap", "optFlatMap"):
            return self._optional_map(call, target)
        if target is None and name in ("has", "cel.bind"):
            return self._has(call) if name == "has" else self._bind(call)
        parts = [self.compile(target)] if target is not None else []
        known = self.methods if target is not None else {**FUNCTIONS, **_SPECIAL}
        if name not in known:
            raise CelError(f"undeclared reference to '{name}()' at {call.at}: not among the functions supported here")
        if len(call.args) not in known[name][0]:
            raise CelError(f"found no matching overload for '{name}' with {len(call.args)} arguments at {call.at}")
        parts += [self.compile(each) for each in call.args]
        if target is None and name in _SPECIAL:
            code: _Code = _SPECIAL[name][1](*parts)
            return code
        return _apply(name, known[name][1], parts)

    def _has(self, call: Call) -> _Code:
        if len(call.args) != 1 or not isinstance(call.args[0], Select):
            raise CelError(f"has() at {call.at} takes one field selection, as in has(object.spec)")
        target, field = self.compile(call.args[0].target), call.args[0].field

        def has(frame: _Frame) -> bool:
            frame.meter.charge(1)
            found = target(frame)
            found = found.value if isinstance(found, OptionalValue) else found
            return isinstance(found, dict) and found.get(field) is not None

        return has

    def _bind(self, call: Call) -> _Code:
        if len(call.args) != 3 or not isinstance(call.args[0], Identifier):
            raise CelError(f"cel.bind() at {call.at} takes a name, its value and an expression")
        name, value = call.args[0].name, self.compile(call.args[1])
        result = self._with(name).compile(call.args[2])
        return lambda frame: result(frame.bind(name, value(frame)))

    def _optional_map(self, call: Call, target: CelExpression) -> _Code:
        optional = self.compile(target)
        if len(call.args) != 2 or not isinstance(call.args[0], Identifier):
            raise CelError(f"{call.name}() at {call.at} takes a variable and an expression")
        name = call.args[0].name
        body = self._with(name).compile(call.args[1])

        def run(frame: _Frame) -> OptionalValue:
            found = optional(frame)
            if not isinstance(found, OptionalValue):
                raise EvaluationError(f"no such overload: {type_name(found)}.{call.name}()")
            if not found.present:
                return NOTHING
            result = body(frame.bind(name, found.value))
            if call.name == "optMap":
                return OptionalValue(True, result)
            if not isinstance(result, OptionalValue):
                raise EvaluationError(f"optFlatMap() needs an optional value, not {type_name(result)}")
            return result

        return run

    def _macro(self, call: Call, target: CelExpression) -> _Code:
        items = self.compile(target)
        allowed = (2, 3) if call.name == "map" else (2,)
        if len(call.args) not in allowed or not isinstance(call.args[0], Identifier):
            raise CelError(f"{call.name}() at {call.at} takes a variable and an expression")
        name = call.args[0].name
        parts = [self._with(name).compile(each) for each in call.args[1:]]
        evaluate = _MACROS[call.name]

        def run(frame: _Frame) -> Any:
            found = items(frame)
            if not isinstance(found, (list, dict)):
                raise EvaluationError(f"{call.name}() needs a list or a map, not {type_name(found)}")
            frame.meter.charge(len(found))
            return evaluate([(each, frame.bind(name, each)) for each in found], *parts)

        return run


# -- values ---------------------------------------------------------------------------------------------------------


def _select_field(target: Any, field: str, *, optional: bool) -> Any:
    if isinstance(target, OptionalValue):
        return _select_field(target.value, field, optional=True) if target.present else NOTHING
    if not isinstance(target, dict):
        if optional and target is None:
            return NOTHING
        raise EvaluationError(f"no such key: {field} (the value is {type_name(target)})")
    return _item(target, field, field in target or isinstance(target, DefaultMap), optional, f"no such key: {field}")


def _item(target: Any, key: Any, found: bool, optional: bool, reason: str) -> Any:
    if optional:
        return OptionalValue(True, target[key]) if found else NOTHING
    if not found:
        raise EvaluationError(reason)
    return target[key]


def _index(target: _Code, key: _Code, *, optional: bool) -> _Code:
    def index(frame: _Frame) -> Any:
        frame.meter.charge(1)
        return _index_value(target(frame), key(frame), optional=optional)

    return index


def _index_value(target: Any, key: Any, *, optional: bool) -> Any:
    if isinstance(target, OptionalValue):
        return _index_value(target.value, key, optional=True) if target.present else NOTHING
    if isinstance(target, list) and isinstance(key, int) and not isinstance(key, bool):
        return _item(target, key, 0 <= key < len(target), optional, f"index out of bounds: {key}")
    if isinstance(target, dict) and isinstance(key, (str, int, float)):
        return _item(target, key, key in target or isinstance(target, DefaultMap), optional, f"no such key: {key}")
    raise EvaluationError(f"no such overload: {type_name(target)}[{type_name(key)}]")


def _map_key(key: Any) -> Any:
    if not isinstance(key, (str, int)):
        raise EvaluationError(f"unsupported key type: {type_name(key)}")
    return key


def _apply(name: str, function: Callable[..., Any], parts: Sequence[_Code]) -> _Code:
    def call(frame: _Frame) -> Any:
        args = [each(frame) for each in parts]
        if frame.meter.limit != math.inf:
            charge_call(name, args, frame.meter)
        return function(*args)

    return call


def _decide(parts: Sequence[tuple[_Code, _Frame]], *, decisive: bool) -> bool:
    """Returns ``decisive`` if any part has that value, even if others raise errors; else raises the first error."""
    error: EvaluationError | None = None
    for code, frame in parts:
        try:
            if boolean(code(frame)) is decisive:
                return decisive
        except EvaluationError as caught:
            error = error or caught
    if error is not None:
        raise error
    return not decisive


def _and_or(*, decisive: bool) -> Callable[[_Code, _Code], _Code]:
    return lambda one, other: lambda frame: _decide(((one, frame), (other, frame)), decisive=decisive)


def _ternary(condition: _Code, yes: _Code, no: _Code) -> _Code:
    return lambda frame: yes(frame) if boolean(condition(frame)) else no(frame)


#: Operators that evaluate their arguments themselves.
_SPECIAL: Functions = {
    "?:": ((3,), _ternary),
    "&&": ((2,), _and_or(decisive=False)),
    "||": ((2,), _and_or(decisive=True)),
}

_Items = Sequence[tuple[Any, _Frame]]


def _filter(items: _Items, test: _Code) -> _Items:
    return [(value, frame) for value, frame in items if boolean(test(frame))]


def _map(items: _Items, *parts: _Code) -> list[Any]:
    found = _filter(items, parts[0]) if len(parts) == 2 else items
    return [parts[-1](frame) for _value, frame in found]


_MACROS: Mapping[str, Callable[..., Any]] = {
    "all": lambda items, test: _decide([(test, frame) for _value, frame in items], decisive=False),
    "exists": lambda items, test: _decide([(test, frame) for _value, frame in items], decisive=True),
    "exists_one": lambda items, test: len(_filter(items, test)) == 1,
    "filter": lambda items, test: [value for value, _frame in _filter(items, test)],
    "map": _map,
}
