"""Facts about a node's driver, read from the pods on it."""

from typing import Any

import msgspec
import pytest

from tessera.driver.pod_facts import DriverPodProgress, concerns_drivers, read_node_pods
from tessera.kube.resources import Pod

STARTED, READY, LATER = "2027-01-15T08:00:00Z", "2027-01-15T08:01:00Z", "2027-01-15T08:02:00Z"
IMAGE = "nvcr.io/nvidia/driver@sha256:1"


def pod(app: str, named: str = "c", namespace: str = "tessera-system", **fields: Any) -> Pod:
    labels = {"app.kubernetes.io/name": app, "tessera.dev/driver-set": "s1", **fields.pop("labels", {})}
    metadata = {"name": f"{app}-x", "namespace": namespace, "uid": "u", "labels": labels} | fields.pop("metadata", {})
    status = {"containerStatuses": [{"name": named, **fields.pop("container", {})}], **fields.pop("status", {})}
    security = {"securityContext": {"privileged": True}} if fields.pop("privileged", False) else {}
    spec = {"containers": [{"name": named, "image": IMAGE, **security}]}
    return msgspec.convert({"metadata": metadata, "spec": spec, "status": status}, Pod)


def driver(ready: str = "", **fields: Any) -> Pod:
    running = {"state": {"running": {"startedAt": STARTED}}}
    conditions = [{"type": "Ready", "status": "True", "lastTransitionTime": ready}] if ready else []
    return pod("tessera-driver", "nvidia-driver-ctr", container=running, status={"conditions": conditions}, **fields)


def toolkit(started: str = READY) -> Pod:
    running = {"state": {"running": {"startedAt": started}}}
    status = {"conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": started}]}
    return pod("tessera-container-toolkit", "nvidia-container-toolkit-ctr", container=running, status=status)


def validation(created: str = LATER, phase: str = "Succeeded") -> Pod:
    return pod("tessera-validation", metadata={"creationTimestamp": created}, status={"phase": phase})


def waiting(reason: str) -> dict[str, Any]:
    return {"state": {"waiting": {"reason": reason, "message": "back-off"}}}


def test_a_driver_pod_pulls_starts_and_becomes_ready() -> None:
    fresh = pod("tessera-driver", "nvidia-driver-ctr", container=waiting("ContainerCreating"))
    progress = [read_node_pods([each]).drivers[0].progress for each in (fresh, driver(), driver(READY))]
    assert progress == [DriverPodProgress.PULLING, DriverPodProgress.STARTING, DriverPodProgress.READY]


@pytest.mark.parametrize("reason", ["ErrImagePull", "ImagePullBackOff", "InvalidImageName"])
def test_an_image_that_does_not_come_is_named(reason: str) -> None:
    (found,) = read_node_pods([pod("tessera-driver", "nvidia-driver-ctr", container=waiting(reason))]).drivers
    assert found.progress is DriverPodProgress.FAILED
    assert found.unpullable == ((IMAGE, f"{reason}: back-off"),)
    assert IMAGE in found.fault


@pytest.mark.parametrize("reason", ["CreateContainerConfigError", "CreateContainerError", "RunContainerError"])
def test_a_container_that_kubelet_cannot_make_is_told_with_its_words(reason: str) -> None:
    (found,) = read_node_pods([pod("tessera-driver", "nvidia-driver-ctr", container=waiting(reason))]).drivers
    for fact in ("pod tessera-driver-x", "container nvidia-driver-ctr", "cannot be made", f"{reason}: back-off"):
        assert fact in found.fault
    assert found.progress is DriverPodProgress.PULLING  # it may yet be made, when what is missing is there


def test_a_private_mount_is_told_with_the_command_that_shares_it() -> None:
    words = 'failed to generate spec: path "/run/nvidia" is mounted on "/run" but it is not a shared mount'
    status = {"state": {"waiting": {"reason": "CreateContainerError", "message": words}}}
    (found,) = read_node_pods([pod("tessera-driver", "nvidia-driver-ctr", container=status)]).drivers
    assert words in found.fault
    assert found.fault.endswith("mount --make-rshared /run on the node, and at every boot")


def test_a_container_that_ends_again_and_again_is_told() -> None:
    ends = {"restartCount": 3, **waiting("CrashLoopBackOff")}
    (found,) = read_node_pods([pod("tessera-driver", "nvidia-driver-ctr", container=ends)]).drivers
    assert "ended 3 times" in found.fault


def test_a_pod_that_is_ending_is_not_ready_whatever_it_says() -> None:
    ending = driver(READY, metadata={"deletionTimestamp": LATER})
    assert read_node_pods([ending]).drivers[0].progress is DriverPodProgress.STARTING


def test_a_validation_proves_the_driver_that_runs_now_and_no_other() -> None:
    assert read_node_pods([driver(READY), validation(LATER)]).validated("s1")
    assert read_node_pods([driver(READY), validation(READY)]).validated("s1")
    assert not read_node_pods([driver(READY), validation(LATER)]).validated("s2")
    assert not read_node_pods([driver(READY), validation(LATER, "Running")]).validated("s1")
    assert not read_node_pods([driver(LATER), validation(READY)]).validated("s1"), "the container started anew since"
    assert not read_node_pods([driver(), validation(LATER)]).validated("s1")


def test_a_toolkit_counts_if_it_saw_this_driver_come() -> None:
    assert read_node_pods([driver(READY), toolkit(READY)]).toolkit_of("s1") is not None
    assert read_node_pods([driver(READY), toolkit("2027-01-15T07:00:00Z")]).toolkit_of("s1") is None
    assert read_node_pods([toolkit()]).toolkit_of("s1") is None


@pytest.mark.parametrize(
    "labels", [{"app": "nvidia-driver-daemonset"}, {"app.kubernetes.io/component": "nvidia-driver"}]
)
def test_a_driver_pod_of_another_operator_is_a_foreign_one(labels: dict[str, str]) -> None:
    foreign = pod("whatever", namespace="gpu-operator", labels=labels, privileged=True)
    assert concerns_drivers(foreign)
    assert read_node_pods([foreign]).foreign == "gpu-operator/whatever-x"
    tenants = pod("whatever", namespace="tenant", labels=labels)
    assert not concerns_drivers(tenants), "labels alone say nothing: it could load no driver"
    assert read_node_pods([tenants]).foreign == ""


def test_our_own_driver_pods_are_not_foreign_and_pods_of_our_labels_elsewhere_are_nobodys() -> None:
    component = {"app.kubernetes.io/component": "nvidia-driver"}
    assert read_node_pods([driver(READY, labels=component)]).foreign == ""
    assert read_node_pods([pod("tessera-driver", namespace="default")]).drivers == ()


def test_other_pods_do_not_matter() -> None:
    assert not concerns_drivers(pod("web"))


def test_dates_that_are_none_are_as_good_as_not_there() -> None:
    assert read_node_pods([driver("yesterday")]).drivers[0].ready_since == 0.0


def test_further_restarts_change_no_words_and_a_driver_that_cannot_be_unloaded_is_explained() -> None:
    running = {"state": {"running": {"startedAt": STARTED}}}
    faults = {
        read_node_pods([pod("tessera-driver", "k8s-driver-manager", container={"restartCount": count, **state})])
        .drivers[0]
        .fault
        for count in (3, 4, 50)
        for state in (waiting("CrashLoopBackOff"), running)
    }
    (fault,) = faults
    for fact in ("ended 3 times or more", "cannot unload the driver", "while pods use the cards"):
        assert fact in fault


def test_what_all_containers_of_a_pod_did_was_the_nodes_boot_and_no_crash() -> None:
    def restarts(manager: int, driver: int) -> Pod:
        counts = {"k8s-driver-manager": manager, "nvidia-driver-ctr": driver}
        statuses = [{"name": name, "restartCount": count} for name, count in counts.items()]
        return pod("tessera-driver", status={"containerStatuses": statuses[1:], "initContainerStatuses": statuses[:1]})

    assert read_node_pods([restarts(5, 5)]).drivers[0].fault == ""
    assert "nvidia-driver-ctr ended" in read_node_pods([restarts(5, 8)]).drivers[0].fault
    stuck = read_node_pods([restarts(8, 5)]).drivers[0]
    assert (stuck.unload_blocked, "k8s-driver-manager ended" in stuck.fault) == (True, True)
