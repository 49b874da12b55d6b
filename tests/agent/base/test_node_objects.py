"""The Node's conditions report if the desired configuration is in force."""

from typing import Any

import msgspec
import pytest

from tessera.agent.base.node_objects import (
    NodeCondition,
    bound_messages,
    changed_facts,
    changed_pod_facts,
    conditions_manifest,
    read_conditions,
)
from tessera.agent.base.settings import DesiredSharing
from tessera.agent.base.wake_ups import Fact
from tessera.agent.mig_config.events import LayoutState, LayoutStatus
from tessera.agent.node_status.node_facts import layout_condition, mps_condition, sharing_condition
from tessera.api.problems import Notice
from tessera.api.sharing.devices import AdvertisedDevice, AdvertisedResource, Advertisement
from tessera.kube.cache import EventKind, WatchEvent
from tessera.kube.resources import Condition, Node, Pod
from tessera.limits import CONDITION_MESSAGE

DESIRED = DesiredSharing(name="slice-4", reason="the cluster's default")
KEPT = DesiredSharing(name="slice-2", problem='names the profile "slice-3"', problem_reason="ProfileMissing")


@pytest.mark.parametrize(
    ("desired", "in_force", "objection", "expected"),
    [
        (DESIRED, "slice-4", {}, ("True", "ProfileInForce", 'profile "slice-4" is in force: the cluster\'s default')),
        (
            DesiredSharing(reason="no label"),
            "",
            {},
            ("True", "NoProfile", "no profile is in force", "nothing is shared: no label"),
        ),
        (
            DESIRED,
            "slice-2",
            {},
            (
                "Unknown",
                "ProfilePending",
                'profile "slice-4" (the cluster\'s default) is next',
                'profile "slice-2" is in force',
            ),
        ),
        (
            KEPT,
            "slice-2",
            {},
            ("False", "ProfileMissing", 'names the profile "slice-3"', 'profile "slice-2" is in force'),
        ),
        (
            DESIRED,
            "",
            {"problem": "49 is more than 48"},
            ("False", "ProfileRefused", "49 is more than 48", "no profile is in force", "nothing is shared"),
        ),
        (
            DESIRED,
            "slice-4",
            {"problem": "a pod holds GPU 0", "problem_reason": "CardsInUse"},
            ("False", "CardsInUse", "a pod holds GPU 0", 'profile "slice-4" is in force'),
        ),
    ],
)
def test_sharing(desired: DesiredSharing, in_force: str, objection: dict[str, Any], expected: tuple[str, ...]) -> None:
    found = sharing_condition(desired, in_force, **objection)
    assert found.type == "GpuSharingApplied"
    status, reason, *facts = expected
    assert (found.status, found.reason) == (status, reason)
    for fact in facts:
        assert fact in found.message


def test_the_offer_shows_new_content_in_force_and_fields_without_effect() -> None:
    slices = tuple(AdvertisedDevice(id=str(number), uuid="u", gpu="g", index="0") for number in range(7))
    resources = {"nvidia.com/mig-1g.5gb": AdvertisedResource(name="nvidia.com/mig-1g.5gb", devices=slices)}
    notice = Notice("sharing.timeSlicing.resources[0].name", "nothing here is nvidia.com/gpu")
    found = sharing_condition(DESIRED, "slice-4", offer=Advertisement(resources=resources, notices=(notice,)))
    assert found.status == "True"
    for fact in ("default", "offered: 7 nvidia.com/mig-1g.5gb", f"{notice.path}: {notice.text}"):
        assert fact in found.message


@pytest.mark.parametrize(
    ("state", "reason", "status"),
    [
        (LayoutState.SUCCESS, "LayoutApplied", "True"),
        (LayoutState.PENDING, "CardsInUse", "Unknown"),
        (LayoutState.REBOOTING, "Rebooting", "Unknown"),
        (LayoutState.FAILED, "LayoutImpossible", "False"),
    ],
)
def test_layout(state: LayoutState, reason: str, status: str) -> None:
    found = layout_condition(LayoutStatus(layout="all-1g.5gb", state=state, reason=reason, message="text"))
    assert found is not None
    assert (found.type, found.status, found.reason, found.message) == ("GpuMigLayoutApplied", status, reason, "text")


def test_no_layout_no_condition() -> None:
    assert layout_condition(LayoutStatus()) is None


def test_mps() -> None:
    assert mps_condition({}) is None
    ready = mps_condition({"nvidia.com/gpu.shared": ""})
    assert ready == NodeCondition("GpuMpsReady", "True", "DaemonsReady", "MPS serves nvidia.com/gpu.shared")
    waiting = mps_condition({"nvidia.com/gpu": "", "nvidia.com/gpu.shared": "the daemon of GPU 0 died"})
    assert waiting is not None
    assert (waiting.status, waiting.message) == ("False", "nvidia.com/gpu.shared: the daemon of GPU 0 died")


def test_the_time_of_transition_moves_with_the_status_only() -> None:
    since = {"GpuHealthy": ("True", "then")}
    steady = NodeCondition("GpuHealthy", "True", "CardDegraded", "GPU 0 is slow")
    (listed,) = conditions_manifest([steady], since, "now")
    assert (listed["lastTransitionTime"], listed["lastHeartbeatTime"]) == ("then", "now")
    (listed,) = conditions_manifest([msgspec.structs.replace(steady, status="False")], since, "later")
    assert listed["lastTransitionTime"] == "later"
    assert conditions_manifest([], since, "later") == []
    (listed,) = conditions_manifest([steady], since, "latest")
    assert listed["lastTransitionTime"] == "latest"


def test_a_message_is_one_printable_line_whatever_a_configmap_contains() -> None:
    text = "profile \x1b[2J is none\nWhat would help: nothing"
    (found,) = bound_messages([NodeCondition("GpuSharingApplied", "False", "ProfileRefused", text)]).values()
    assert found.message == r"profile \x1b[2J is none\nWhat would help: nothing"


def test_messages_have_an_end() -> None:
    (found,) = bound_messages([NodeCondition("GpuHealthy", "False", "CardUnhealthy", "x" * 5000)]).values()
    assert len(found.message) == CONDITION_MESSAGE
    assert found.message.endswith("x…")


def test_only_the_agents_own_conditions_are_read() -> None:
    shown = read_conditions([Condition(type="Ready", status="True"), Condition(type="GpuHealthy", status="odd")])
    assert shown == {"GpuHealthy": NodeCondition("GpuHealthy", "Unknown", "", "")}


BEFORE: dict[str, Any] = {
    "metadata": {"name": "n1", "uid": "u1", "labels": {"team": "a"}, "annotations": {"example.com/seen": "1"}},
    "status": {"conditions": [{"type": "Ready", "status": "True"}], "capacity": {"nvidia.com/gpu": "1"}},
}


@pytest.mark.parametrize(
    ("metadata", "status", "facts"),
    [
        ({"annotations": {"example.com/seen": "2"}}, {}, Fact(0)),
        ({"labels": {"team": "b"}}, {}, Fact(0)),
        ({"labels": {"nvidia.com/gpu.count": "1"}}, {}, Fact.NODE),
        ({"labels": {"nvidia.com/mig.config": "dynamic"}}, {}, Fact.NODE | Fact.DESIRED_LAYOUT),
        ({"annotations": {"tessera.dev/offers": "[]"}}, {}, Fact.NODE | Fact.NODE_ANNOTATIONS),
        ({}, {"conditions": []}, Fact.NODE),
        ({}, {"capacity": {}}, Fact.NODE_STATUS),
    ],
)
def test_a_change_of_the_node(metadata: dict[str, Any], status: dict[str, Any], facts: Fact) -> None:
    now = {"metadata": {**BEFORE["metadata"], **metadata}, "status": {**BEFORE["status"], **status}}
    old, new = msgspec.convert(BEFORE, Node), msgspec.convert(now, Node)
    assert changed_facts(WatchEvent(EventKind.MODIFIED, new, old)) == facts


@pytest.mark.parametrize(
    ("spec", "status", "facts"),
    [
        ({"containers": [{"resources": {"limits": {"cpu": "1", "hugepages-2Mi": "4Mi"}}}]}, {}, Fact(0)),
        ({"containers": [{"resources": {"limits": {"nvidia.com/gpu": "1"}}}]}, {}, Fact.PODS),
        ({"initContainers": [{"resources": {"limits": {"team.example/half-card": "1"}}}]}, {}, Fact.PODS),
        ({"resourceClaims": [{"name": "card"}]}, {}, Fact.PODS),
        ({}, {"conditions": [{"type": "tessera.dev/GpuHealthy", "status": "False"}]}, Fact.PODS | Fact.TOLD_PODS),
    ],
)
def test_a_change_of_a_pod(spec: dict[str, Any], status: dict[str, Any], facts: Fact) -> None:
    containers = {"containers": [], **spec}
    for each in (*containers["containers"], *containers.get("initContainers", ())):
        each["name"] = "main"
    pod = msgspec.convert({"metadata": {"name": "p", "uid": "p1"}, "spec": containers, "status": status}, Pod)
    assert changed_pod_facts(WatchEvent(EventKind.ADDED, pod)) == facts
