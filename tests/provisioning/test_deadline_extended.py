"""A deadline that stands still, and nodes that are kept while another one in their place would come no further."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.provisioning.conftest import GPU_TAINT, T0, condition, driver, make_node

from tessera.api.nodes.node_marks import BUILD_TIMEOUT, PROVISIONED, DriverPhase, DriverStrategy
from tessera.clock import rfc3339
from tessera.provisioning.milestones import Milestone, ProvisioningRecord
from tessera.provisioning.replacement import has_no_driver_status, shared_cause
from tessera.provisioning.startup_deadline import (
    EXTENDED,
    ProvisionedCondition,
    StartupDeadline,
    StartupJudgement,
    judge_startup,
)

M = Milestone
READY = condition("Ready")
DEADLINE = StartupDeadline(seconds=900, began=T0 - 86400, grace=60)
KEYS = (GPU_TAINT,)
RECORD = ProvisioningRecord(node="gpu-1", uid="node-uid", at={M.REGISTERED: T0, M.READY: T0 + 10, M.LABELLED: T0})

BUILD = "Waits for the one build of registry.local/drivers/driver:525, Job tessera-system/driver-build-1."
WAITING = make_node(
    taints=KEYS,
    conditions=(READY,),
    annotations=driver(DriverStrategy.BLOCKED, phase=DriverPhase.WAITING, reason=BUILD),
)


def late(record: ProvisioningRecord, seconds: float, node: Any = WAITING) -> StartupJudgement:
    return judge_startup(node, record, keys=KEYS, deadline=DEADLINE, now=T0 + seconds)


def waiting(since: float, waited: float = 0.0) -> ProvisioningRecord:
    return msgspec.structs.replace(RECORD, waits=T0 + since, waited=waited)


def test_at_the_ordinary_deadline_a_node_that_waits_for_the_one_build_is_told_that_it_is_extended() -> None:
    assert late(waiting(60), 899) == StartupJudgement(due=T0 + 900)
    found = late(waiting(60), 900)
    assert found.condition is not None
    assert (found.condition.status, found.condition.reason, found.condition.overdue) == ("False", EXTENDED, False)
    latest = rfc3339(T0 + 900 + BUILD_TIMEOUT)
    assert f"the deadline is stopped, and extended to {latest} at most" in found.condition.text
    assert BUILD in found.condition.text
    assert found.due == T0 + 900 + BUILD_TIMEOUT
    assert late(waiting(60), 1500).condition == found.condition  # so it is written once


def test_after_the_wait_what_was_left_of_the_deadline_is_left_still() -> None:
    done = msgspec.structs.replace(RECORD, waited=1140)
    pulling = make_node(taints=KEYS, conditions=(READY,), annotations=driver(DriverStrategy.MIRROR))
    found = late(done, 1200, pulling)
    assert found.condition is not None
    assert found.condition.reason == EXTENDED
    for fact in ("delayed its driver for 1140 s", "would have delayed another node's too"):
        assert fact in found.condition.text
    assert found.due == T0 + 900 + 1140
    ended = late(done, 900 + 1140, pulling)
    assert ended.condition is not None
    assert (ended.condition.reason, ended.condition.overdue) == ("DriverNotPulled", True)


def test_a_wait_without_end_extends_the_deadline_by_no_more_than_a_build_may_take() -> None:
    for record in (waiting(60), waiting(3000, waited=2000), waiting(60, waited=1e9)):
        found = late(record, 900 + BUILD_TIMEOUT)
        assert found.condition is not None
        assert found.condition.reason == "DriverNotPulled"
        assert BUILD in found.condition.text


def test_a_wait_that_began_after_the_deadline_takes_nothing_back() -> None:
    found = late(waiting(950), 1000)
    assert found.condition is not None
    assert found.condition.overdue


def test_a_node_that_is_not_even_ready_waits_for_nothing_else() -> None:
    record = ProvisioningRecord(node="gpu-1", uid="node-uid", at={M.REGISTERED: T0}, waits=T0 + 10)
    found = late(record, 900)
    assert found.condition is not None
    assert found.condition.reason == "NodeNotReady"


@given(
    waits=st.none() | st.floats(-1e6, 1e6),
    waited=st.floats(0, 1e9),
    times=st.lists(st.floats(0, 10_000), min_size=2, max_size=6),
)
def test_the_deadline_ends_between_the_ordinary_one_and_the_longest_build_after_it_and_ends_once(
    waits: float | None, waited: float, times: list[float]
) -> None:
    record = msgspec.structs.replace(RECORD, waits=None if waits is None else T0 + waits, waited=waited)
    over = [(told := late(record, each).condition) is not None and told.overdue for each in sorted(times)]
    assert over == sorted(over)
    for each, overdue in zip(sorted(times), over, strict=True):
        assert not (overdue and each < 900)
        assert overdue or each < 900 + BUILD_TIMEOUT


def test_what_people_have_to_act_on_is_told_at_the_ordinary_deadline_and_the_time_after_it_is_the_nodes() -> None:
    blocked = driver(DriverStrategy.BLOCKED, phase=DriverPhase.BLOCKED, reason="No image fits.")
    found = late(waiting(60), 900, make_node(taints=KEYS, conditions=(READY,), annotations=blocked))
    assert found.condition is not None
    assert found.condition.reason == "DriverNotPulled"
    pulling = make_node(taints=KEYS, conditions=(READY,), annotations=driver(DriverStrategy.PRECOMPILED))
    found = late(msgspec.structs.replace(RECORD, waited=1000), 1100, pulling)
    assert found.condition is not None
    assert found.condition.reason == EXTENDED
    assert found.due == T0 + 1900


# Who stood there before anybody asked for a driver

LATE = ProvisioningRecord(node="gpu-1", uid="node-uid", asked=T0 + 5000, at={M.LABELLED: T0 + 5000})
TOLD = condition(PROVISIONED, "False", reason="DriverNotPulled")


def test_the_deadline_of_a_node_that_stood_there_before_begins_when_its_driver_is_asked_for() -> None:
    starting = driver(since=T0 + 5000)
    found = late(LATE, 5100, make_node(taints=KEYS, conditions=(READY,), annotations=starting))
    assert found == StartupJudgement(due=T0 + 5900)
    ended = late(LATE, 5900, make_node(taints=KEYS, conditions=(READY,), annotations=starting))
    assert ended.condition is not None
    assert ended.condition.overdue


def test_one_of_which_it_was_said_that_it_is_overdue_is_told_that_it_is_not_any_more() -> None:
    some = make_node(taints=KEYS, conditions=(READY, TOLD), annotations=driver(since=T0 + 5000))
    found = late(LATE, 5100, some)
    assert found.condition is not None
    assert found.condition.reason == EXTENDED
    for fact in (f"driver was requested only at {rfc3339(T0 + 5000)}", f"deadline is extended to {rfc3339(T0 + 5900)}"):
        assert fact in found.condition.text
    assert shared_cause(some, LATE, overdue("DriverNotPulled"), deadline=DEADLINE, now=T0 + 5100)


def test_what_is_said_of_one_that_stood_there_before_counts_from_when_its_driver_was_asked_for() -> None:
    """Thirty days before, it was registered; that is nothing that its driver took."""
    old: dict[str, Any] = {"registered": T0 - 30 * 86400, "conditions": (READY,)}
    ended = late(LATE, 5900, make_node(taints=KEYS, annotations=driver(since=T0 + 5000), **old))
    assert ended.condition is not None
    for fact in ("900 s after a driver was requested", "no container of a driver has started"):
        assert fact in ended.condition.text
    gives = make_node(annotations=driver(since=T0 + 5000), allocatable={"nvidia.com/gpu": "1"}, **old)
    came = late(msgspec.structs.replace(LATE, at={**LATE.at, M.ALLOCATABLE: T0 + 5120}), 5120, gives)
    assert came.condition is not None
    for fact in ("120 s after a driver was requested", "kubelet gives 1 nvidia.com/gpu"):
        assert fact in came.condition.text


# Whether another node would help


def overdue(reason: str) -> ProvisionedCondition:
    return ProvisionedCondition(provisioned=False, reason=reason, text="")


@pytest.mark.parametrize(
    ("said", "helps"),
    [
        (driver(DriverStrategy.BLOCKED, phase=DriverPhase.WAITING, reason=BUILD), False),
        (driver(DriverStrategy.BLOCKED, phase=DriverPhase.WAITING, reason="Waits for a registry: no answer."), False),
        (driver(DriverStrategy.BLOCKED, phase=DriverPhase.BLOCKED, reason="No image fits."), False),
        (driver(DriverStrategy.BLOCKED, pool="", phase=DriverPhase.BLOCKED, reason="a label is missing"), True),
        (driver(DriverStrategy.PREINSTALLED, phase=DriverPhase.WAITING), True),
        (driver(DriverStrategy.BUILT, phase=DriverPhase.FAILED), True),
        ({}, True),
    ],
)
def test_another_node_would_help_where_the_driver_is_kept_by_something_of_this_one(
    said: dict[str, str], *, helps: bool
) -> None:
    some = make_node(annotations=said)

    def why(reason: str) -> str:
        return shared_cause(some, RECORD, overdue(reason), deadline=DEADLINE, now=T0 + 5000)

    assert (why("DriverNotPulled") == "") == helps
    assert why("NodeNotReady") == ""
    assert why("NotAllocatable") == ""
    assert has_no_driver_status(some, overdue("DriverNotPulled")) == (not said)


def test_a_node_that_was_kept_back_for_long_has_its_time_before_another_takes_its_place() -> None:
    pulling = make_node(taints=KEYS, conditions=(READY,), annotations=driver(DriverStrategy.PRECOMPILED))
    record = msgspec.structs.replace(RECORD, waited=7200)
    for seconds, kept in ((7300, True), (8099, True), (8100, False)):
        found = late(record, seconds, pulling)
        assert found.condition is not None
        assert found.condition.overdue  # that has been said for long
        text = shared_cause(pulling, record, found.condition, deadline=DEADLINE, now=T0 + seconds)
        assert bool(text) == kept
        assert not kept or f"it has until {rfc3339(T0 + 8100)}" in text
