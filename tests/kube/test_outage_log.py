"""An outage is told with two lines, whatever number of requests fails in it."""

import logging

import pytest
from tests.kube.conftest import ImpatientClock

from tessera.kube.errors import Conflict, ServiceUnavailable, Status, TooManyRequests
from tessera.kube.retries import QUIET, OutageLog

LOG = logging.getLogger("tests.outages")
REFUSED = ConnectionError("https://server: connection refused")


@pytest.fixture
def outages(clock: ImpatientClock, caplog: pytest.LogCaptureFixture) -> OutageLog:
    caplog.set_level(logging.INFO)
    return OutageLog(LOG, "writes of slices", clock)


def test_two_lines_for_thousands_of_failures(
    outages: OutageLog, clock: ImpatientClock, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(8_000):
        assert outages.note_failure(REFUSED)
    clock.time += 30
    outages.note_failure(TimeoutError())
    clock.time += QUIET
    for _ in range(8_000):
        outages.note_answer()
    assert caplog.messages == [
        "writes of slices fail, further failures are counted until they succeed: https://server: connection refused",
        "writes of slices succeed again: 8001 failed in 30s",
    ]


def test_a_server_that_answers_some_requests_only_is_one_outage(
    outages: OutageLog, clock: ImpatientClock, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(100):
        outages.note_failure(REFUSED)
        clock.time += QUIET / 2
        outages.note_answer()
    assert len(caplog.messages) == 1


def test_a_second_outage_is_told_too(
    outages: OutageLog, clock: ImpatientClock, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(2):
        outages.note_failure(REFUSED)
        clock.time += QUIET
        outages.note_answer()
    assert len(caplog.messages) == 4


def test_a_refusal_is_an_answer_and_an_overloaded_server_an_outage(outages: OutageLog) -> None:
    assert not outages.note_failure(Conflict(Status(code=409, reason="Conflict")))
    assert outages.note_failure(ServiceUnavailable(Status(code=503)))
    assert outages.note_failure(TooManyRequests(Status(code=429)))
