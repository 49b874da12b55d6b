from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tessera.provisioning.milestones import (
    ORDER,
    Milestone,
    ProvisioningRecord,
    Remaining,
    Span,
    current_phase,
    estimate_remaining,
    node_phases,
    phase_began,
    span_seconds,
)

M = Milestone
MOMENTS = st.integers(0, 10_000).map(lambda number: 1_800_000_000 + number / 8)
SECONDS = st.integers(0, 10_000).map(lambda number: number / 8)
RECORDS = st.dictionaries(st.sampled_from(ORDER), MOMENTS).map(lambda at: ProvisioningRecord(node="n", at=at))


def record(**at: float) -> ProvisioningRecord:
    return ProvisioningRecord(node="n", uid="u", at={M(name): moment for name, moment in at.items()})


@st.composite
def complete(draw: st.DrawFn) -> ProvisioningRecord:
    """A way of which everything is known, and may have happened: the last is the workload, other steps overlap."""
    at = {M.REQUESTED: draw(MOMENTS)}
    at |= {each: at[M.REQUESTED] + draw(SECONDS) for each in (M.VM, M.REGISTERED)}
    at |= {each: at[M.REGISTERED] + draw(SECONDS) for each in ORDER[3:]}
    at[M.WORKLOAD] = max(at.values())
    return ProvisioningRecord(node="n", at=at)


WHOLE = record(
    requested=0, vm=60, registered=100, ready=110, labelled=111, pulled=150, driver=200, toolkit=210,
    validated=220, allocatable=225, workload=240,
)  # fmt: skip


def test_a_phase_is_named_after_the_milestone_that_ends_it() -> None:
    assert node_phases(WHOLE).seconds == {
        M.VM: 60, M.REGISTERED: 40, M.READY: 10, M.LABELLED: 1, M.PULLED: 39, M.DRIVER: 50, M.TOOLKIT: 10,
        M.VALIDATED: 10, M.ALLOCATABLE: 5, M.WORKLOAD: 15,
    }  # fmt: skip
    assert node_phases(WHOLE).total == 240


def test_an_image_that_was_there_before_the_node_was_ready_took_no_time_of_its_own() -> None:
    found = node_phases(record(registered=100, ready=130, labelled=101, pulled=125, driver=150)).seconds
    assert found[M.LABELLED] == found[M.PULLED] == 0
    assert found[M.DRIVER] == 20


def test_an_unknown_moment_makes_its_phase_and_the_next_unknown() -> None:
    found = node_phases(record(registered=100, ready=110, pulled=150, driver=200)).seconds
    assert (found[M.LABELLED], found[M.PULLED], found[M.DRIVER]) == (None, None, 50)


def test_after_an_unknown_moment_nothing_is_known_until_one_is_later_than_all_before() -> None:
    found = node_phases(record(registered=100, ready=110, pulled=105, driver=200, toolkit=210)).seconds
    assert (found[M.PULLED], found[M.DRIVER], found[M.TOOLKIT]) == (None, None, 10)


def test_what_lies_in_unknown_phases_is_told() -> None:
    at = dict(WHOLE.at)
    del at[M.DRIVER]
    found = node_phases(ProvisioningRecord(node="n", at=at))
    assert found.total == 240
    assert found.unattributed == 60  # driver and toolkit


def test_without_a_request_there_is_no_total() -> None:
    found = node_phases(record(registered=100, ready=110, workload=300))
    assert (found.total, found.unattributed) == (None, None)


@given(complete())
def test_phases_of_a_complete_record_sum_to_its_total(whole: ProvisioningRecord) -> None:
    found = node_phases(whole)
    known = [each for each in found.seconds.values() if each is not None]
    assert len(known) == len(ORDER) - 1
    assert found.total == pytest.approx(sum(known), abs=1e-3)
    assert found.unattributed == pytest.approx(0, abs=1e-3)


@given(RECORDS)
def test_nothing_is_negative_and_nothing_unknown_is_given_a_number(some: ProvisioningRecord) -> None:
    found = node_phases(some)
    for milestone, seconds in found.seconds.items():
        assert seconds is None or (seconds >= 0 and milestone in some.at)
    for part in Span:
        took = span_seconds(some, part)
        assert took is None or (took >= 0 and {*part.value} <= some.at.keys())


@given(RECORDS)
def test_what_cannot_be_is_not_known_and_never_0(some: ProvisioningRecord) -> None:
    for part in Span:
        first, last = part.value
        if span_seconds(some, part) is not None:
            assert some.at[last] >= some.at[first] - 1, "the end was before the beginning"
    found, registered = node_phases(some).seconds, some.at.get(M.REGISTERED)
    for milestone, seconds in found.items():
        if seconds is not None and registered is not None and ORDER.index(milestone) > ORDER.index(M.REGISTERED):
            assert some.at[milestone] >= registered - 1, "it was there before the node"


BACKWARDS = record(**{each.value: 100.0 - 8 * number for number, each in enumerate(ORDER)})


def test_a_record_that_runs_backwards_has_no_durations() -> None:
    assert all(span_seconds(BACKWARDS, part) is None for part in Span)
    found = node_phases(BACKWARDS)
    assert (found.total, found.unattributed) == (None, None)
    assert not any(found.seconds.values())
    assert {each for each, seconds in found.seconds.items() if seconds is not None} <= {M.REGISTERED}


@pytest.mark.parametrize(
    ("at", "unknown"),
    [
        ({"requested": 100, "workload": 20}, [Span.TOTAL]),
        ({"requested": 130, "registered": 100, "allocatable": 200}, [Span.PROVISIONED]),
        ({"registered": 100, "ready": 110, "allocatable": 20, "workload": 300}, [Span.STARTUP]),
        ({"registered": 100, "ready": 400, "workload": 220}, [Span.READY_TO_WORKLOAD]),
    ],
)  # fmt: skip
def test_what_a_moment_that_cannot_be_bounds_is_not_known(at: dict[str, float], unknown: list[Span]) -> None:
    some = record(**at)
    assert [part for part in Span if {*part.value} <= some.at.keys() and span_seconds(some, part) is None] == unknown


def test_a_request_that_cannot_be_costs_nothing_that_follows_it() -> None:
    some = record(requested=130, registered=100, ready=110, allocatable=200)
    assert (span_seconds(some, Span.STARTUP), node_phases(some).seconds[M.READY]) == (100, 10)


def test_moments_that_are_rounded_are_not_the_wrong_way_round() -> None:
    assert span_seconds(record(registered=100, ready=110, workload=109.2), Span.READY_TO_WORKLOAD) == 0


def test_a_node_that_stood_there_before_is_in_the_phase_that_its_driver_is_in() -> None:
    late = ProvisioningRecord(node="n", asked=700)
    assert (late.late, current_phase(late), phase_began(late)) == (True, M.LABELLED, 700)
    pulling = ProvisioningRecord(node="n", asked=700, at={M.LABELLED: 700})
    assert (current_phase(pulling), phase_began(pulling)) == (M.PULLED, 700)
    up = ProvisioningRecord(node="n", asked=700, at={M.LABELLED: 700, M.PULLED: 750, M.ALLOCATABLE: 795})
    assert [span_seconds(up, part) for part in Span] == [None, None, None, None, 95]


@given(complete())
def test_parts_of_the_way_are_the_sums_of_their_phases(whole: ProvisioningRecord) -> None:
    seconds = node_phases(whole).seconds
    for part in Span:
        first, last = part.value
        between = ORDER[ORDER.index(first) + 1 : ORDER.index(last) + 1]
        took = span_seconds(whole, part)
        assert took is None or took == pytest.approx(sum(seconds[each] or 0 for each in between), abs=1e-3)


@pytest.mark.parametrize(
    ("at", "phase"),
    [
        ({}, M.REQUESTED),
        ({"requested": 1}, M.VM),
        ({"requested": 1, "vm": 2}, M.REGISTERED),
        ({"registered": 3}, M.READY),
        ({"registered": 3, "ready": 4}, M.LABELLED),
        ({"registered": 3, "ready": 4, "labelled": 3}, M.PULLED),
        ({"registered": 3, "pulled": 9}, M.READY),
        ({"registered": 3, "ready": 4, "driver": 9}, M.TOOLKIT),
        ({"registered": 3, "ready": 4, "allocatable": 20}, M.WORKLOAD),
        ({"registered": 3, "workload": 30}, None),
    ],
)
def test_a_node_is_in_the_first_phase_that_nothing_proves_to_be_over(at: dict[str, float], phase: M | None) -> None:
    assert current_phase(record(**at)) == phase


def test_a_phase_began_with_the_last_moment_before_it() -> None:
    assert phase_began(record(registered=3, ready=9, labelled=4)) == 9
    assert phase_began(record()) is None


def history(*seconds: float, **more: Any) -> list[ProvisioningRecord]:
    return [
        ProvisioningRecord(
            node=f"h{n}", uid=f"h{n}", at={M.REGISTERED: 0, M.READY: 10, M.ALLOCATABLE: 10 + each}, **more
        )
        for n, each in enumerate(seconds)
    ]


def test_what_remains_is_told_from_nodes_that_took_longer_than_this_one_until_now() -> None:
    waiting = record(registered=1000, ready=1010)
    assert estimate_remaining(waiting, history(100, 200, 300), now=1010) == Remaining(seconds=200, n=3)
    assert estimate_remaining(waiting, history(100, 200, 300), now=1160) == Remaining(seconds=100, n=3)
    assert estimate_remaining(waiting, history(100, 200, 300), now=2000) == Remaining(seconds=None, n=3)


def test_only_nodes_that_came_to_their_driver_alike_are_compared() -> None:
    waiting = ProvisioningRecord(node="n", strategy="built", at={M.REGISTERED: 1000, M.READY: 1010})
    known = [*history(10, strategy="precompiled"), *history(300, strategy="built")]
    assert estimate_remaining(waiting, known, now=1010) == Remaining(seconds=300, n=1)


def test_nodes_of_the_same_group_are_preferred() -> None:
    waiting = ProvisioningRecord(node="n", group="a", at={M.REGISTERED: 1000, M.READY: 1010})
    known = [*history(10, group="b"), *history(300, group="a")]
    assert estimate_remaining(waiting, known, now=1010) == Remaining(seconds=300, n=1)


def test_nothing_remains_where_cards_can_be_used() -> None:
    assert estimate_remaining(WHOLE, history(10), now=500) == Remaining(seconds=None, n=0)
