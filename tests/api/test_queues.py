"""What the fields of a Queue are read as: numbers that nobody could have written are none, rules are named."""

import pytest

from tessera.api.queues import read_queue


@pytest.mark.parametrize("number", [10**400, -(10**400), "9" * 5000, "1e999", "nan", "inf", -1, True, [], None])
def test_a_usage_that_is_no_amount_counts_as_none(number: object) -> None:
    queue = read_queue({"metadata": {"name": "q"}, "status": {"usage": {"A100": number}, "usageTime": number}})
    allowed = {0.0, 1.0} if number is True else {0.0}
    assert queue.usage["A100"] in allowed
    assert queue.usage_time in allowed


@pytest.mark.parametrize(
    ("spare", "rule"),
    [
        ({"3g.20gb": 40, "1g.5gb": 25}, "write at most 64 slices in all"),
        ({"3g.20gb": True}, "write a number of slices by profile, or auto: {3g.20gb: 1}"),
        ({"3g.20gb": -1}, "write a number of slices by profile, or auto: {3g.20gb: 1}"),
        ([], "write a number of slices by profile, or auto: {3g.20gb: 1}"),
    ],
)
def test_spare_slices_that_break_a_rule_count_as_none(spare: object, rule: str) -> None:
    queue = read_queue({"metadata": {"name": "q"}, "spec": {"spare": spare}})
    assert queue.spare == {}
    assert queue.faults == (f"spec.spare is {spare}: {rule}",)
