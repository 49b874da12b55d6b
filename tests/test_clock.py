"""Dates are written as Kubernetes writes them and read back to the same instant; waiting for an event has an end."""

import asyncio

import pytest

from tessera.clock import LoopClock, parse_rfc3339, rfc3339, rfc3339_micro, until_set
from tessera_lab.simulation.virtual_time import run_virtual


def test_time_is_written_in_whole_seconds_utc() -> None:
    assert rfc3339(1_700_000_000.9) == "2023-11-14T22:13:20Z"


def test_micro_time_has_six_decimals_and_reads_back() -> None:
    text = rfc3339_micro(1_700_000_000.25)
    assert text == "2023-11-14T22:13:20.250000Z"
    assert parse_rfc3339(text) == 1_700_000_000.25


def test_a_time_beyond_all_dates_is_the_last_second_there_is() -> None:
    """A node's condition may say so, and what follows from it must still be told."""
    after = parse_rfc3339("9999-12-31T23:59:59-14:00")
    assert rfc3339(after) == rfc3339(1e308) == "9999-12-31T23:59:59Z"
    assert rfc3339_micro(1e308) == "9999-12-31T23:59:59.000000Z"
    assert rfc3339(-1e308).endswith("1-01-01T00:00:00Z")


def test_a_date_that_is_none_is_refused() -> None:
    with pytest.raises(ValueError, match="isoformat"):
        parse_rfc3339("yesterday")


@pytest.mark.parametrize(("at_most", "took"), [(None, 5.0), (60.0, 5.0), (3.0, 3.0), (0.0, 0.0)])
def test_an_event_is_waited_for_but_not_longer_than_asked(at_most: float | None, took: float) -> None:
    async def story() -> float:
        event = asyncio.Event()
        asyncio.get_running_loop().call_later(5.0, event.set)
        await until_set(event, at_most)
        return LoopClock(0).monotonic()

    assert run_virtual(story()) == took
