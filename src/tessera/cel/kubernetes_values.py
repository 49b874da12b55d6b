"""Values of CEL that JSON does not have, with their functions: quantities, semantic versions and patterns of Go.

Rules of the first two: k8s.io/apiserver/pkg/cel/library ``quantity.go`` and ``semverlib.go``; versions are compared as
on semver.org: a pre-release comes before its release, build metadata does not count.

Patterns are those of Go's regexp, for Python's ``re``. Go's engine reads a text once; Python's tries one choice after
the other, up to exponentially many. So a pattern from a tenant is priced before it is run: :func:`count_choices` is
never less than the number of ways that ``re`` can try.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from functools import lru_cache, total_ordering
from typing import Any, ClassVar

import msgspec

from tessera.kube.quantity import parse_quantity
from tessera.limits import Limit

VERSION_TEXT = Limit(
    256,
    "characters",
    "a text that CEL's `semver()` reads",
    "an attribute of a device has at most 64",
)
_NAMES = {type(None): "null", bool: "bool", int: "int", float: "double", str: "string", list: "list", dict: "map"}
_NUMBER = r"(0|[1-9][0-9]*)"
_PARTS = r"[0-9A-Za-z-]+(?:\.[0-9A-Za-z-]+)*"
_SEMVER = re.compile(rf"{_NUMBER}\.{_NUMBER}\.{_NUMBER}(?:-({_PARTS}))?(?:\+({_PARTS}))?")
_LOOSE = re.compile(r"v?0*(\d+)(?:\.0*(\d+))?(?:\.0*(\d+))?([-+].*)?")
Table = Mapping[str, tuple[Sequence[int], Callable[..., Any]]]
#: POSIX classes inside brackets, which Python lacks.
_POSIX = {
    "[:alpha:]": "A-Za-z",
    "[:digit:]": "0-9",
    "[:alnum:]": "A-Za-z0-9",
    "[:upper:]": "A-Z",
    "[:lower:]": "a-z",
    "[:space:]": r"\s",
    "[:xdigit:]": "0-9A-Fa-f",
    "[:word:]": r"\w",
}
_GO_END = re.compile(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|\$|\(\?P?<|\(\?[=!]|\(\?<[=!]", re.DOTALL)
#: Largest number of repetitions that Go's regexp takes (regexp/syntax: "invalid repeat count").
_REPETITIONS = 1000
#: Parts of a pattern that matter for the number of choices.
_PART = re.compile(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|[(|)]|[*+?]\??|\{(\d+)(?:(,)(\d*))?\}\??|.", re.DOTALL)


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


def type_name(value: Any) -> str:
    """CEL's name of the value's type."""
    kind = type(value)
    return _NAMES.get(kind) or str(getattr(kind, "cel_name", kind.__name__))


class Quantity(msgspec.Struct, frozen=True, order=True):
    """``quantity("40Gi")``: an exact number."""

    cel_name: ClassVar[str] = "kubernetes.Quantity"

    number: Decimal


@total_ordering
class Semver(msgspec.Struct, frozen=True, eq=False):
    """``semver("1.2.3")``."""

    cel_name: ClassVar[str] = "kubernetes.Semver"

    numbers: tuple[int, int, int]
    pre_release: tuple[str, ...] = ()

    def _key(self) -> tuple[Any, ...]:
        parts = tuple((0, int(each), "") if each.isdigit() else (1, 0, each) for each in self.pre_release)
        return (self.numbers, not parts, parts)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Semver) and self._key() == other._key()

    def __lt__(self, other: "Semver") -> bool:
        return self._key() < other._key()

    def __hash__(self) -> int:
        return hash(self._key())

    def __str__(self) -> str:
        return ".".join(map(str, self.numbers)) + ("-" + ".".join(self.pre_release) if self.pre_release else "")


def read_semver(text: str) -> Semver:
    """Reads a version.

    Raises:
        ValueError: the text is none.
    """
    found = _SEMVER.fullmatch(text) if len(text) <= VERSION_TEXT else None
    parts = tuple((found[4] or "").split(".")) if found and found[4] else ()
    if found is None or any(each.isdigit() and len(each) > 1 and each[0] == "0" for each in parts):
        raise ValueError(f"{text[:64]!r} is no semantic version, e.g. 12.4.0")
    return Semver((int(found[1]), int(found[2]), int(found[3])), parts)


def normalize_version(text: str) -> str:
    """Returns a version whose ``v``, leading zeros or missing parts are mended, as far as it has any."""
    found = _LOOSE.fullmatch(text[:VERSION_TEXT])
    return text if found is None else f"{found[1]}.{found[2] or 0}.{found[3] or 0}{found[4] or ''}"


def _semver(text: Any, normalize: Any = False) -> Semver:
    if not isinstance(text, str) or not isinstance(normalize, bool):
        raise EvaluationError(f"no such overload: semver({type_name(text)})")
    try:
        return read_semver(normalize_version(text) if normalize else text)
    except ValueError as error:
        raise EvaluationError(str(error)) from None


def _quantity(text: Any) -> Quantity:
    if not isinstance(text, str):
        raise EvaluationError(f"no such overload: quantity({type_name(text)})")
    try:
        return Quantity(parse_quantity(text))
    except ValueError as error:
        raise EvaluationError(str(error)) from None


def _has_value(read: Callable[..., Any]) -> Callable[..., bool]:
    def is_valid(text: Any, *args: Any) -> bool:
        if not isinstance(text, str):
            raise EvaluationError(f"no such overload: a string is expected, not {type_name(text)}")
        try:
            read(text, *args)
        except EvaluationError:
            return False
        return True

    return is_valid


def _compare(compute: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    def compare(one: Any, other: Any) -> Any:
        if type(one) is not type(other) or not isinstance(one, (Quantity, Semver)):
            raise EvaluationError(f"no such overload: {type_name(one)} compared with {type_name(other)}")
        return compute(one, other)

    return compare


def _of_quantity(compute: Callable[..., Any]) -> Callable[..., Any]:
    def call(target: Any, *args: Any) -> Any:
        if not isinstance(target, Quantity):
            raise EvaluationError(f"no such overload: a quantity is expected, not {type_name(target)}")
        numbers = [each.number if isinstance(each, Quantity) else each for each in args]
        if not all(isinstance(each, (Decimal, int)) and not isinstance(each, bool) for each in numbers):
            raise EvaluationError("no such overload: a quantity or an integer is expected")
        return compute(target.number, *numbers)

    return call


def _fits_int(number: Decimal) -> bool:
    return number == number.to_integral_value() and -(2**63) <= number < 2**63


def _as_integer(number: Decimal) -> int:
    if not _fits_int(number):
        raise EvaluationError("cannot convert value to integer")
    return int(number)


def _of_version(index: int) -> Callable[[Any], int]:
    def part(target: Any) -> int:
        if not isinstance(target, Semver):
            raise EvaluationError(f"no such overload: a version is expected, not {type_name(target)}")
        return target.numbers[index]

    return part


KUBERNETES_FUNCTIONS: Table = {
    "quantity": ((1,), _quantity),
    "isQuantity": ((1,), _has_value(_quantity)),
    "semver": ((1, 2), _semver),
    "isSemver": ((1, 2), _has_value(_semver)),
}
KUBERNETES_METHODS: Table = {
    "compareTo": ((1,), _compare(lambda one, other: (one > other) - (one < other))),
    "isGreaterThan": ((1,), _compare(lambda one, other: one > other)),
    "isLessThan": ((1,), _compare(lambda one, other: one < other)),
    "isInteger": ((0,), _of_quantity(_fits_int)),
    "asInteger": ((0,), _of_quantity(_as_integer)),
    "asApproximateFloat": ((0,), _of_quantity(float)),
    "sign": ((0,), _of_quantity(lambda number: (number > 0) - (number < 0))),
    "add": ((1,), _of_quantity(lambda number, other: Quantity(number + other))),
    "sub": ((1,), _of_quantity(lambda number, other: Quantity(number - other))),
    "major": ((0,), _of_version(0)),
    "minor": ((0,), _of_version(1)),
    "patch": ((0,), _of_version(2)),
}


def _translate(found: re.Match[str]) -> str:
    text = found.group()
    if text == "$":
        return r"\Z"
    if text in ("(?=", "(?!", "(?<=", "(?<!"):
        raise re.error("invalid or unsupported Perl syntax: `" + text + "`")
    if text == "(?<":
        return "(?P<"
    if text.startswith("["):
        for name, chars in _POSIX.items():
            text = text.replace(name, chars)
    return {r"\z": r"\Z", r"\pL": r"[^\W\d_]", r"\pN": r"\d"}.get(text, text)


@lru_cache(maxsize=1024)
def go_pattern(pattern: str) -> re.Pattern[str]:
    """Compiles a pattern of Go's regexp, for use with ``search``.

    Raises:
        re.error: the pattern is not valid, or uses something that Go refuses.
    """
    for part in _PART.finditer(pattern):
        if max(map(_number, filter(None, (part[1], part[3]))), default=0) > _REPETITIONS:
            raise re.error(f"invalid repeat count: `{part.group()[:32]}`")
    try:
        return re.compile(_GO_END.sub(_translate, pattern), re.ASCII)
    except (ValueError, OverflowError) as error:  # flags that Go lacks
        raise re.error(str(error)) from None


def count_choices(pattern: str, length: int) -> float:
    """Returns an upper bound of the ways to match a pattern with the beginning of a text; infinity if it is huge.

    Args:
        pattern: the pattern.
        length: characters of the text.
    """
    groups: list[float] = []  # product of the choices before each open group
    product, last, alternatives = 1.0, 1.0, [0.0]  # of the open group; of its last atom; of its finished branches
    for part in _PART.finditer(pattern):
        text = part.group()
        if text == "(":
            groups.append(product)
            product, last = 1.0, 1.0
            alternatives.append(0.0)
        elif text == "|":
            alternatives[-1] += product
            product, last = 1.0, 1.0
        elif text == ")" and groups:
            last = alternatives.pop() + product
            product = groups.pop() * last
        elif text[0] in "*+?{" and (len(text) > 1 or text != "{"):
            product *= _repetitions(text, part, length) * _power(last, _most(text, part, length) - 1)
            last = 1.0
        else:
            last = 1.0
    return alternatives[0] + product


def _most(text: str, part: re.Match[str], length: int) -> int:
    if text[0] == "?":
        return 1
    if text[0] in "*+" or (part[2] and not part[3]):
        return length + 1
    return _number(part[3] or part[1])


def _repetitions(text: str, part: re.Match[str], length: int) -> int:
    """The numbers of times that a repetition may try."""
    most = _most(text, part, length)
    least = _number(part[1]) if part[1] else int(text[0] == "+")
    return max(most - least, 0) + 1


def _number(digits: str) -> int:
    """A number of repetitions; one that :func:`go_pattern` refuses counts as one more than it takes."""
    digits = digits.lstrip("0") or "0"
    return int(digits) if len(digits) <= len(str(_REPETITIONS)) else _REPETITIONS + 1


def _power(base: float, exponent: int) -> float:
    try:
        return base ** max(exponent, 0)
    except OverflowError:
        return float("inf")
