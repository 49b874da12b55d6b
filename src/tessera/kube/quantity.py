"""Kubernetes quantities (``100m``, ``1.5Gi``, ``2e3``) as exact numbers, and back.

Values are ``Decimal``: exact for every quantity there is, since all suffixes are integers or powers of ten. Grammar and
canonical form: k8s.io/apimachinery ``resource.Quantity``.

Why no library: the official client's ``parse_quantity`` accepts ``1K``, ``1_000`` and ``NaN``; Kubernetes refuses them.
"""

import re
from decimal import ROUND_CEILING, Context, Decimal, localcontext

from tessera.limits import ECHOED, QUANTITY

_BINARY = {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40, "Pi": 2**50, "Ei": 2**60}
_DECIMAL = {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}

# Every character is matched in one way only, so that a text that is no quantity is refused in one pass.
_FORM = re.compile(r"([+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+))(?:[eE]([+-]?[0-9]+)|([KMGTPE]i|[numkMGTPE]?))")

#: Enough digits that no product of a quantity and a suffix is rounded.
_EXACT = Context(prec=100)


def parse_quantity(text: str) -> Decimal:
    """The exact value.

    Raises:
        ValueError: the text is no quantity.
    """
    if len(text) > QUANTITY:
        raise ValueError(f"quantity {text[:ECHOED]!r}...: has {len(text):,} characters; {QUANTITY} are allowed")
    match = _FORM.fullmatch(text)
    if match is None:
        raise ValueError(
            f"quantity {text!r}: a number is expected, alone or with an exponent or one of the suffixes"
            f" {' '.join(suffix for suffix in (*_DECIMAL, *_BINARY) if suffix)}, e.g. 100m, 1.5Gi, 2e3"
        )
    number, exponent, suffix = match.groups()
    if exponent is not None and abs(int(exponent)) > 30:
        raise ValueError(f"quantity {text!r}: the exponent is out of range, at most 30")
    with localcontext(_EXACT):
        if exponent is not None:
            return Decimal(number).scaleb(int(exponent))
        if suffix in _BINARY:
            return Decimal(number) * _BINARY[suffix]
        return Decimal(number).scaleb(_DECIMAL[suffix])


def quantity_text(value: object) -> str:
    """The text of a quantity as it stands in JSON or YAML, where Kubernetes also takes numbers, and null as 0.

    Anything else becomes a text that :func:`parse_quantity` refuses.
    """
    match value:
        case str():
            return value
        case None:
            return "0"
        case bool():
            return "true" if value else "false"
        case int() | float():
            return str(value)
        case _:
            return "a list" if isinstance(value, list) else "an object"


def integer_value(text: str) -> int:
    """The value rounded up to an integer, as ``Quantity.Value``: bytes, devices.

    Raises:
        ValueError: the text is no quantity.
    """
    return int(parse_quantity(text).to_integral_value(ROUND_CEILING))


def count_or_zero(text: str) -> int:
    """A count in a node's status; 0 if it is no quantity, which kubelet corrects with its next status."""
    try:
        return integer_value(text)
    except ValueError:
        return 0


def milli_value(text: str) -> int:
    """A thousand times the value, rounded up, as ``Quantity.MilliValue``: CPU.

    Raises:
        ValueError: the text is no quantity.
    """
    with localcontext(_EXACT):
        return int((parse_quantity(text) * 1000).to_integral_value(ROUND_CEILING))


def format_quantity(value: Decimal | int, *, binary: bool = False) -> str:
    """The canonical text: the largest suffix that leaves an integer. ``binary`` takes Ki to Ei where they divide.

    Fractions below one billionth are rounded up, as Kubernetes does.
    """
    with localcontext(_EXACT):
        nano = int((Decimal(value) * 10**9).to_integral_value(ROUND_CEILING))
    if nano == 0:
        return "0"
    if binary and nano % 10**9 == 0:
        return _format_binary(nano // 10**9)
    for suffix, exponent in reversed(_DECIMAL.items()):
        quotient, rest = divmod(nano, 10 ** (exponent + 9))
        if rest == 0:
            return f"{quotient}{suffix}"
    raise AssertionError(value)


def _format_binary(value: int) -> str:
    for suffix, factor in reversed(_BINARY.items()):
        if value % factor == 0:
            return f"{value // factor}{suffix}"
    return str(value)
