"""What a waiting pod is told has its place and its start first, which can be told apart from the reason."""

import pytest

from tessera.forecast.queue_page import ExpectedStart, QueuedPod
from tessera.forecast.queue_text import place_of_text, position_text, queued_text, start_text

NOW = 1_700_000_000.0
STARTS = [
    ExpectedStart(starts=2),
    ExpectedStart(p50=NOW, basis="history"),
    ExpectedStart(p50=NOW, p90=NOW + 10, basis="deadline"),
    ExpectedStart(p50=NOW, p90=NOW + 3600, basis="history", waits=True),
    ExpectedStart(p50=NOW, p90=NOW + 3600, basis="rate"),
]


@pytest.mark.parametrize("start", STARTS)
@pytest.mark.parametrize(("position", "of"), [(2, 5), (1, 1), (0, 0)])
def test_place_and_start_are_told_apart_from_the_reason(start: ExpectedStart, position: int, of: int) -> None:
    detail = "gang train: 3 of 4 pods exist. Starts together"
    row = QueuedPod(namespace="team", name="train", position=position, of=of, detail=detail, start=start)
    place = place_of_text(queued_text(row))
    assert place.lower() == ". ".join(filter(None, (position_text(row), start_text(start)))).lower()
