"""When a startup taint goes, and what is said of nodes that do not come that far."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.provisioning.conftest import T0, WHOLE, condition, driver, make_node, offering

from tessera.api.driver.status import BUILD_PATIENCE, Phase, Strategy
from tessera.api.node_offers import OFFERS_ANNOTATION, NodeOffer, OfferKind
from tessera.clock import rfc3339
from tessera.provisioning.milestones import PROVISIONED_CONDITION, Milestone, Record
from tessera.provisioning.startup import (
    EXTENDED,
    PREFIXES,
    STARTUP_TAINT,
    Judgement,
    Patience,
    Told,
    elsewhere,
    judge,
    lack,
    nothing_said,
    startup_taints,
)

M = Milestone
READY = condition("Ready")
SHARED = condition("GpuSharingApplied")
LAYOUT = condition("GpuMigLayoutApplied")
PATIENCE = Patience(deadline=900, began=T0 - 86400, grace=60)
KEYS = (STARTUP_TAINT,)
SLICE = msgspec.structs.replace(
    WHOLE, resource="nvidia.com/mig-1g.5gb", kind=OfferKind.SLICE, profile="1g.5gb", count=7
)
LARGE = msgspec.structs.replace(SLICE, resource="nvidia.com/mig-3g.20gb", profile="3g.20gb", count=1)
ON_DEMAND = msgspec.structs.replace(SLICE, kind=OfferKind.DYNAMIC_SLICE)
GPU = {"nvidia.com/gpu": "1"}


def node(**more: Any) -> Any:
    """A node that has come up, unless it is said otherwise."""
    given: dict[str, Any] = {
        "annotations": offering(),
        "conditions": (READY, SHARED),
        "allocatable": GPU,
        "taints": KEYS,
    }
    return make_node(**{**given, **more})


RECORD = Record(node="gpu-1", uid="node-uid", at={M.REGISTERED: T0, M.READY: T0 + 10, M.LABELLED: T0})


def with_(**at: float) -> Record:
    return msgspec.structs.replace(RECORD, at={**RECORD.at, **{M(name): T0 + seconds for name, seconds in at.items()}})


def test_a_node_that_offers_what_it_should_is_freed() -> None:
    assert lack(node()) == ""
    found = judge(node(), with_(allocatable=130), keys=KEYS, patience=PATIENCE, now=T0 + 132)
    assert found.free
    assert found.told is not None
    assert (found.told.status, found.told.text) == (
        "True",
        "132 s after it was registered, kubelet gives 1 nvidia.com/gpu",
    )


@pytest.mark.parametrize(
    ("unlike", "says"),
    [
        ({"conditions": (condition("Ready", "False"), SHARED)}, "the node is not Ready"),
        (
            {
                "annotations": {},
                "conditions": (
                    READY,
                    condition("GpuNodeReady", "False", reason="WaitingForDriver", message="no driver is loaded"),
                ),
            },
            "no driver is loaded (WaitingForDriver)",
        ),
        ({"annotations": {}}, f"its agent has not said what its cards offer (annotation {OFFERS_ANNOTATION})"),
        ({"annotations": {OFFERS_ANNOTATION: "x"}}, f"annotation {OFFERS_ANNOTATION}: "),
        ({"annotations": {OFFERS_ANNOTATION: "[]"}}, "its cards offer nothing"),
        ({"conditions": (READY,)}, "its agent has not said how its cards are shared (condition GpuSharingApplied)"),
        (
            {"conditions": (READY, condition("GpuSharingApplied", "Unknown", reason="ProfilePending", message="m"))},
            "condition GpuSharingApplied is Unknown (ProfilePending): m",
        ),
        (
            {"conditions": (READY, SHARED, condition("GpuMigLayoutApplied", "False", reason="LayoutFailed"))},
            "condition GpuMigLayoutApplied is False (LayoutFailed): ",
        ),
        (
            {"labels": {"nvidia.com/mig.config": "all-1g.5gb"}},
            "its MIG layout all-1g.5gb is asked for, and the agent says nothing of it",
        ),
        ({"allocatable": {}}, "kubelet gives 0 of 1 nvidia.com/gpu"),
        ({"allocatable": {"nvidia.com/gpu": "many"}}, "kubelet gives 0 of 1 nvidia.com/gpu"),
    ],
)
def test_what_is_missing_keeps_the_taint(unlike: dict[str, Any], says: str) -> None:
    assert lack(node(**unlike)).startswith(says)
    found = judge(node(**unlike), RECORD, keys=KEYS, patience=PATIENCE, now=T0 + 30)
    assert (found.free, found.told, found.due) == (False, None, T0 + 900)


def test_a_mig_layout_that_is_half_applied_keeps_the_taint() -> None:
    half = node(annotations=offering(SLICE, LARGE), allocatable={"nvidia.com/mig-1g.5gb": "7"})
    assert lack(half) == "kubelet gives 0 of 1 nvidia.com/mig-3g.20gb"
    fewer = node(annotations=offering(SLICE), allocatable={"nvidia.com/mig-1g.5gb": "5"})
    assert lack(fewer) == "kubelet gives 5 of 7 nvidia.com/mig-1g.5gb"


def test_slices_on_demand_are_there_when_one_of_each_could_be_made() -> None:
    assert lack(node(annotations=offering(ON_DEMAND), allocatable={"nvidia.com/mig-1g.5gb": "1"})) == ""
    assert lack(node(annotations=offering(ON_DEMAND), allocatable={"nvidia.com/mig-1g.5gb": "0"})) != ""


def test_a_dynamic_node_needs_no_layout_condition() -> None:
    assert lack(node(labels={"nvidia.com/mig.config": "dynamic"})) == ""


def test_startup_taints_of_others_are_theirs() -> None:
    both = node(taints=(f"{PREFIXES[0]}network", STARTUP_TAINT))
    assert [each.key for each in startup_taints(both, KEYS)] == [STARTUP_TAINT]
    others = node(taints=(f"{PREFIXES[0]}network",))
    assert not judge(others, with_(allocatable=1), keys=KEYS, patience=PATIENCE, now=T0).free


@pytest.mark.parametrize(
    ("at", "more", "reason", "says"),
    [
        ({}, {}, "DriverNotPulled", "900 s after it was registered, no container of a driver has started there"),
        (
            {},
            {"annotations": driver(Strategy.BLOCKED, reason="no image for 5.15.0-69-generic")},
            "DriverNotPulled",
            "900 s after it was registered, no container of a driver has started there: no image for 5.15.0-69-generic",
        ),
        ({"pulled": 60}, {}, "DriverNotReady", "its driver is not ready"),
        ({"driver": 60}, {}, "ToolkitNotReady", "the container toolkit is not ready"),
        ({"toolkit": 60}, {}, "NotValidated", "no container has used the driver yet"),
        (
            {"validated": 60},
            {"annotations": offering(), "conditions": (READY, SHARED)},
            "NotAllocatable",
            "kubelet gives 0 of 1 nvidia.com/gpu",
        ),
    ],
)
def test_at_the_deadline_the_blocking_phase_is_named(
    at: dict[str, float], more: dict[str, Any], reason: str, says: str
) -> None:
    late = make_node(taints=KEYS, **{"conditions": (READY,), **more})
    found = judge(late, with_(**at), keys=KEYS, patience=PATIENCE, now=T0 + 900)
    assert found.told is not None
    assert (found.told.status, found.told.reason) == ("False", reason)
    assert says in found.told.text
    assert not found.free


def test_a_node_that_is_not_ready_is_told_so_first() -> None:
    record = Record(node="gpu-1", uid="node-uid", at={M.REGISTERED: T0, M.PULLED: T0 + 5})
    found = judge(make_node(), record, keys=KEYS, patience=PATIENCE, now=T0 + 900)
    assert found.told is not None
    assert found.told.reason == "NodeNotReady"


def test_a_controller_that_starts_after_the_deadline_looks_first() -> None:
    began = Patience(deadline=900, began=T0 + 5000, grace=60)
    late = make_node(conditions=(READY,))
    assert judge(late, RECORD, keys=KEYS, patience=began, now=T0 + 5001).told is None
    assert judge(late, RECORD, keys=KEYS, patience=began, now=T0 + 5060).told is not None


# The deadline stands still

BUILD = "Waits for the one build of registry.local/drivers/driver:525, Job tessera-system/driver-build-1."
WAITING = make_node(
    taints=KEYS, conditions=(READY,), annotations=driver(Strategy.BLOCKED, phase=Phase.WAITING, reason=BUILD)
)


def late(record: Record, seconds: float, node: Any = WAITING) -> Judgement:
    return judge(node, record, keys=KEYS, patience=PATIENCE, now=T0 + seconds)


def waiting(since: float, waited: float = 0.0) -> Record:
    return msgspec.structs.replace(RECORD, waits=T0 + since, waited=waited)


def test_at_the_ordinary_deadline_a_node_that_waits_for_the_one_build_is_told_that_it_is_extended() -> None:
    assert late(waiting(60), 899) == Judgement(due=T0 + 900)
    found = late(waiting(60), 900)
    assert found.told is not None
    assert (found.told.status, found.told.reason, found.told.overdue) == ("False", EXTENDED, False)
    latest = rfc3339(T0 + 900 + BUILD_PATIENCE)
    assert f"the deadline stands still, and is extended to {latest} at most" in found.told.text
    assert BUILD in found.told.text
    assert found.due == T0 + 900 + BUILD_PATIENCE
    assert late(waiting(60), 1500).told == found.told  # so it is written once


def test_after_the_wait_what_was_left_of_the_deadline_is_left_still() -> None:
    done = msgspec.structs.replace(RECORD, waited=1140)
    pulling = make_node(taints=KEYS, conditions=(READY,), annotations=driver(Strategy.MIRROR))
    found = late(done, 1200, pulling)
    assert found.told is not None
    assert found.told.reason == EXTENDED
    assert "what kept its driver from coming for 1140 s would have kept another node's, too" in found.told.text
    assert found.due == T0 + 900 + 1140
    ended = late(done, 900 + 1140, pulling)
    assert ended.told is not None
    assert (ended.told.reason, ended.told.overdue) == ("DriverNotPulled", True)


def test_a_wait_without_end_extends_the_deadline_by_no_more_than_a_build_may_take() -> None:
    for record in (waiting(60), waiting(3000, waited=2000), waiting(60, waited=1e9)):
        found = late(record, 900 + BUILD_PATIENCE)
        assert found.told is not None
        assert found.told.reason == "DriverNotPulled"
        assert BUILD in found.told.text


def test_a_wait_that_began_after_the_deadline_takes_nothing_back() -> None:
    found = late(waiting(950), 1000)
    assert found.told is not None
    assert found.told.overdue


def test_a_node_that_is_not_even_ready_waits_for_nothing_else() -> None:
    record = Record(node="gpu-1", uid="node-uid", at={M.REGISTERED: T0}, waits=T0 + 10)
    found = late(record, 900)
    assert found.told is not None
    assert found.told.reason == "NodeNotReady"


@given(
    waits=st.none() | st.floats(-1e6, 1e6),
    waited=st.floats(0, 1e9),
    times=st.lists(st.floats(0, 10_000), min_size=2, max_size=6),
)
def test_the_deadline_ends_between_the_ordinary_one_and_the_longest_build_after_it_and_ends_once(
    waits: float | None, waited: float, times: list[float]
) -> None:
    record = msgspec.structs.replace(RECORD, waits=None if waits is None else T0 + waits, waited=waited)
    over = [(told := late(record, each).told) is not None and told.overdue for each in sorted(times)]
    assert over == sorted(over)
    for each, overdue in zip(sorted(times), over, strict=True):
        assert not (overdue and each < 900)
        assert overdue or each < 900 + BUILD_PATIENCE


def overdue(reason: str) -> Told:
    return Told(well=False, reason=reason, text="")


@pytest.mark.parametrize(
    ("said", "helps"),
    [
        (driver(Strategy.BLOCKED, phase=Phase.WAITING, reason=BUILD), False),
        (driver(Strategy.BLOCKED, phase=Phase.WAITING, reason="Waits for a registry: no answer."), False),
        (driver(Strategy.BLOCKED, phase=Phase.BLOCKED, reason="No image fits."), False),
        (driver(Strategy.BLOCKED, pool="", phase=Phase.BLOCKED, reason="a label is missing"), True),
        (driver(Strategy.PREINSTALLED, phase=Phase.WAITING), True),
        (driver(Strategy.BUILT, phase=Phase.FAILED), True),
        ({}, True),
    ],
)
def test_another_node_would_help_where_the_driver_is_kept_by_something_of_this_one(
    said: dict[str, str], *, helps: bool
) -> None:
    some = make_node(annotations=said)

    def why(reason: str) -> str:
        return elsewhere(some, RECORD, overdue(reason), patience=PATIENCE, now=T0 + 5000)

    assert (why("DriverNotPulled") == "") == helps
    assert why("NodeNotReady") == ""
    assert why("NotAllocatable") == ""
    assert nothing_said(some, overdue("DriverNotPulled")) == (not said)


def test_a_node_that_was_kept_back_for_long_has_its_time_before_another_takes_its_place() -> None:
    pulling = make_node(taints=KEYS, conditions=(READY,), annotations=driver(Strategy.PRECOMPILED))
    record = msgspec.structs.replace(RECORD, waited=7200)
    for seconds, kept in ((7300, True), (8099, True), (8100, False)):
        found = late(record, seconds, pulling)
        assert found.told is not None
        assert found.told.overdue  # that has been said for long
        text = elsewhere(pulling, record, found.told, patience=PATIENCE, now=T0 + seconds)
        assert bool(text) == kept
        assert not kept or f"it has until {rfc3339(T0 + 8100)}" in text


def test_what_people_have_to_act_on_is_told_at_the_ordinary_deadline_and_the_time_after_it_is_the_nodes() -> None:
    blocked = driver(Strategy.BLOCKED, phase=Phase.BLOCKED, reason="No image fits.")
    found = late(waiting(60), 900, make_node(taints=KEYS, conditions=(READY,), annotations=blocked))
    assert found.told is not None
    assert found.told.reason == "DriverNotPulled"
    pulling = make_node(taints=KEYS, conditions=(READY,), annotations=driver(Strategy.PRECOMPILED))
    found = late(msgspec.structs.replace(RECORD, waited=1000), 1100, pulling)
    assert found.told is not None
    assert found.told.reason == EXTENDED
    assert found.due == T0 + 1900


def test_a_node_that_comes_up_after_all_is_told_so_and_freed() -> None:
    overdue = condition(PROVISIONED_CONDITION, "False", reason="DriverNotReady")
    found = judge(
        node(conditions=(READY, SHARED, overdue)), with_(allocatable=1000), keys=KEYS, patience=PATIENCE, now=T0 + 1000
    )
    assert found.free
    assert found.told is not None
    assert found.told.well


def test_nothing_is_said_of_a_node_that_lives_on() -> None:
    told = condition(PROVISIONED_CONDITION, "True", reason="Provisioned")
    sick = node(taints=(), conditions=(READY, SHARED, told), allocatable={"nvidia.com/gpu": "0"})
    found = judge(sick, with_(allocatable=130), keys=KEYS, patience=PATIENCE, now=T0 + 99999)
    assert (found.free, found.told, found.due) == (False, None, None)


def test_where_others_give_cards_out_nothing_more_is_expected() -> None:
    foreign = node(annotations={}, conditions=(READY,), taints=())
    found = judge(foreign, with_(allocatable=130), keys=KEYS, patience=PATIENCE, now=T0 + 99999)
    assert found.told is not None
    assert found.told.well


# Properties

STATUSES = st.sampled_from(["True", "False", "Unknown", ""])
OFFERS: st.SearchStrategy[list[NodeOffer]] = st.lists(st.sampled_from([WHOLE, SLICE, LARGE, ON_DEMAND]), max_size=3)


@given(
    ready=STATUSES,
    sharing=STATUSES,
    layout=STATUSES,
    offers=OFFERS,
    given_out=st.dictionaries(
        st.sampled_from([WHOLE.resource, SLICE.resource, LARGE.resource]), st.integers(0, 8).map(str)
    ),
    tainted=st.booleans(),
    now=st.floats(0, 5000),
)
def test_no_taint_goes_before_all_that_is_offered_is_given(
    *,
    ready: str,
    sharing: str,
    layout: str,
    offers: list[NodeOffer],
    given_out: dict[str, str],
    tainted: bool,
    now: float,
) -> None:
    kinds = (("Ready", ready), ("GpuSharingApplied", sharing), ("GpuMigLayoutApplied", layout))
    some = make_node(
        annotations=offering(*offers) if offers else {OFFERS_ANNOTATION: "[]"},
        conditions=tuple(condition(kind, status) for kind, status in kinds if status),
        allocatable=given_out,
        taints=KEYS if tainted else (),
    )
    found = judge(some, RECORD, keys=KEYS, patience=PATIENCE, now=T0 + now)
    whole = (
        (ready, sharing) == ("True", "True")
        and layout in {"True", ""}
        and bool(offers)
        and all(
            int(given_out.get(each.resource, "0"))
            >= sum(
                one.count for one in offers if one.resource == each.resource and one.kind is not OfferKind.DYNAMIC_SLICE
            )
            and int(given_out.get(each.resource, "0")) >= 1
            for each in offers
        )
    )
    assert found.free == (whole and tainted)
    assert found.told is None or found.told.well == whole
    assert (found.told is not None) == (whole or now >= 900)
