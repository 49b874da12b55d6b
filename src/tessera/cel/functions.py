"""The supported operators and functions of the Common Expression Language, applied to values.

A value is a JSON value, an :class:`OptionalValue`, or one of :mod:`tessera.cel.kubernetes_values`. An argument of the
wrong type raises :class:`EvaluationError`, as a missing overload does in CEL.
"""

import itertools
import math
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from typing import Any

from tessera.cel.kubernetes_values import (
    KUBERNETES_FUNCTIONS,
    KUBERNETES_METHODS,
    NOTHING,
    EvaluationError,
    OptionalValue,
    go_pattern,
    type_name,
)


def boolean(value: Any) -> bool:
    """Returns the value, which must be a boolean."""
    if not isinstance(value, bool):
        raise EvaluationError(f"no such overload: bool is expected, not {type_name(value)}")
    return value


def _numeric(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def equal(one: Any, other: Any) -> bool:
    """CEL's equality: across numbers, never across other types."""
    if _numeric(one) and _numeric(other):
        return bool(one == other)
    if type(one) is not type(other):
        return False
    if isinstance(one, list):
        return len(one) == len(other) and all(equal(a, b) for a, b in zip(one, other, strict=True))
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(equal(one[key], other[key]) for key in one)
    return bool(one == other)


def _compare(sign: Callable[[Any, Any], bool]) -> Callable[[Any, Any], bool]:
    def compare(one: Any, other: Any) -> bool:
        same = type(one) is type(other) and isinstance(one, (str, bool))
        if not same and not (_numeric(one) and _numeric(other)):
            raise EvaluationError(f"no such overload: {type_name(one)} compared with {type_name(other)}")
        return bool(sign(one, other))

    return compare


def _check_bounds(value: Any) -> Any:
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        raise EvaluationError("integer overflow")
    return value


def _arithmetic(sign: str, compute: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    def calculate(one: Any, other: Any) -> Any:
        if not (_numeric(one) and type(one) is type(other)):
            raise EvaluationError(f"no such overload: {type_name(one)} {sign} {type_name(other)}")
        return _check_bounds(compute(one, other))

    return calculate


def _add(one: Any, other: Any) -> Any:
    joined = type(one) is type(other) and isinstance(one, (str, list))
    return one + other if joined else _arithmetic("+", operator.add)(one, other)


def _divide(one: Any, other: Any) -> Any:
    if isinstance(one, float):
        if other == 0:
            return math.nan if one == 0 or math.isnan(one) else math.copysign(math.inf, one)
        return one / other
    if other == 0:
        raise EvaluationError("division by zero")
    quotient = abs(one) // abs(other)
    return quotient if (one < 0) == (other < 0) else -quotient


def _modulo(one: Any, other: Any) -> Any:
    if isinstance(one, float):
        raise EvaluationError("no such overload: double % double")
    if other == 0:
        raise EvaluationError("modulus by zero")
    return one - other * _divide(one, other)


def _negate(value: Any) -> Any:
    if not _numeric(value):
        raise EvaluationError(f"no such overload: -{type_name(value)}")
    return _check_bounds(-value)


def _contains(element: Any, container: Any) -> bool:
    if isinstance(container, dict) and isinstance(element, str):
        return element in container
    if isinstance(container, (list, dict)):
        return any(equal(element, each) for each in container)
    raise EvaluationError(f"no such overload: in {type_name(container)}")


def _size(value: Any) -> int:
    if isinstance(value, (str, list, dict)):
        return len(value)
    raise EvaluationError(f"no such overload: size({type_name(value)})")


def _sum(value: Any) -> Any:
    if not isinstance(value, list) or not all(map(_numeric, value)):
        raise EvaluationError(f"no such overload: sum() of {type_name(value)}")
    return _check_bounds(sum(value))


def _text(function: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps a function whose first arguments are strings; integers may follow."""

    def call_checked(target: Any, *args: Any) -> Any:
        if not isinstance(target, str) or any(isinstance(each, (list, dict, float, type(None))) for each in args):
            raise EvaluationError(f"no such overload: a string is expected, not {type_name(target)}")
        try:
            return function(target, *args)
        except TypeError:
            raise EvaluationError("no such overload: a string is expected") from None

    return call_checked


def _search(pattern: str, text: str) -> re.Match[str] | None:
    try:
        return go_pattern(pattern).search(text)
    except re.error as error:
        raise EvaluationError(f"error parsing regexp: {error}") from None


def _matches(text: str, pattern: str) -> bool:
    return _search(pattern, text) is not None


def _find(text: str, pattern: str) -> str:
    found = _search(pattern, text)
    return found.group() if found is not None else ""


def _find_all(text: str, pattern: str, limit: int = -1) -> list[str]:
    _search(pattern, "")  # an invalid pattern is an error
    found = [each.group() for each in go_pattern(pattern).finditer(text)]
    return found if limit < 0 else found[:limit]


def _char_at(text: str, index: int) -> str:
    if not 0 <= index <= len(text):
        raise EvaluationError(f"index out of range: {index}")
    return text[index : index + 1]


def _index(of_text: Callable[[str, str], int], *, last: bool) -> Callable[[Any, Any], int]:
    """A function that finds a text in a text, or an element in a list; -1 if there is none."""

    def index(target: Any, wanted: Any) -> int:
        if not isinstance(target, list):
            return int(_text(of_text)(target, wanted))
        places = [number for number, each in enumerate(target) if equal(each, wanted)]
        return places[-1 if last else 0] if places else -1

    return index


def _extreme(compare: Callable[[Any, Any], bool]) -> Callable[[Any], Any]:
    def extreme(target: Any) -> Any:
        if not isinstance(target, list) or not target:
            raise EvaluationError(f"min() and max() need a list that is not empty, not {type_name(target)}")
        found = target[0]
        for each in target[1:]:
            found = each if compare(each, found) else found
        return found

    return extreme


def _is_sorted(target: Any) -> bool:
    if not isinstance(target, list):
        raise EvaluationError(f"no such overload: {type_name(target)}.isSorted()")
    return all(_compare(operator.le)(one, other) for one, other in itertools.pairwise(target))


#: Letters as CEL's functions for ASCII change them, and no others (CEL extensions, strings).
_LOWER = {ord("A") + each: ord("a") + each for each in range(26)}
_UPPER = {lower: upper for upper, lower in _LOWER.items()}
#: White space as Go's ``strings.TrimSpace`` knows it (Unicode White_Space); Python has four control characters more.
_SPACE = "\t\n\v\f\r \x85\xa0\u1680\u2028\u2029\u202f\u205f\u3000" + "".join(map(chr, range(0x2000, 0x200B)))
#: Numbers in texts as Go's ``strconv`` reads them for CEL.
_INTEGER = re.compile(r"[+-]?[0-9]+\Z")
_DOUBLE = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?\Z|[+-]?(inf|infinity)\Z|nan\Z", re.IGNORECASE)


def _double_text(value: float) -> str:
    """A number as Go's verb ``%g`` writes it: from a million on with an exponent."""
    if not math.isfinite(value):
        return {math.inf: "+Inf", -math.inf: "-Inf"}.get(value, "NaN")
    sign, digits, exponent = Decimal(repr(value)).normalize().as_tuple()
    point = len(digits) + int(exponent)
    if value == 0 or -4 <= point - 1 < 6:
        text = f"{Decimal(repr(value)).normalize():f}"
        return "-0" if value == 0 and math.copysign(1, value) < 0 else text
    mantissa = str(digits[0]) + ("." + "".join(map(str, digits[1:])) if digits[1:] else "")
    return f"{'-' if sign else ''}{mantissa}e{point - 1:+03d}"


def _substring(text: str, start: int, end: int | None = None) -> str:
    stop = len(text) if end is None else end
    if not 0 <= start <= stop <= len(text):
        raise EvaluationError(f"index out of range: {start}")
    return text[start:stop]


def _join(target: Any, separator: str = "") -> str:
    if not isinstance(target, list) or not all(isinstance(each, str) for each in target):
        raise EvaluationError("no such overload: join() needs a list of strings")
    return separator.join(target)


def _to_string(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return _double_text(value)
    if isinstance(value, (str, int)):
        return str(value)
    raise EvaluationError(f"no such overload: string({type_name(value)})")


def _to_int(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, (str, int, float)):
        raise EvaluationError(f"no such overload: int({type_name(value)})")
    if isinstance(value, str) and _INTEGER.match(value) is None:
        raise EvaluationError(f"type conversion error: {value!r} is no integer")
    try:
        return int(_check_bounds(int(value)))
    except (ValueError, OverflowError):
        raise EvaluationError(f"type conversion error: {value!r} is no integer") from None


def _to_double(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (str, int, float)):
        raise EvaluationError(f"no such overload: double({type_name(value)})")
    if isinstance(value, str) and _DOUBLE.match(value) is None:
        raise EvaluationError(f"type conversion error: {value!r} is no double")
    return float(value)


def _or_value(target: Any, default: Any) -> Any:
    if not isinstance(target, OptionalValue):
        raise EvaluationError(f"no such overload: {type_name(target)}.orValue()")
    return target.value if target.present else default


def _has_value(target: Any) -> bool:
    if not isinstance(target, OptionalValue):
        raise EvaluationError(f"no such overload: {type_name(target)}.hasValue()")
    return target.present


def _unwrap(target: Any) -> Any:
    if not isinstance(target, OptionalValue) or not target.present:
        raise EvaluationError("optional.none() dereference")
    return target.value


def _or(target: Any, other: Any) -> OptionalValue:
    if not isinstance(target, OptionalValue) or not isinstance(other, OptionalValue):
        raise EvaluationError(f"no such overload: {type_name(target)}.or({type_name(other)})")
    return target if target.present else other


def _includes(target: Any, wanted: Any) -> bool:
    """True if an attribute has the value, alone or in a list (Kubernetes, KEP-5491)."""
    return any(equal(each, wanted) for each in target) if isinstance(target, list) else equal(target, wanted)


def _lists(compare: Callable[[Any, Any], bool]) -> Callable[[Any, Any], bool]:
    def compare_checked(one: Any, other: Any) -> bool:
        if not isinstance(one, list) or not isinstance(other, list):
            raise EvaluationError(f"no such overload: two lists are expected, not {type_name(one)}, {type_name(other)}")
        return compare(one, other)

    return compare_checked


def _equivalent(one: Any, other: Any) -> bool:
    return all(_contains(each, other) for each in one) and all(_contains(each, one) for each in other)


#: Functions and operators of values.
FUNCTIONS: Mapping[str, tuple[Sequence[int], Callable[..., Any]]] = {
    "==": ((2,), equal),
    "!=": ((2,), lambda one, other: not equal(one, other)),
    "<": ((2,), _compare(operator.lt)),
    "<=": ((2,), _compare(operator.le)),
    ">": ((2,), _compare(operator.gt)),
    ">=": ((2,), _compare(operator.ge)),
    "in": ((2,), _contains),
    "+": ((2,), _add),
    "-": ((2,), _arithmetic("-", operator.sub)),
    "*": ((2,), _arithmetic("*", operator.mul)),
    "/": ((2,), _arithmetic("/", _divide)),
    "%": ((2,), _arithmetic("%", _modulo)),
    "!_": ((1,), lambda value: not boolean(value)),
    "-_": ((1,), _negate),
    "size": ((1,), _size),
    "string": ((1,), _to_string),
    "int": ((1,), _to_int),
    "double": ((1,), _to_double),
    "dyn": ((1,), lambda value: value),
    "matches": ((2,), _text(_matches)),
    "sets.contains": ((2,), _lists(lambda one, other: all(_contains(each, one) for each in other))),
    "sets.intersects": ((2,), _lists(lambda one, other: any(_contains(each, one) for each in other))),
    "sets.equivalent": ((2,), _lists(_equivalent)),
    "optional.none": ((0,), lambda: NOTHING),
    "optional.of": ((1,), lambda value: OptionalValue(True, value)),
    **KUBERNETES_FUNCTIONS,
}
#: Names before a dot that belong to a function, not to a variable.
NAMESPACES = frozenset({"cel", "optional", "sets"})
#: Functions of a target whose last argument is a pattern.
PATTERN_METHODS = frozenset({"matches", "find", "findAll"})
#: Functions of a target.
METHODS: Mapping[str, tuple[Sequence[int], Callable[..., Any]]] = {
    "startsWith": ((1,), _text(str.startswith)),
    "endsWith": ((1,), _text(str.endswith)),
    "contains": ((1,), _text(operator.contains)),
    "matches": ((1,), _text(_matches)),
    "size": ((0,), _size),
    "sum": ((0,), _sum),
    "lowerAscii": ((0,), _text(lambda text: text.translate(_LOWER))),
    "upperAscii": ((0,), _text(lambda text: text.translate(_UPPER))),
    "trim": ((0,), _text(lambda text: text.strip(_SPACE))),
    "split": ((1,), _text(lambda text, separator: text.split(separator) if separator else list(text))),
    "replace": ((2,), _text(str.replace)),
    "charAt": ((1,), _text(_char_at)),
    "find": ((1,), _text(_find)),
    "findAll": ((1, 2), _text(_find_all)),
    "indexOf": ((1,), _index(str.find, last=False)),
    "lastIndexOf": ((1,), _index(str.rfind, last=True)),
    "isSorted": ((0,), _is_sorted),
    "min": ((0,), _extreme(_compare(operator.lt))),
    "max": ((0,), _extreme(_compare(operator.gt))),
    "substring": ((1, 2), _text(_substring)),
    "join": ((0, 1), _join),
    "orValue": ((1,), _or_value),
    "hasValue": ((0,), _has_value),
    "value": ((0,), _unwrap),
    "includes": ((1,), _includes),
    "or": ((1,), _or),
    **KUBERNETES_METHODS,
}
