"""Removal of startup taints, and the texts about nodes that miss the deadline."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.provisioning.conftest import T0, WHOLE, condition, driver, make_node, offering

from tessera.api.nodes.node_marks import AGENT_STATUS_UNKNOWN, PROVISIONED, DriverStrategy
from tessera.api.nodes.offers import OFFERS_ANNOTATION, NodeOffer, OfferKind
from tessera.provisioning.milestones import Milestone, ProvisioningRecord
from tessera.provisioning.startup_deadline import (
    PREFIXES,
    STARTUP_TAINT,
    StartupDeadline,
    StartupJudgement,
    judge_startup,
    missing_offer,
    offers_gpus,
    startup_taints,
)

M = Milestone
READY = condition("Ready")
SHARED = condition("GpuSharingApplied")
LAYOUT = condition("GpuMigLayoutApplied")
DEADLINE = StartupDeadline(seconds=900, began=T0 - 86400, grace=60)
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


RECORD = ProvisioningRecord(node="gpu-1", uid="node-uid", at={M.REGISTERED: T0, M.READY: T0 + 10, M.LABELLED: T0})


def with_(**at: float) -> ProvisioningRecord:
    return msgspec.structs.replace(RECORD, at={**RECORD.at, **{M(name): T0 + seconds for name, seconds in at.items()}})


def test_a_node_that_offers_what_it_should_is_freed() -> None:
    assert missing_offer(node()) == ""
    found = judge_startup(node(), with_(allocatable=130), keys=KEYS, deadline=DEADLINE, now=T0 + 132)
    assert found.remove_taints
    assert found.condition is not None
    assert found.condition.status == "True"
    for fact in ("132 s after it was registered", "kubelet gives 1 nvidia.com/gpu"):
        assert fact in found.condition.text


@pytest.mark.parametrize(
    ("unlike", "facts"),
    [
        ({"conditions": (condition("Ready", "False"), SHARED)}, ("the node is not Ready",)),
        (
            {
                "annotations": {},
                "conditions": (
                    READY,
                    condition("GpuNodeReady", "False", reason="WaitingForDriver", message="no driver is loaded"),
                ),
            },
            ("no driver is loaded (WaitingForDriver)",),
        ),
        ({"annotations": {}}, ("its agent has not reported what its cards offer", f"annotation {OFFERS_ANNOTATION}")),
        ({"annotations": {OFFERS_ANNOTATION: "x"}}, (f"annotation {OFFERS_ANNOTATION}: ",)),
        ({"annotations": {OFFERS_ANNOTATION: "[]"}}, ("its cards offer nothing",)),
        (
            {"conditions": (READY,)},
            ("its agent has not reported how its cards are shared", "condition GpuSharingApplied"),
        ),
        (
            {"conditions": (READY, condition("GpuSharingApplied", "Unknown", reason="ProfilePending", message="m"))},
            ("condition GpuSharingApplied is Unknown", "(ProfilePending): m"),
        ),
        (
            {"conditions": (READY, SHARED, condition("GpuMigLayoutApplied", "False", reason="LayoutFailed"))},
            ("condition GpuMigLayoutApplied is False", "(LayoutFailed): "),
        ),
        (
            {"labels": {"nvidia.com/mig.config": "all-1g.5gb"}},
            ("its MIG layout all-1g.5gb is requested", "its agent has not reported it"),
        ),
        ({"allocatable": {}}, ("kubelet gives 0 of 1 nvidia.com/gpu",)),
        ({"allocatable": {"nvidia.com/gpu": "many"}}, ("kubelet gives 0 of 1 nvidia.com/gpu",)),
    ],
)
def test_what_is_missing_keeps_the_taint(unlike: dict[str, Any], facts: tuple[str, ...]) -> None:
    missing = missing_offer(node(**unlike))
    for fact in facts:
        assert fact in missing
    found = judge_startup(node(**unlike), RECORD, keys=KEYS, deadline=DEADLINE, now=T0 + 30)
    assert (found.remove_taints, found.condition, found.due) == (False, None, T0 + 900)


def test_a_mig_layout_that_is_half_applied_keeps_the_taint() -> None:
    half = node(annotations=offering(SLICE, LARGE), allocatable={"nvidia.com/mig-1g.5gb": "7"})
    assert missing_offer(half) == "kubelet gives 0 of 1 nvidia.com/mig-3g.20gb"
    fewer = node(annotations=offering(SLICE), allocatable={"nvidia.com/mig-1g.5gb": "5"})
    assert missing_offer(fewer) == "kubelet gives 5 of 7 nvidia.com/mig-1g.5gb"


def test_slices_on_demand_are_there_when_one_of_each_could_be_made() -> None:
    assert missing_offer(node(annotations=offering(ON_DEMAND), allocatable={"nvidia.com/mig-1g.5gb": "1"})) == ""
    assert missing_offer(node(annotations=offering(ON_DEMAND), allocatable={"nvidia.com/mig-1g.5gb": "0"})) != ""


def test_slices_by_resource_claims_are_never_allocatable_and_not_waited_for() -> None:
    by_claims = {"nvidia.com/mig.config": "dynamic", "tessera.dev/device-api": "dra"}
    claims = node(annotations=offering(ON_DEMAND), allocatable={}, labels=by_claims)
    assert missing_offer(claims) == ""
    assert offers_gpus(claims)
    found = judge_startup(claims, with_(allocatable=130), keys=KEYS, deadline=DEADLINE, now=T0 + 132)
    assert found.remove_taints
    assert found.condition is not None
    assert found.condition.text.endswith(", cards go to ResourceClaims")
    mixed = node(annotations=offering(ON_DEMAND, WHOLE), allocatable={}, labels=by_claims)
    assert missing_offer(mixed) == "kubelet gives 0 of 1 nvidia.com/gpu"
    assert not offers_gpus(node(annotations=offering(WHOLE), allocatable={}, labels=by_claims))
    assert not offers_gpus(node(annotations={OFFERS_ANNOTATION: "{"}, allocatable={}, labels=by_claims))


def test_a_dynamic_node_needs_no_layout_condition() -> None:
    assert missing_offer(node(labels={"nvidia.com/mig.config": "dynamic"})) == ""


def test_startup_taints_of_others_are_theirs() -> None:
    both = node(taints=(f"{PREFIXES[0]}network", STARTUP_TAINT))
    assert [each.key for each in startup_taints(both, KEYS)] == [STARTUP_TAINT]
    others = node(taints=(f"{PREFIXES[0]}network",))
    assert not judge_startup(others, with_(allocatable=1), keys=KEYS, deadline=DEADLINE, now=T0).remove_taints


@pytest.mark.parametrize(
    ("at", "more", "reason", "facts"),
    [
        ({}, {}, "DriverNotPulled", ("900 s after it was registered", "no container of a driver has started")),
        (
            {},
            {"annotations": driver(DriverStrategy.BLOCKED, reason="no image for 5.15.0-69-generic")},
            "DriverNotPulled",
            ("900 s after it was registered", "no container of a driver has started", "no image for 5.15.0-69-generic"),
        ),
        ({"pulled": 60}, {}, "DriverNotReady", ("its driver is not ready",)),
        ({"driver": 60}, {}, "ToolkitNotReady", ("the container toolkit is not ready",)),
        ({"toolkit": 60}, {}, "NotValidated", ("no container has used the driver yet",)),
        (
            {"validated": 60},
            {"annotations": offering(), "conditions": (READY, SHARED)},
            "NotAllocatable",
            ("kubelet gives 0 of 1 nvidia.com/gpu",),
        ),
    ],
)
def test_at_the_deadline_the_blocking_phase_is_named(
    at: dict[str, float], more: dict[str, Any], reason: str, facts: tuple[str, ...]
) -> None:
    late = make_node(taints=KEYS, **{"conditions": (READY,), **more})
    found = judge_startup(late, with_(**at), keys=KEYS, deadline=DEADLINE, now=T0 + 900)
    assert found.condition is not None
    assert (found.condition.status, found.condition.reason) == ("False", reason)
    for fact in facts:
        assert fact in found.condition.text
    assert not found.remove_taints


def test_a_node_that_is_not_ready_is_told_so_first() -> None:
    record = ProvisioningRecord(node="gpu-1", uid="node-uid", at={M.REGISTERED: T0, M.PULLED: T0 + 5})
    found = judge_startup(make_node(), record, keys=KEYS, deadline=DEADLINE, now=T0 + 900)
    assert found.condition is not None
    assert found.condition.reason == "NodeNotReady"


def test_a_controller_that_starts_after_the_deadline_looks_first() -> None:
    began = StartupDeadline(seconds=900, began=T0 + 5000, grace=60)
    late = make_node(conditions=(READY,))
    assert judge_startup(late, RECORD, keys=KEYS, deadline=began, now=T0 + 5001).condition is None
    assert judge_startup(late, RECORD, keys=KEYS, deadline=began, now=T0 + 5060).condition is not None


def test_a_node_that_comes_up_after_all_is_told_so_and_freed() -> None:
    overdue = condition(PROVISIONED, "False", reason="DriverNotReady")
    found = judge_startup(
        node(conditions=(READY, SHARED, overdue)), with_(allocatable=1000), keys=KEYS, deadline=DEADLINE, now=T0 + 1000
    )
    assert found.remove_taints
    assert found.condition is not None
    assert found.condition.provisioned


def test_a_node_that_had_come_up_is_provisioned_again_once_its_silent_agent_speaks() -> None:
    unknown = condition(PROVISIONED, "Unknown", reason=AGENT_STATUS_UNKNOWN)
    silent = condition("GpuHealthy", "Unknown", reason=AGENT_STATUS_UNKNOWN)
    late, came = T0 + 99999, with_(allocatable=130)
    still = node(taints=(), conditions=(READY, silent, unknown), allocatable={"nvidia.com/gpu": "0"})
    assert judge_startup(still, came, keys=KEYS, deadline=DEADLINE, now=late) == StartupJudgement()
    back = node(taints=(), conditions=(READY, SHARED, unknown), allocatable={"nvidia.com/gpu": "0"})
    found = judge_startup(back, came, keys=KEYS, deadline=DEADLINE, now=late)
    assert found.condition is not None
    assert (found.condition.status, found.due) == ("True", None)


def test_nothing_is_said_of_a_node_that_lives_on() -> None:
    told = condition(PROVISIONED, "True", reason="Provisioned")
    sick = node(taints=(), conditions=(READY, SHARED, told), allocatable={"nvidia.com/gpu": "0"})
    found = judge_startup(sick, with_(allocatable=130), keys=KEYS, deadline=DEADLINE, now=T0 + 99999)
    assert (found.remove_taints, found.condition, found.due) == (False, None, None)


def test_where_others_give_cards_out_nothing_more_is_expected() -> None:
    foreign = node(annotations={}, conditions=(READY,), taints=())
    found = judge_startup(foreign, with_(allocatable=130), keys=KEYS, deadline=DEADLINE, now=T0 + 99999)
    assert found.condition is not None
    assert found.condition.provisioned


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
    found = judge_startup(some, RECORD, keys=KEYS, deadline=DEADLINE, now=T0 + now)
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
    assert found.remove_taints == (whole and tainted)
    assert found.condition is None or found.condition.provisioned == whole
    assert (found.condition is not None) == (whole or now >= 900)
