"""The texts of Kueue's conditions, of 0.13 and of 0.19, read into data."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tessera.kueue.objects import Case, WaitingReason, Workload, amount_text, waiting_reason

PREFIX = "couldn't assign flavors to pod set main: "
GPU = "tessera.dev/gpu-memory"
SUM = "previously considered podsets requests (0) + current podset request (60Gi)"


def workload(reason: str = "Pending", message: str = "", **more: Any) -> Workload:
    """A Workload without quota, for this reason."""
    conditions = [{"type": "QuotaReserved", "status": "False", "reason": reason, "message": message}]
    status = {"conditions": [*conditions, *more.pop("conditions", [])]}
    return msgspec.convert({"metadata": {"name": "w"}, "spec": more, "status": status}, Workload)


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        (
            f"{PREFIX}insufficient unused quota for {GPU} in flavor slices, 20Gi more needed",
            WaitingReason(case=Case.QUOTA, subject=GPU, flavor="slices", missing="20Gi"),
        ),
        (
            f"{PREFIX}insufficient unused quota for {GPU} in flavor slices, 21474836480 more needed",
            WaitingReason(case=Case.QUOTA, subject=GPU, flavor="slices", missing="20Gi"),
        ),
        (
            f"{PREFIX}insufficient unused quota for cpu in flavor slices, 500m more needed",
            WaitingReason(case=Case.QUOTA, subject="cpu", flavor="slices", missing="500m"),
        ),
        (
            f"{PREFIX}insufficient quota for {GPU} in flavor slices, request > maximum capacity (60Gi > 20Gi)",
            WaitingReason(case=Case.NEVER, subject=GPU, flavor="slices", missing="60Gi", most="20Gi"),
        ),
        (
            f"{PREFIX}insufficient quota for {GPU} in flavor slices, {SUM} > maximum capacity (20Gi)",
            WaitingReason(case=Case.NEVER, subject=GPU, flavor="slices", missing="60Gi", most="20Gi"),
        ),
        (
            f"{PREFIX}resource nvidia.com/mig-1g.5gb unavailable in ClusterQueue",
            WaitingReason(case=Case.UNCOVERED, subject="nvidia.com/mig-1g.5gb"),
        ),
        ("workload namespace doesn't match ClusterQueue selector", WaitingReason(case=Case.NAMESPACE)),
        ("LocalQueue slices doesn't exist", WaitingReason(case=Case.MISSING_QUEUE, subject="LocalQueue slices")),
        ("ClusterQueue team-a is inactive", WaitingReason(case=Case.STOPPED_QUEUE, subject="ClusterQueue team-a")),
        ("LocalQueue slices is stopped", WaitingReason(case=Case.STOPPED_QUEUE, subject="LocalQueue slices")),
        (f"{PREFIX}...Pending the preemption of 1 workload(s)", WaitingReason(case=Case.PREEMPTING)),
    ],
)
def test_a_message_decides(message: str, expected: WaitingReason) -> None:
    assert waiting_reason(workload(message=message)) == msgspec.structs.replace(expected, message=message)


@pytest.mark.parametrize(
    ("reason", "case"),
    [
        ("PendingEvaluation", Case.EVALUATING),
        ("WaitingForQuota", Case.QUOTA),
        ("ExceedsMaxQuota", Case.NEVER),
        ("NoMatchingFlavor", Case.NO_FLAVOR),
        ("WaitingForPreemptedWorkloads", Case.PREEMPTING),
        ("Misconfigured", Case.STOPPED_QUEUE),
        ("Pending", Case.OTHER),
    ],
)
def test_where_the_message_is_unknown_the_typed_reason_decides(reason: str, case: Case) -> None:
    assert waiting_reason(workload(reason, "a text of a later release")).case is case


def test_states_beyond_the_queue() -> None:
    assert waiting_reason(Workload()).case is Case.EVALUATING
    assert waiting_reason(workload(active=False)).case is Case.DEACTIVATED
    done = [{"type": "Finished", "status": "True"}]
    assert waiting_reason(workload(conditions=done)).case is Case.FINISHED


@pytest.mark.parametrize(
    ("check", "text"),
    [
        ({"state": "Pending", "message": "there is no room"}, "packable: there is no room"),
        ({"state": "Pending"}, "packable: no answer yet"),
        ({"state": "Retry"}, "packable: Retry, without a reason"),
    ],
)
def test_a_check_without_a_message_is_silent(check: dict[str, Any], text: str) -> None:
    checks = [{"name": "packable", **check}, {"name": "other", "state": "Ready", "message": "fits"}]
    status = {"conditions": [{"type": "QuotaReserved", "status": "True"}], "admissionChecks": checks}
    found = waiting_reason(msgspec.convert({"metadata": {"name": "w"}, "status": status}, Workload))
    assert (found.case, found.message, found.subject) == (Case.CHECK, text, "packable")


def test_other_resources_keep_their_unit() -> None:
    assert amount_text("cpu", "1500m") == "1500m"
    assert amount_text(GPU, "1536Mi") == "1.5Gi"
    assert amount_text(GPU, "no quantity") == "no quantity"


@given(st.text(max_size=200), st.text(max_size=30))
def test_any_text_has_a_reason(message: str, reason: str) -> None:
    found = waiting_reason(workload(reason, f"insufficient quota for {message}"))
    assert found.case in set(Case)
