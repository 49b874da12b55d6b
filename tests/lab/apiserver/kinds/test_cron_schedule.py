"""Cron schedules: times by every kind of field, across clock changes, and what is refused."""

from datetime import UTC, datetime, tzinfo
from itertools import pairwise
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tessera_lab.apiserver.kinds.cron_schedule import find_zone, parse_schedule

#: A Thursday.
BEGIN = datetime(2026, 1, 1, 0, 0, 30, tzinfo=UTC)
BERLIN = ZoneInfo("Europe/Berlin")


def times(text: str, count: int, begin: datetime = BEGIN, zone: tzinfo = UTC) -> list[str]:
    """The first times of a schedule, on the zone's clock."""
    schedule, at, found = parse_schedule(text), begin.timestamp(), list[str]()
    for _ in range(count):
        following = schedule.next(at, zone)
        assert following is not None
        at = following
        found.append(datetime.fromtimestamp(at, zone).strftime("%m-%d %H:%M"))
    return found


@pytest.mark.parametrize(
    ("text", "first"),
    [
        ("* * * * *", ["01-01 00:01", "01-01 00:02"]),
        ("*/20 * * * *", ["01-01 00:20", "01-01 00:40", "01-01 01:00"]),
        ("5,10-12 3 * * *", ["01-01 03:05", "01-01 03:10", "01-01 03:11", "01-01 03:12", "01-02 03:05"]),
        ("0 22/1 * * *", ["01-01 22:00", "01-01 23:00", "01-02 22:00"]),
        ("0 0 31 * ?", ["01-31 00:00", "03-31 00:00", "05-31 00:00"]),
        ("0 0 29 2 *", ["02-29 00:00"]),
        ("0 9 * * mon-FRI", ["01-01 09:00", "01-02 09:00", "01-05 09:00"]),
        ("0 0 13 * 5", ["01-02 00:00", "01-09 00:00", "01-13 00:00", "01-16 00:00"]),
        ("15 4 1 Feb,dec *", ["02-01 04:15", "12-01 04:15", "02-01 04:15"]),
        ("@hourly", ["01-01 01:00"]),
        ("@weekly", ["01-04 00:00"]),
        ("@every 90m", ["01-01 01:30", "01-01 03:00"]),
    ],
)
def test_times(text: str, first: list[str]) -> None:
    assert times(text, len(first)) == first


def test_a_time_that_the_clock_skips_does_not_come() -> None:
    spring = datetime(2026, 3, 28, 12, tzinfo=BERLIN)
    assert times("30 2 * * *", 2, spring, BERLIN) == ["03-30 02:30", "03-31 02:30"]


def test_a_time_that_the_clock_shows_twice_comes_twice() -> None:
    autumn = datetime(2026, 10, 24, 12, tzinfo=BERLIN)
    assert times("30 2 * * *", 3, autumn, BERLIN) == ["10-25 02:30", "10-25 02:30", "10-26 02:30"]


def test_a_day_that_never_comes() -> None:
    schedule, begin = parse_schedule("0 0 31 2 *"), BEGIN.timestamp()
    assert schedule.next(begin, UTC) is None
    assert schedule.latest(begin, begin + 1e8, UTC) == (None, 0)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("* * * *", "expected exactly 5 fields, found 4"),
        ("60 * * * *", r"end of range \(60\) above maximum \(59\)"),
        ("* * 0 * *", r"beginning of range \(0\) below minimum \(1\)"),
        ("* * * * 7", r"end of range \(7\) above maximum \(6\)"),
        ("5-3 * * * *", r"beginning of range \(5\) beyond end of range \(3\)"),
        ("*/0 * * * *", "step of range should be a positive number"),
        ("a * * * *", "failed to parse int from a"),
        ("1- * * * *", "failed to parse int from "),
        ("@often", "unrecognized descriptor: @often"),
        ("@every week", "failed to parse duration @every week"),
        ("@every 0s", "failed to parse duration @every 0s"),
    ],
)
def test_what_is_refused(text: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        parse_schedule(text)


@pytest.mark.parametrize("name", ["Nowhere/City", "../etc/passwd", "Europe", "local"])
def test_no_time_zone(name: str) -> None:
    with pytest.raises(ValueError, match="time zone"):
        find_zone(name)


FIELDS = ("*", "0", "*/7", "10-40/15"), ("*", "3", "1-5"), ("*", "1", "*/9"), ("*", "2", "6-8"), ("*", "1", "mon-fri")


@given(
    st.tuples(*map(st.sampled_from, FIELDS)).map(" ".join),
    st.integers(0, 400 * 86400),
    st.floats(0, 2 * 86400),
    st.sampled_from([UTC, BERLIN, ZoneInfo("Asia/Kathmandu")]),
)
def test_the_latest_time_is_the_last_of_all(text: str, offset: int, span: float, zone: tzinfo) -> None:
    """However many there are: none lies between it and the end, and counting is exact up to a hundred."""
    schedule, after = parse_schedule(text), BEGIN.timestamp() + offset
    found = schedule.latest(after, after + span, zone)
    every, at = list[float](), schedule.next(after, zone)
    while at is not None and at <= after + span:
        every.append(at)
        at = schedule.next(at, zone)
    assert found == (every[-1] if every else None, min(101, len(every)))
    assert all(later - earlier >= 60 for earlier, later in pairwise(every))
