"""The annotation of preflights: bounded, and a value that cannot be read is none."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tessera.api.nodes.preflights import (
    PREFLIGHT_ANNOTATION,
    PREFLIGHT_TEXT,
    CardTest,
    decode_tests,
    describe_test,
    encode_tests,
    write_rate,
)
from tessera.limits import NODE_CARDS

AT = 1_700_000_000
PASSED = CardTest(index=0, gpu="GPU-a", at=AT, rates={"memory_bandwidth": 1.31e12, "product": 1.7e13})
SLOW = CardTest(index=1, gpu="GPU-b", at=AT, finding="memory_bandwidth 200 GB/s: below 50% of 1.55 TB/s (data sheet)")
SKIPPED = CardTest(index=2, gpu="GPU-c", at=AT, skipped="the card is in MIG mode")


def read(text: str) -> tuple[CardTest, ...]:
    return decode_tests({PREFLIGHT_ANNOTATION: text})


def test_what_is_written_is_read() -> None:
    assert read(encode_tests([SKIPPED, SLOW, PASSED])) == (PASSED, SLOW, SKIPPED)
    assert decode_tests({}) == ()


def test_many_cards_with_long_findings_lose_rates_and_words_and_stay_readable() -> None:
    rates = {f"test_{chr(97 + n)}": 1e12 for n in range(16)}
    tests = [CardTest(index=n, gpu=f"GPU-{n}", at=AT, finding="x" * 500, rates=rates) for n in range(NODE_CARDS + 5)]
    text = encode_tests(tests)
    assert len(text) <= PREFLIGHT_TEXT
    assert len(read(text)) == NODE_CARDS


@pytest.mark.parametrize(
    "text",
    [
        "",
        "x",
        "{}",
        "[1]",
        '[{"index": -7, "gpu": "GPU-a"}]',
        '[{"index": 0, "gpu": "a b"}]',
        '[{"index": 0, "gpu": "GPU-a", "rates": {"a": -1}}]',
        '[{"index": 0, "gpu": "GPU-a", "rates": {"A b": 1}}]',
        "[" * 5000,
        msgspec.json.encode([{"index": 0, "gpu": "GPU-a"}] * (NODE_CARDS + 1)).decode(),
        " " * (PREFLIGHT_TEXT + 1),
    ],
)
def test_a_value_that_cannot_be_read_is_none(text: str) -> None:
    assert read(text) == ()


@given(st.text())
def test_no_text_is_an_error(text: str) -> None:
    assert isinstance(read(text), tuple)


def test_a_result_is_a_sentence_with_its_rates() -> None:
    assert describe_test(PASSED) == (
        "preflight of 2023-11-14T22:13:20Z passed; memory bandwidth 1.31 TB/s, product 17 TFLOP/s"
    )
    assert describe_test(SLOW).startswith("preflight of 2023-11-14T22:13:20Z failed: memory_bandwidth 200 GB/s: below")
    assert describe_test(SKIPPED).endswith("tested nothing: the card is in MIG mode")


@pytest.mark.parametrize(
    ("test", "value", "text"),
    [("product", 3.82e13, "38.2 TFLOP/s"), ("host_to_card", 2.51e10, "25.1 GB/s"), ("x", 12.0, "12 B/s")],
)
def test_rates_have_units(test: str, value: float, text: str) -> None:
    assert write_rate(test, value) == text
