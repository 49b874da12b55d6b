"""What a waiting pod is told: its reason first, then its place and its start."""

import pytest

from tessera.clock import parse_rfc3339
from tessera.forecast.queue_page import (
    ExpectedStart,
    QueuedPod,
    case_of,
    condition_reason,
    position_text,
    queued_text,
    start_text,
)

NOW = 1_700_000_000.0


def test_the_reason_comes_first_then_place_and_start() -> None:
    detail, start = "gang train: 3 of 4 pods exist", ExpectedStart(p50=NOW, p90=NOW + 3600, basis="rate")
    row = QueuedPod(namespace="team", name="train", position=2, of=5, detail=detail, start=start)
    assert queued_text(row) == (
        "Gang train: 3 of 4 pods exist. Position 2 of 5 for the same room. Starts between 2023-11-14 22:14 UTC and"
        " 2023-11-14 23:14 UTC, from the starts of pods that had waited, in the last hour"
    )


@pytest.mark.parametrize(
    ("place", "text"),
    [
        ((0, 0, 0), ""),
        ((1, 1, 0), "no other pod waits for its room"),
        ((3, 5, 2), "position 3 of 5 for the same room"),
        ((5, 6, 2), "position 5 of 6; 2 of the 4 before it wait for cards that it may use"),
        ((5, 6, 1), "position 5 of 6; 1 of the 4 before it waits for cards that it may use"),
        ((5, 6, 0), "position 5 of 6; none of the 4 before it waits for cards that it may use"),
    ],
)
def test_a_position_says_how_many_before_it_want_the_same_cards(place: tuple[int, int, int], text: str) -> None:
    position, of, ahead = place
    assert position_text(QueuedPod(namespace="t", name="p", position=position, of=of, ahead=ahead)) == text


@pytest.mark.parametrize("seconds", [0, 1, 29, 31, 59, 60])
def test_a_start_that_is_to_come_is_never_told_as_a_time_that_has_passed(seconds: int) -> None:
    now = 1_700_000_040.0 + seconds
    told = start_text(ExpectedStart(p50=now, p90=now, basis="rate"))
    assert (
        parse_rfc3339(told.split(",")[0].removeprefix("starts about ").replace(" UTC", ":00Z").replace(" ", "T")) >= now
    )


@pytest.mark.parametrize(("case", "reason"), [("full", "Full"), ("card-held-back", "CardHeldBack"), ("", "Waiting")])
def test_a_case_is_the_reason_of_a_condition(case: str, reason: str) -> None:
    assert condition_reason(case) == reason
    assert not case or case_of(reason) == case
