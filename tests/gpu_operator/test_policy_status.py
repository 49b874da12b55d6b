"""The status of a ClusterPolicy and of an NVIDIADriver."""

from typing import Any

import msgspec
import pytest

from tessera.api.nodes.node_marks import DriverPhase, DriverStatus, DriverStrategy
from tessera.api.problems import Notice, Problem
from tessera.gpu_operator.assignment import DriverConflict
from tessera.gpu_operator.policy_status import (
    PolicyStatus,
    conflict_status,
    disabled_status,
    frozen_status,
    ignored_status,
    invalid_status,
    make_status_patch,
    summarize_nodes,
    unmanaged_status,
)

T1, T2 = "2026-01-01T00:00:00Z", "2026-01-01T00:01:00Z"


def node(phase: DriverPhase, reason: str = "") -> DriverStatus:
    return DriverStatus(strategy=DriverStrategy.PRECOMPILED, phase=phase, since=T1, reason=reason)


def told(verdict: PolicyStatus, before: dict[str, Any] | None = None, now: str = T1) -> dict[str, Any]:
    obj = {"metadata": {"name": "cluster-policy", "generation": 3}, "status": before or {}}
    patch = make_status_patch(obj, verdict, namespace="tessera-system", now=now)
    assert patch is not None
    status: dict[str, Any] = patch["status"]
    return status


def condition(status: dict[str, Any], kind: str) -> dict[str, Any]:
    (found,) = (each for each in status["conditions"] if each["type"] == kind)
    return dict(found)


def short(status: dict[str, Any]) -> dict[str, tuple[str, str]]:
    return {each["type"]: (each["status"], each["reason"]) for each in status["conditions"]}


def test_every_node_has_its_driver() -> None:
    status = told(summarize_nodes({"n1": node(DriverPhase.READY), "n2": node(DriverPhase.READY)}))
    assert (status["state"], status["namespace"]) == ("ready", "tessera-system")
    assert short(status) == {
        "Ready": ("True", "Reconciled"),
        "Error": ("False", "Ready"),
        "FieldsIgnored": ("False", "None"),
        "NodesWithoutDriver": ("False", "None"),
    }
    assert condition(status, "Ready")["message"] == "all 2 nodes have their driver"
    assert all(each["observedGeneration"] == 3 for each in status["conditions"])


def test_a_single_node_is_spoken_of_as_one() -> None:
    assert summarize_nodes({"n1": node(DriverPhase.READY)}).message == "the only node has its driver"


def other(wanted: str, reason: str = "", phase: DriverPhase = DriverPhase.READY) -> DriverStatus:
    return msgspec.structs.replace(node(phase, reason), version="525.125.06", wanted=wanted)


OFF = {f"n{n}": "autoUpgrade is off" for n in range(1, 5)}
HAS_IT = node(DriverPhase.READY)
SKIPPED = "label nvidia.com/gpu-driver-upgrade.skip=true keeps it out"


@pytest.mark.parametrize(
    ("nodes", "holds", "message"),
    [
        (
            {f"n{n}": other("535.104.05") for n in range(1, 5)},
            OFF,
            "0 of 4 nodes have 535.104.05; autoUpgrade is off",
        ),
        (
            {"n1": HAS_IT, "n2": HAS_IT, "n3": other("535.104.05")},
            {"n3": SKIPPED},
            f"2 of 3 nodes have 535.104.05; n3: {SKIPPED}",
        ),
        (
            {
                "n1": HAS_IT,
                "n2": other("535.104.05", "Waits for a place in the rollout."),
                "n3": node(DriverPhase.STARTING),
            },
            {},
            "1 of 3 nodes have 535.104.05; n2: Waits for a place in the rollout; 1 of 3 nodes without a driver",
        ),
        (
            {"n1": other("535"), "n2": other("570")},
            OFF,
            "0 of 2 nodes have the driver that is named for them; autoUpgrade is off",
        ),
    ],
    ids=["never-asked", "skipped", "in-a-rollout", "two-objects"],
)
def test_another_driver_than_the_named_one_is_not_ready(
    nodes: dict[str, DriverStatus | None], holds: dict[str, str], message: str
) -> None:
    status = told(summarize_nodes(nodes, holds=holds))
    assert (status["state"], condition(status, "Ready")["message"]) == ("notReady", message)
    assert short(status)["Ready"] == ("False", "DriverNotReady")
    assert short(status)["Error"] == ("False", "Ready")


def test_an_object_that_cannot_be_followed_now_is_not_ready() -> None:
    status = told(frozen_status("The API server has no NVIDIADriver objects."))
    assert status["state"] == "notReady"
    assert "The API server has no NVIDIADriver objects." in condition(status, "Error")["message"]


def test_no_node_has_a_card() -> None:
    status = told(summarize_nodes({}))
    assert (status["state"], short(status)["Ready"]) == ("ready", ("True", "NoGPUNodes"))


def test_a_driver_that_is_on_its_way_is_no_error() -> None:
    nodes = {"n1": node(DriverPhase.READY), "n2": node(DriverPhase.PULLING, "image for ubuntu22.04"), "n3": None}
    status = told(summarize_nodes(nodes))
    assert status["state"] == "notReady"
    assert short(status)["Ready"] == ("False", "DriverNotReady")
    assert short(status)["Error"] == ("False", "Ready")
    assert condition(status, "NodesWithoutDriver")["message"] == "n2: pulling, image for ubuntu22.04; n3: waiting"


@pytest.mark.parametrize("phase", [DriverPhase.FAILED, DriverPhase.BLOCKED])
def test_a_driver_that_does_not_come_is_an_error_that_names_its_node(phase: DriverPhase) -> None:
    status = told(
        summarize_nodes({"n1": node(phase, "quay.io wants other credentials"), "n2": node(DriverPhase.STARTING)})
    )
    assert short(status)["Error"] == ("True", "DriverNotReady")
    message = condition(status, "Error")["message"]
    for fact in (
        "2 of 2 nodes without a driver",
        "1 of them for good",
        f"n1: {phase.value}, quay.io wants other credentials",
    ):
        assert fact in message


def test_fields_without_effect_are_listed_and_defaults_are_not() -> None:
    notices = (Notice("spec.dcgm", "no effect: reasons"), Notice("spec.driver.image", "not set; the chart's is taken"))
    status = told(summarize_nodes({}, notices))
    assert short(status)["FieldsIgnored"] == ("True", "Reported")
    assert condition(status, "FieldsIgnored")["message"] == "spec.dcgm: no effect: reasons"


def test_texts_are_bounded_and_the_rest_is_counted() -> None:
    nodes = {f"node-{n:04}": node(DriverPhase.FAILED, f"{n}" + "x" * 3000) for n in range(5000)}
    notices = tuple(Notice(f"spec.a{n}", f"no effect: because of {n}") for n in range(300))
    status = told(summarize_nodes(nodes, notices))
    assert all(len(each["message"]) <= 4096 for each in status["conditions"])
    assert condition(status, "NodesWithoutDriver")["message"].endswith(" more")
    assert condition(status, "FieldsIgnored")["message"].endswith("; and 280 more")


def test_what_holds_for_many_is_told_once() -> None:
    nodes = {f"n{n:02}": node(DriverPhase.BLOCKED, "No policy governs it.") for n in range(12)} | {
        "z": node(DriverPhase.PULLING)
    }
    notices = tuple(Notice(f"spec.driver.{key}", "no effect: why") for key in ("image", "version"))
    status = told(summarize_nodes(nodes, notices))
    first = ", ".join(f"n{n:02}" for n in range(10))
    assert condition(status, "NodesWithoutDriver")["message"] == (
        f"{first} and 2 more: blocked, No policy governs it.; z: pulling"
    )
    assert condition(status, "FieldsIgnored")["message"] == "spec.driver.image, spec.driver.version: no effect: why"


def test_a_condition_keeps_its_time_while_its_status_stays() -> None:
    first = told(summarize_nodes({"n1": node(DriverPhase.PULLING)}), now=T1)
    second = told(summarize_nodes({"n1": node(DriverPhase.STARTING)}), first, now=T2)
    assert all(each["lastTransitionTime"] == T1 for each in second["conditions"])
    third = told(summarize_nodes({"n1": node(DriverPhase.READY)}), second, now=T2)
    times = {each["type"]: each["lastTransitionTime"] for each in third["conditions"]}
    assert times == {"Ready": T2, "Error": T1, "FieldsIgnored": T1, "NodesWithoutDriver": T2}


def test_what_is_told_already_is_not_written_again() -> None:
    verdict = summarize_nodes({"n1": node(DriverPhase.READY)})
    status = told(verdict)
    obj = {"metadata": {"generation": 3}, "status": {**status, "conditions": status["conditions"][::-1]}}
    assert make_status_patch(obj, verdict, namespace="tessera-system", now=T2) is None
    assert make_status_patch(obj, verdict, namespace="elsewhere", now=T2) is not None
    changed = {**obj, "metadata": {"generation": 4}}
    assert make_status_patch(changed, verdict, namespace="tessera-system", now=T2) is not None


def test_conditions_of_others_stay() -> None:
    other = {"type": "Audited", "status": "True", "reason": "A", "message": "", "lastTransitionTime": T1}
    status = told(summarize_nodes({}), {"conditions": [other]})
    assert other in status["conditions"]


def test_an_object_with_mistakes_lists_them() -> None:
    status = told(invalid_status([Problem("spec.driver.version", "missing"), Problem("spec.driver.image", "missing")]))
    assert status["state"] == "notReady"
    assert short(status)["Error"] == ("True", "ReconcileFailed")
    message = condition(status, "Error")["message"]
    for fact in ("2 mistakes", "spec.driver.version: missing", "spec.driver.image: missing"):
        assert fact in message


def test_the_younger_of_two_policies_is_ignored_and_says_by_whom() -> None:
    status = told(ignored_status("cluster-policy"))
    assert (status["state"], short(status)["Ready"]) == ("ignored", ("False", "Ignored"))
    assert "cluster-policy is older and counts" in condition(status, "Ready")["message"]


def test_drivers_that_are_the_hosts_are_ready() -> None:
    assert told(unmanaged_status())["state"] == "ready"


def test_an_nvidia_driver_that_nobody_calls_for_is_disabled() -> None:
    assert told(disabled_status())["state"] == "disabled"


def test_an_nvidia_driver_in_conflict_says_so_and_keeps_telling_of_its_nodes() -> None:
    rest = summarize_nodes({"n1": node(DriverPhase.PULLING)})
    status = told(
        conflict_status(DriverConflict(drivers=("a", "b"), nodes=("n2",), text="a and b all select n2"), rest)
    )
    assert status["state"] == "notReady"
    assert short(status)["Error"] == ("True", "ConflictingNodeSelector")
    assert short(status)["NodesWithoutDriver"] == ("True", "DriverNotReady")
