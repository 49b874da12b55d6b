"""Dates are written as Kubernetes writes them and read back to the same instant."""

import pytest

from tessera.clock import parse_rfc3339, rfc3339, rfc3339_micro


def test_time_is_written_in_whole_seconds_utc() -> None:
    assert rfc3339(1_700_000_000.9) == "2023-11-14T22:13:20Z"


def test_micro_time_has_six_decimals_and_reads_back() -> None:
    text = rfc3339_micro(1_700_000_000.25)
    assert text == "2023-11-14T22:13:20.250000Z"
    assert parse_rfc3339(text) == 1_700_000_000.25


def test_a_date_that_is_none_is_refused() -> None:
    with pytest.raises(ValueError, match="isoformat"):
        parse_rfc3339("yesterday")
