"""The policy of each node; mistakes, other operators, and objects that are gone."""

from typing import Any

import pytest

from tessera.api.nodes.node_marks import DriverPhase, DriverStatus, DriverStrategy
from tessera.driver.policies import PolicyObjects, select_policy

NODES = {"a": {"pool": "one"}, "b": {"pool": "two"}}
DRIVER = {"usePrecompiled": True, "repository": "nvcr.io/nvidia", "image": "driver", "version": "525.125.06"}


def cluster_policy(name: str = "cp", created: str = "2027-01-01T00:00:00Z", **driver: Any) -> dict[str, Any]:
    return {
        "kind": "ClusterPolicy",
        "metadata": {"name": name, "uid": f"uid-{name}", "creationTimestamp": created},
        "spec": {"driver": DRIVER | driver},
    }


def nvidia_driver(name: str, **spec: Any) -> dict[str, Any]:
    base = {"driverType": "gpu", "repository": "nvcr.io/nvidia", "image": "driver", "version": "525.125.06"}
    return {
        "kind": "NVIDIADriver",
        "metadata": {"name": name, "uid": f"uid-{name}", "creationTimestamp": "2027-01-01T00:00:00Z"},
        "spec": base | spec,
    }


def test_one_policy_governs_all_nodes_with_cards() -> None:
    found = select_policy(PolicyObjects(cluster_policies=[cluster_policy()]), NODES)
    assert {name: policy.name for name, policy in found.nodes.items()} == {"a": "cp", "b": "cp"}
    assert not found.frozen


def test_the_oldest_policy_counts_and_the_other_is_told_so() -> None:
    younger = cluster_policy("younger", "2027-02-01T00:00:00Z")
    found = select_policy(PolicyObjects(cluster_policies=[younger, cluster_policy()]), NODES)
    assert found.cluster is not None
    assert found.cluster.name == "cp"
    verdicts = {told.name: verdict.state for told, verdict in found.policy_statuses({})}
    assert verdicts == {"ClusterPolicy/cp": "notReady", "ClusterPolicy/younger": "ignored"}


def test_no_policy_means_that_nothing_is_managed() -> None:
    found = select_policy(PolicyObjects(cluster_policies=[]), NODES)
    assert not found.frozen
    assert not found.nodes


def test_where_there_is_no_such_kind_of_object_nothing_is_taken_away() -> None:
    assert select_policy(PolicyObjects(), NODES).frozen


def test_a_policy_with_drivers_disabled_manages_none_and_is_ready() -> None:
    found = select_policy(PolicyObjects(cluster_policies=[cluster_policy(enabled=False)]), NODES)
    assert not found.nodes
    assert not found.frozen
    assert [verdict.state for _, verdict in found.policy_statuses({})] == ["ready"]


def test_a_mistake_freezes_what_nobody_remembers() -> None:
    found = select_policy(PolicyObjects(cluster_policies=[cluster_policy(version="no version")]), NODES)
    assert found.frozen
    assert [verdict.state for _, verdict in found.policy_statuses({})] == ["notReady"]


def test_a_mistake_leaves_in_force_what_was_followed_before() -> None:
    before = select_policy(PolicyObjects(cluster_policies=[cluster_policy()]), NODES)
    broken = PolicyObjects(cluster_policies=[cluster_policy(version="no version")], last_valid=before.last_valid)
    found = select_policy(broken, NODES)
    assert found.nodes == before.nodes
    assert [verdict.reason for _, verdict in found.policy_statuses({})] == ["ReconcileFailed"]


def test_a_policy_that_another_operator_follows_is_left_to_it() -> None:
    policy = cluster_policy()
    policy["metadata"]["managedFields"] = [{"manager": "gpu-operator", "subresource": "status"}]
    found = select_policy(PolicyObjects(cluster_policies=[policy]), NODES)
    assert "gpu-operator" in found.frozen
    assert not found.reports


def test_nvidiadriver_objects_divide_the_nodes() -> None:
    drivers = [nvidia_driver("one", nodeSelector={"pool": "one"}), nvidia_driver("rest", default=True)]
    policies = [cluster_policy(useNvidiaDriverCRD=True)]
    found = select_policy(PolicyObjects(cluster_policies=policies, nvidia_drivers=drivers), NODES)
    assert {name: policy.name for name, policy in found.nodes.items()} == {"a": "one", "b": "rest"}


def test_a_node_that_several_mean_has_none_and_is_told_why() -> None:
    drivers = [nvidia_driver(name, nodeSelector={"pool": "one"}) for name in ("x", "y")]
    policies = [cluster_policy(useNvidiaDriverCRD=True)]
    found = select_policy(PolicyObjects(cluster_policies=policies, nvidia_drivers=drivers), NODES)
    assert "x and y" in found.unassigned["a"]
    assert "no NVIDIADriver selects it" in found.unassigned["b"]
    reasons = {told.name: verdict.reason for told, verdict in found.policy_statuses({})}
    assert reasons["NVIDIADriver/x"] == "ConflictingNodeSelector"


def test_nodes_that_no_nvidiadriver_selects_keep_the_policy_from_being_ready() -> None:
    policies, unused = [cluster_policy(useNvidiaDriverCRD=True)], nvidia_driver("x", nodeSelector={"pool": "none"})
    found = select_policy(PolicyObjects(cluster_policies=policies, nvidia_drivers=[unused]), NODES)
    blocked = DriverStatus(
        strategy=DriverStrategy.BLOCKED, phase=DriverPhase.BLOCKED, since="", reason="No policy governs it."
    )
    verdicts = {told.name: verdict for told, verdict in found.policy_statuses(dict.fromkeys(NODES, blocked))}
    policy, driver = verdicts["ClusterPolicy/cp"], verdicts["NVIDIADriver/x"]
    assert (policy.state, policy.error, set(policy.waiting)) == ("notReady", True, set(NODES))
    assert (driver.state, driver.reason, driver.message) == (
        "ready",
        "NoGPUNodes",
        "it selects no node that has a card",
    )


@pytest.mark.parametrize("drivers", [None, [nvidia_driver("one", version="no version")]], ids=["no-kind", "a-mistake"])
def test_a_policy_that_cannot_be_followed_is_not_ready(drivers: list[dict[str, Any]] | None) -> None:
    policy = cluster_policy(useNvidiaDriverCRD=True)
    found = select_policy(PolicyObjects(cluster_policies=[policy], nvidia_drivers=drivers), NODES)
    verdicts = {told.name: verdict for told, verdict in found.policy_statuses({})}
    assert verdicts["ClusterPolicy/cp"].state == "notReady"
    assert found.frozen in verdicts["ClusterPolicy/cp"].message


@pytest.mark.parametrize(
    ("labels", "auto", "why"),
    [
        ({}, False, "0 of 1 nodes have 535; autoUpgrade is off"),
        ({}, True, "0 of 1 nodes have 535; a: The rollout waits"),
        (
            {"nvidia.com/gpu-driver-upgrade.skip": "true"},
            True,
            "0 of 1 nodes have 535; a: label nvidia.com/gpu-driver-upgrade.skip=true keeps it out",
        ),
    ],
    ids=["never-asked", "in-a-rollout", "skipped"],
)
@pytest.mark.parametrize("crd", [False, True], ids=["ClusterPolicy", "NVIDIADriver"])
def test_an_object_is_ready_only_with_the_driver_that_it_names(
    labels: dict[str, str], auto: bool, why: str, crd: bool
) -> None:
    driver: dict[str, Any] = {"version": "535", "upgradePolicy": {"autoUpgrade": auto}}
    drivers = [nvidia_driver("one", **driver)] if crd else []
    policy = cluster_policy(**driver, useNvidiaDriverCRD=crd)
    found = select_policy(PolicyObjects(cluster_policies=[policy], nvidia_drivers=drivers), {"a": labels})
    old = DriverStatus(
        strategy=DriverStrategy.BUILT, phase=DriverPhase.READY, since="", wanted="535", reason="The rollout waits."
    )
    verdicts = found.policy_statuses({"a": old})
    assert [(verdict.state, verdict.message) for _, verdict in verdicts] == [("notReady", why)] * (1 + crd)


def test_no_policy_waits_for_nodes_that_people_want_left_alone() -> None:
    alone = {"nvidia.com/gpu.deploy.driver": "false"}
    blocked = DriverStatus(
        strategy=DriverStrategy.BLOCKED, phase=DriverPhase.BLOCKED, since="", reason="It is left alone."
    )
    ready = DriverStatus(strategy=DriverStrategy.BUILT, phase=DriverPhase.READY, since="")
    objects = PolicyObjects(cluster_policies=[cluster_policy()])
    ((_, verdict),) = select_policy(objects, {"a": {}, "b": alone}).policy_statuses({"a": ready, "b": blocked})
    assert (verdict.state, verdict.message) == (
        "ready",
        "the only node has its driver; 1 more is left alone, as labels say",
    )
    ((_, verdict),) = select_policy(objects, {"b": alone}).policy_statuses({"b": blocked})
    assert (verdict.state, verdict.message.endswith("left alone")) == ("ready", True)


def test_nvidiadriver_objects_without_a_policy_that_calls_for_them_are_disabled() -> None:
    found = select_policy(
        PolicyObjects(cluster_policies=[cluster_policy()], nvidia_drivers=[nvidia_driver("x")]), NODES
    )
    states = {told.name: verdict.state for told, verdict in found.policy_statuses({})}
    assert states["NVIDIADriver/x"] == "disabled"


@pytest.mark.parametrize(("phase", "state"), [(DriverPhase.READY, "ready"), (DriverPhase.STARTING, "notReady")])
def test_a_policy_is_ready_when_all_of_its_nodes_are(phase: DriverPhase, state: str) -> None:
    found = select_policy(PolicyObjects(cluster_policies=[cluster_policy()]), NODES)
    statuses = {name: DriverStatus(strategy=DriverStrategy.BUILT, phase=phase, since="") for name in NODES}
    assert [verdict.state for _, verdict in found.policy_statuses(statuses)] == [state]
