"""Quantities, exactly as Kubernetes reads and writes them."""

from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tessera.kube.quantity import format_quantity, integer_value, milli_value, parse_quantity, quantity_text


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("0", "0"),
        ("100m", "0.1"),
        ("1.5Gi", "1610612736"),
        ("2e3", "2000"),
        ("2E3", "2000"),
        ("1E", "1000000000000000000"),
        ("1Ei", "1152921504606846976"),
        (".5", "0.5"),
        ("5.", "5"),
        ("-3k", "-3000"),
        ("+7n", "0.000000007"),
        ("12345678901234567890123", "12345678901234567890123"),
    ],
)
def test_values_are_exact(text: str, value: str) -> None:
    assert parse_quantity(text) == Decimal(value)


@pytest.mark.parametrize(
    "text", ["", " 1", "1 ", "Gi", "1Zi", "1ki", "1K", "0x1", "1e", "1e99999", "--1", "1,5", "NaN", "9" * 250_000]
)
def test_anything_else_is_refused_with_the_rule(text: str) -> None:
    with pytest.raises(ValueError, match="quantity '"):
        parse_quantity(text)


@pytest.mark.parametrize(("value", "number"), [(1, 1), (0.5, 0.5), (-2, -2), (1e21, 10**21), (1e-7, 1e-7), (None, 0)])
def test_numbers_and_null_are_quantities(value: object, number: float) -> None:
    assert float(parse_quantity(quantity_text(value))) == number


@pytest.mark.parametrize("value", [True, False, float("inf"), float("nan"), 1e300, [1], {"a": 1}])
def test_other_json_values_are_no_quantities(value: object) -> None:
    with pytest.raises(ValueError, match="quantity '"):
        parse_quantity(quantity_text(value))


def test_integers_are_rounded_up() -> None:
    assert (integer_value("100m"), integer_value("1"), integer_value("-1.5")) == (1, 1, -1)
    assert (milli_value("0.5"), milli_value("1u"), milli_value("2")) == (500, 1, 2000)


@pytest.mark.parametrize(
    ("value", "binary", "text"),
    [
        (Decimal("0.1"), False, "100m"),
        (2000, False, "2k"),
        (1500, False, "1500"),
        (40 * 2**30, True, "40Gi"),
        (1536 * 2**20, True, "1536Mi"),
        (1000, True, "1000"),
        (-1024, True, "-1Ki"),
        (0, True, "0"),
        (Decimal("1e-12"), False, "1n"),
    ],
)
def test_the_canonical_text_has_the_largest_suffix_that_leaves_an_integer(
    value: Decimal | int, binary: bool, text: str
) -> None:
    assert format_quantity(value, binary=binary) == text


@given(st.integers(-(10**30), 10**30), st.booleans())
def test_formatting_loses_nothing(nano: int, binary: bool) -> None:
    value = Decimal(nano).scaleb(-9)
    assert parse_quantity(format_quantity(value, binary=binary)) == value
