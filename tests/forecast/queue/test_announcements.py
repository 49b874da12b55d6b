"""Waiting pods are told when something changed, at most once a minute each."""

from typing import Any

import msgspec
import pytest

from tessera.api.names import PodUid
from tessera.forecast.queue.published_reasons import PAUSE, QUEUE_WRITES, TELL_AFTER, Announcement, Announcer
from tessera.forecast.queue_page import ExpectedStart, QueuedPod
from tessera.reasons.reason import Blocker, Full

NOW = 1_700_000_000.0
ROW = QueuedPod(
    namespace="team",
    name="train",
    uid="u1",
    profiles=("3g.20gb",),
    since=NOW - 100,
    position=2,
    of=5,
    reason="full",
    detail="every card is full for 3g.20gb",
    why=Full(("3g.20gb",), frees=(Blocker("other/secret", "n1", "3g.20gb"),)),
    start=ExpectedStart(p50=NOW + 600, p90=NOW + 1200, basis="history", starts=3),
)


def _changed(**fields: Any) -> QueuedPod:
    return msgspec.structs.replace(ROW, **fields)


def _told(announcer: Announcer, row: QueuedPod, now: float) -> list[Announcement]:
    return list(announcer.choose([row], now))


def test_a_pod_is_told_its_position_its_start_and_the_reason() -> None:
    (one,) = _told(Announcer(), ROW, NOW)
    assert (one.uid, one.waits, one.reason, one.event) == ("u1", True, "Full", True)
    assert one.text == (
        "Every card is full for 3g.20gb. Position 2 of 5 for the same room. Starts between 2023-11-14 22:24 UTC and"
        " 2023-11-14 22:34 UTC, from how long such pods ran before"
    )


@pytest.mark.parametrize(
    ("start", "text"),
    [
        (ExpectedStart(starts=7), "Its start is unknown: 7 pods with such slices started in the last hour"),
        (ExpectedStart(starts=1), "Its start is unknown: 1 pod with such slices started in the last hour"),
        (
            ExpectedStart(p50=NOW + 60, basis="history"),
            "Starts after 2023-11-14 22:15 UTC, from how long such pods ran",
        ),
        (
            ExpectedStart(p50=NOW + 60, basis="history", waits=True),
            "Starts after 2023-11-14 22:15 UTC, from how long such pods ran and waited before",
        ),
        (
            ExpectedStart(p50=NOW + 60, p90=NOW + 60, basis="deadline"),
            "Starts about 2023-11-14 22:15 UTC, by the deadlines of the pods before it",
        ),
    ],
)
def test_a_start_that_is_not_a_range_is_said_in_words(start: ExpectedStart, text: str) -> None:
    (one,) = _told(Announcer(), _changed(start=start), NOW)
    assert text in one.text


def test_a_pod_is_told_that_others_wait_for_its_room_and_not_of_each_that_comes() -> None:
    """Its condition said for hours that no other pod waits, while three did."""
    announcer, later = Announcer(), NOW + PAUSE
    (alone,) = _told(announcer, _changed(position=1, of=1, ahead=0), NOW)
    assert "No other pod waits for its room" in alone.text
    (first,) = _told(announcer, _changed(position=1, of=4, ahead=0), later)
    assert ("Position 1 of 4 for the same room" in first.text, first.event) == (True, False)
    assert not _told(announcer, _changed(position=1, of=5, ahead=0), later + PAUSE)


def test_a_pod_that_starts_soon_is_told_nothing() -> None:
    assert _told(Announcer(), _changed(since=NOW - TELL_AFTER + 1), NOW) == []


def test_nothing_is_written_while_nothing_changes() -> None:
    announcer = Announcer()
    _told(announcer, ROW, NOW)
    moved = msgspec.structs.replace(ROW.start, p50=NOW + 630, p90=NOW + 1250)
    for minute in range(1, 5):
        assert _told(announcer, _changed(start=moved), NOW + 60 * minute) == []


@pytest.mark.parametrize(
    "fields",
    [
        {"position": 1},
        {"detail": "2 of 3 cards are full for 3g.20gb"},
        {"start": ExpectedStart()},
        {"start": ExpectedStart(p50=NOW + 600, p90=NOW + 9000, basis="history")},
    ],
)
def test_a_change_is_written_after_the_pause(fields: dict[str, Any]) -> None:
    announcer = Announcer()
    _told(announcer, ROW, NOW)
    assert _told(announcer, _changed(**fields), NOW + PAUSE - 1) == []
    (one,) = _told(announcer, _changed(**fields), NOW + PAUSE)
    assert one.event == (fields.get("start") == ExpectedStart())


def test_a_write_that_failed_is_due_again_with_its_event() -> None:
    announcer = Announcer()
    _told(announcer, ROW, NOW)
    announcer.note_failure(PodUid("u1"))
    assert not _told(announcer, ROW, NOW + TELL_AFTER - 1)
    (again,) = _told(announcer, ROW, NOW + TELL_AFTER)
    assert again.event
    assert not _told(announcer, ROW, NOW + 2 * TELL_AFTER)


def test_writes_that_always_fail_keep_no_other_pod_from_its_turn() -> None:
    announcer = Announcer()
    rows = [_changed(uid=f"u{number}", name=f"p{number}") for number in range(QUEUE_WRITES + 10)]
    for one in announcer.choose(rows, NOW):
        announcer.note_failure(one.uid)
    second = [one.uid for one in announcer.choose(rows, NOW + TELL_AFTER)]
    assert second[:10] == [f"u{number}" for number in range(QUEUE_WRITES, QUEUE_WRITES + 10)]
    assert len(second) == QUEUE_WRITES


def test_writes_are_bounded_and_everybody_has_a_turn() -> None:
    announcer = Announcer()
    rows = [_changed(uid=f"u{number}", name=f"p{number}") for number in range(2 * QUEUE_WRITES + 10)]
    told = [len(announcer.choose(rows, NOW + 15 * step)) for step in range(4)]
    assert told == [QUEUE_WRITES, QUEUE_WRITES, 10, 0]


def test_no_name_of_another_pod_is_told() -> None:
    (one,) = _told(Announcer(), ROW, NOW)
    assert "secret" not in one.text
    assert "n1" not in one.text


def test_another_reason_is_told_before_the_minute_is_over_and_once() -> None:
    announcer, other = Announcer(), _changed(reason="reserved", detail="what is free is reserved")
    assert _told(announcer, ROW, NOW)
    assert not _told(announcer, other, NOW + TELL_AFTER - 1)
    assert not _told(announcer, _changed(detail="2 of 3 cards are full"), NOW + TELL_AFTER)
    (one,) = _told(announcer, other, NOW + TELL_AFTER)
    assert (one.reason, one.event) == ("Reserved", True)
    assert not _told(announcer, ROW, NOW + TELL_AFTER + PAUSE - 1)
    assert _told(announcer, ROW, NOW + TELL_AFTER + PAUSE)
    assert _told(announcer, other, NOW + 2 * TELL_AFTER + PAUSE)
