"""Phases and conditions from the states of containers."""

from typing import Any

import pytest

from tessera_lab.kubelet.pod_status import (
    OWN_CONDITIONS,
    ContainerRecord,
    ContainerRole,
    Running,
    State,
    Terminated,
    Waiting,
    container_records,
    phase,
    pod_status,
    rejected_status,
    status_patch,
)

CREATING = Waiting("ContainerCreating")
UP = Running(100.0)
DONE = Terminated(exit_code=0, started=100.0, finished=101.0)
BROKEN = Terminated(exit_code=1, started=100.0, finished=101.0)
AGAIN = Waiting("CrashLoopBackOff")


def app(state: State, *, ran: bool = True, name: str = "c") -> ContainerRecord:
    return ContainerRecord({"name": name, "image": "i"}, ContainerRole.APP, state, container_id="id" if ran else "")


def init(state: State) -> ContainerRecord:
    return ContainerRecord({"name": "init", "image": "i"}, ContainerRole.INIT, state)


@pytest.mark.parametrize(
    ("policy", "containers", "expected"),
    [
        ("Always", [app(CREATING, ran=False)], "Pending"),
        ("Always", [app(UP)], "Running"),
        ("Always", [app(UP), app(CREATING, ran=False)], "Running"),
        ("Always", [app(AGAIN)], "Running"),
        ("Always", [app(DONE)], "Running"),
        ("Never", [app(DONE)], "Succeeded"),
        ("Never", [app(DONE), app(BROKEN)], "Failed"),
        ("Never", [app(DONE), app(UP)], "Running"),
        ("OnFailure", [app(BROKEN)], "Running"),
        ("OnFailure", [app(DONE)], "Succeeded"),
        ("Never", [init(BROKEN), app(CREATING, ran=False)], "Failed"),
        ("Always", [init(BROKEN), app(CREATING, ran=False)], "Pending"),
    ],
)
def test_phase(policy: str, containers: list[ContainerRecord], expected: str) -> None:
    assert phase({"restartPolicy": policy}, containers) == expected


@pytest.mark.parametrize("policy", ["Always", "OnFailure", "Never"])
def test_a_deleted_pod_ends_whatever_its_policy(policy: str) -> None:
    spec = {"restartPolicy": policy}
    assert phase(spec, [app(DONE), app(BROKEN)], deleted=True) == "Failed"
    assert phase(spec, [app(DONE)], deleted=True) == "Succeeded"
    assert phase(spec, [app(DONE), app(UP)], deleted=True) == "Running"


def status(containers: list[ContainerRecord], before: dict[str, Any] | None = None, **spec: Any) -> dict[str, Any]:
    pod = {"spec": spec, "status": before or {}}
    return pod_status(pod, containers, now=1000.0, started=900.0, host_ip="192.0.2.1", pod_ip="10.0.0.2")


def conditions(made: dict[str, Any]) -> dict[str, tuple[str, str]]:
    return {each["type"]: (each["status"], each.get("reason", "")) for each in made["conditions"]}


def test_a_running_pod_is_ready_and_has_addresses() -> None:
    made = status([app(UP)])
    assert conditions(made) == {
        "PodReadyToStartContainers": ("True", ""),
        "Initialized": ("True", ""),
        "Ready": ("True", ""),
        "ContainersReady": ("True", ""),
        "PodScheduled": ("True", ""),
    }
    assert (made["podIP"], made["hostIP"]) == ("10.0.0.2", "192.0.2.1")
    assert made["containerStatuses"][0]["ready"]


def test_what_is_not_ready_is_named() -> None:
    made = status([app(UP, name="a"), app(AGAIN, name="b")])
    ready = next(each for each in made["conditions"] if each["type"] == "Ready")
    assert ready["message"] == "containers with unready status: [b]"


def test_a_finished_pod_is_completed() -> None:
    assert conditions(status([app(DONE)], restartPolicy="Never"))["Ready"] == ("False", "PodCompleted")
    assert conditions(status([app(BROKEN)], restartPolicy="Never"))["Ready"] == ("False", "PodFailed")


def test_a_condition_keeps_its_time_while_it_stays_the_same() -> None:
    old = {"type": "Ready", "status": "True", "lastTransitionTime": "1970-01-01T00:00:01Z"}
    made = status([app(UP)], before={"conditions": [old]})
    times = {each["type"]: each.get("lastTransitionTime") for each in made["conditions"]}
    assert times["Ready"] == "1970-01-01T00:00:01Z"
    assert times["ContainersReady"] == "1970-01-01T00:16:40Z"


def test_a_patch_names_only_conditions_of_kubelet_and_removes_those_of_a_rejected_pod() -> None:
    other = {"type": "example.com/own", "status": "True"}
    patch = status_patch(status([app(UP)], before={"conditions": [other]}))
    assert [each["type"] for each in patch["conditions"]] == list(OWN_CONDITIONS)
    assert patch["podIPs"] == [{"$patch": "replace"}, {"ip": "10.0.0.2"}]
    rejected = status_patch(rejected_status("NodeAffinity", "no such node", 900.0))
    assert all(each["$patch"] == "delete" for each in rejected["conditions"])


def test_the_health_of_devices_is_in_the_status_of_app_containers() -> None:
    bad = app(UP)
    bad.devices = {"nvidia.com/gpu": {"GPU-1": True, "GPU-2": False}}
    first = init(DONE)
    first.devices = bad.devices
    made = status([first, bad])
    reported = [("GPU-1", "Healthy"), ("GPU-2", "Unhealthy")]
    resources = [{"resourceID": device, "health": health} for device, health in reported]
    (container,) = made["containerStatuses"]
    assert container["allocatedResourcesStatus"] == [{"name": "nvidia.com/gpu", "resources": resources}]
    assert "allocatedResourcesStatus" not in made["initContainerStatuses"][0]


def test_a_readiness_gate_holds_ready_back() -> None:
    gates = [{"conditionType": "example.com/ok"}]
    assert conditions(status([app(UP)], readinessGates=gates))["Ready"] == ("False", "ReadinessGatesNotReady")
    met = {"conditions": [{"type": "example.com/ok", "status": "True"}]}
    assert conditions(status([app(UP)], before=met, readinessGates=gates))["Ready"] == ("True", "")


def test_roles_follow_the_spec() -> None:
    spec = {
        "initContainers": [{"name": "a"}, {"name": "b", "restartPolicy": "Always"}],
        "containers": [{"name": "c"}],
    }
    assert [each.role for each in container_records(spec)] == [
        ContainerRole.INIT,
        ContainerRole.SIDECAR,
        ContainerRole.APP,
    ]


@pytest.mark.parametrize(("state", "ready"), [(CREATING, False), (UP, False), (BROKEN, False), (DONE, True)])
def test_an_init_container_is_ready_once_it_has_ended_well(state: State, ready: bool) -> None:
    made = status([init(state), app(CREATING, ran=False)])
    assert made["initContainerStatuses"][0]["ready"] is ready
