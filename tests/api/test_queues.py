"""Numbers in the status of a Queue that nobody could have written are none."""

import pytest

from tessera.api.queues import read_queue


@pytest.mark.parametrize("number", [10**400, -(10**400), "9" * 5000, "1e999", "nan", "inf", -1, True, [], None])
def test_a_usage_that_is_no_amount_counts_as_none(number: object) -> None:
    queue = read_queue({"metadata": {"name": "q"}, "status": {"usage": {"A100": number}, "usageTime": number}})
    allowed = {0.0, 1.0} if number is True else {0.0}
    assert queue.usage["A100"] in allowed
    assert queue.usage_time in allowed
