"""Numbers in the status of a Queue that nobody could have written are none."""

import pytest

from tessera.api.queues import read_queue


@pytest.mark.parametrize("number", [10**400, -(10**400), "9" * 5000, "1e999", "nan", "inf", -1, True, [], None])
def test_a_usage_that_is_no_amount_counts_as_none(number: object) -> None:
    queue = read_queue({"metadata": {"name": "q"}, "status": {"usage": {"A100": number}, "usageTime": number}})
    allowed = {0.0, 1.0} if number is True else {0.0}
    assert queue.usage["A100"] in allowed
    assert queue.usage_time in allowed


@pytest.mark.parametrize(
    ("spare", "fault"),
    [
        ({"3g.20gb": 40, "1g.5gb": 40}, "write at most 64 slices together"),
        ({"3g.20gb": -1}, "write a number of slices by profile: {3g.20gb: 1}"),
        ({"foo": 1}, '"foo" is not a MIG profile'),
    ],
)
def test_wrong_spare_slices_are_none_and_named(spare: dict[str, int], fault: str) -> None:
    queue = read_queue({"metadata": {"name": "q"}, "spec": {"spare": spare}})
    assert queue.spare == {}
    (told,) = queue.faults
    assert told.startswith("spec.spare is ")
    assert fault in told
    assert "slices slices" not in told
