"""A pod's status, computed from the states of its containers.

Phases, conditions, reasons and messages are kubelet's (``pkg/kubelet/kubelet_pods.go``, ``status/generate.go``). Pure:
it turns the containers' records into a ``status``. A container is started and ready while it runs; kubelet probes only
containers whose image has a program.

After a reboot the runtime finds its containers dead without a reason (containerd: exit code 255, reason ``Unknown``).
Kubelet makes a new sandbox for a pod that may start again, and then its init containers run again as well; a pod that
never restarts has ended (``pkg/kubelet/kuberuntime/kuberuntime_manager.go``, ``computePodActions``).
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

import msgspec

from tessera.clock import rfc3339
from tessera_lab.apiserver.container_log import ContainerLog

Json = Mapping[str, Any]


#: The conditions of a pod that kubelet writes and removes.
OWN_CONDITIONS = ("PodReadyToStartContainers", "Initialized", "Ready", "ContainersReady", "PodScheduled")


class ContainerRole(Enum):
    """Sort of a container in its pod."""

    INIT = "init"
    SIDECAR = "sidecar"
    APP = "app"


class Waiting(msgspec.Struct, frozen=True):
    """Not running; ``reason`` as in ``state.waiting``."""

    reason: str
    message: str = ""


class Running(msgspec.Struct, frozen=True):
    """Running since ``started`` (seconds since 1970)."""

    started: float


class Terminated(msgspec.Struct, frozen=True, kw_only=True):
    """Ended; times in seconds since 1970."""

    exit_code: int
    started: float
    finished: float
    container_id: str = ""
    reason: str = ""
    message: str = ""


State = Waiting | Running | Terminated


@dataclass
class ContainerRecord:
    """One container through all its restarts.

    Attributes:
        spec: the container in the pod's spec.
        role: init, sidecar or app.
        state: its present state.
        last: the end of its previous run.
        restarts: how often it was started again.
        container_id: id of the present or last run; empty before the first.
        env: the environment of the present or the last run.
        log: of the present or last run; None before the first.
        previous_log: of the run before that.
        started: the present run has passed its startup probe, or has none that is carried out.
        ready: the present run has passed its probes, or has none that are carried out.
        image_id: id of the present or last run's image; empty before the first.
        devices: the devices that it holds or held by resource or claim, each with True if it is healthy, and None if
            nobody knows.
    """

    spec: Json
    role: ContainerRole
    state: State
    last: Terminated | None = None
    restarts: int = 0
    container_id: str = ""
    env: Mapping[str, str] = field(default_factory=dict)
    log: ContainerLog | None = None
    previous_log: ContainerLog | None = None
    started: bool = True
    ready: bool = True
    image_id: str = ""
    devices: Mapping[str, Mapping[str, bool | None]] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The container's name."""
        return str(self.spec["name"])

    def find_log(self, *, previous: bool) -> ContainerLog | None:
        """The log that kubelet reads; None if there was no such run. One that is to restart has ended: that is both."""
        if not previous:
            return self.log
        if isinstance(self.state, Waiting):
            return self.log if self.last is not None else None
        return self.previous_log

    def write(self, text: str) -> None:
        """Adds a line to the log of the present run."""
        if self.log is not None:
            self.log.add(text)

    @property
    def is_done(self) -> bool:
        """True if the next container may start: an init container has succeeded, or a sidecar runs."""
        if self.role is ContainerRole.SIDECAR:
            return isinstance(self.state, Running) and self.started
        return isinstance(self.state, Terminated) and self.state.exit_code == 0


def container_records(spec: Json) -> list[ContainerRecord]:
    """The containers of a pod that has not started, init containers first."""
    inits = spec.get("initContainers") or ()
    waiting = Waiting("PodInitializing" if inits else "ContainerCreating")
    first = [
        ContainerRecord(
            each, ContainerRole.SIDECAR if each.get("restartPolicy") == "Always" else ContainerRole.INIT, waiting
        )
        for each in inits
    ]
    return first + [ContainerRecord(each, ContainerRole.APP, waiting) for each in spec.get("containers", ())]


def phase(spec: Json, containers: Sequence[ContainerRecord], *, deleted: bool = False) -> str:
    """The pod's phase by its containers and its restart policy.

    Args:
        spec: the pod's.
        containers: their states.
        deleted: the pod is deleted and kubelet starts none again, whatever the policy (``podIsTerminal`` in kubelet).
    """
    policy = spec.get("restartPolicy") or "Always"
    inits = [each for each in containers if each.role is not ContainerRole.APP]
    apps = [each for each in containers if each.role is ContainerRole.APP]
    if any(each.role is ContainerRole.INIT and _failed_status(each) for each in inits) and policy == "Never":
        return "Failed"
    started = [each for each in apps if isinstance(each.state, Running) or each.container_id]
    if not started:
        return "Pending"
    if not all(isinstance(each.state, Terminated) for each in apps):
        return "Running"
    if not deleted and (policy == "Always" or (policy == "OnFailure" and any(map(_failed_status, apps)))):
        return "Running"
    return "Failed" if any(map(_failed_status, apps)) else "Succeeded"


def pod_status(
    pod: Json,
    containers: Sequence[ContainerRecord],
    *,
    now: float,
    started: float,
    host_ip: str,
    pod_ip: str,
    deleted: bool = False,
) -> dict[str, Any]:
    """Returns the status to publish; the time of a condition changes only with its status."""
    spec = pod["spec"]
    now_phase = phase(spec, containers, deleted=deleted)
    ended = now_phase in {"Succeeded", "Failed"}
    sandbox = not ended and any(not isinstance(each.state, Waiting) or each.container_id for each in containers)
    status: dict[str, Any] = {
        "phase": now_phase,
        "conditions": _conditions(pod, containers, now_phase, now=now, sandbox=sandbox),
        "hostIP": host_ip,
        "hostIPs": [{"ip": host_ip}],
        "startTime": rfc3339(started),
        "containerStatuses": [_container_status(each) for each in containers if each.role is ContainerRole.APP],
    }
    inits = [_container_status(each) for each in containers if each.role is not ContainerRole.APP]
    if inits:
        status["initContainerStatuses"] = inits
    if pod_ip and (sandbox or ended):
        status |= {"podIP": pod_ip, "podIPs": [{"ip": pod_ip}]}
    return status


def rejected_status(reason: str, message: str, started: float) -> dict[str, Any]:
    """Returns the status of a pod that the node rejects; it keeps nothing from before the node's boot."""
    text = f"Pod was rejected: {message}"
    nothing = dict.fromkeys(("containerStatuses", "initContainerStatuses", "podIP", "podIPs", "hostIP", "hostIPs"))
    rejection = {"phase": "Failed", "reason": reason, "message": text, "startTime": rfc3339(started)}
    return {**nothing, "conditions": [], **rejection}


def status_patch(status: Json) -> dict[str, Any]:
    """Returns the strategic merge patch that sets a status; conditions of others stay as they are, as with kubelet."""
    given = {each["type"]: each for each in status["conditions"]}
    own = [
        {"reason": None, "message": None, **given[kind]} if kind in given else {"type": kind, "$patch": "delete"}
        for kind in OWN_CONDITIONS
    ]
    addresses = {kind: [{"$patch": "replace"}, *status[kind]] for kind in ("hostIPs", "podIPs") if status.get(kind)}
    return {**status, "conditions": own, **addresses}


def _failed_status(container: ContainerRecord) -> bool:
    return isinstance(container.state, Terminated) and container.state.exit_code != 0


def _conditions(
    pod: Json, containers: Sequence[ContainerRecord], now_phase: str, *, now: float, sandbox: bool
) -> list[dict[str, Any]]:
    inits = [each for each in containers if each.role is not ContainerRole.APP]
    unfinished = [each.name for each in inits if not each.is_done]
    unready = [each.name for each in containers if each.role is not ContainerRole.INIT and not _ready(each)]
    if now_phase == "Succeeded":
        initialized, ready = ("True", "PodCompleted", ""), ("False", "PodCompleted", "")
    else:
        initialized = _container_reasons(unfinished, "ContainersNotInitialized", "incomplete")
        failed = now_phase == "Failed"
        ready = ("False", "PodFailed", "") if failed else _container_reasons(unready, "ContainersNotReady", "unready")
        started_app = any(each.container_id for each in containers if each.role is ContainerRole.APP)
        initialized = ("True", "", "") if started_app else initialized
    gates = pod["spec"].get("readinessGates") or ()
    own = {
        "PodReadyToStartContainers": ("True" if sandbox else "False", "", ""),
        "Initialized": initialized,
        "Ready": _is_gated(pod, gates, ready),
        "ContainersReady": ready,
        "PodScheduled": ("True", "", ""),
    }
    before = {each["type"]: each for each in (pod.get("status") or {}).get("conditions") or ()}
    return [_condition(kind, value, before.get(kind), now) for kind, value in own.items()]


def _container_reasons(names: Sequence[str], reason: str, word: str) -> tuple[str, str, str]:
    if not names:
        return ("True", "", "")
    return ("False", reason, f"containers with {word} status: [{' '.join(names)}]")


def _is_gated(pod: Json, gates: Sequence[Json], ready: tuple[str, str, str]) -> tuple[str, str, str]:
    """Changes the condition Ready to False unless every readiness gate's condition is True."""
    given = {each["type"]: each["status"] for each in (pod.get("status") or {}).get("conditions") or ()}
    missing = [gate["conditionType"] for gate in gates if given.get(gate["conditionType"]) != "True"]
    if ready[0] == "True" and missing:
        return ("False", "ReadinessGatesNotReady", f'the status of pod readiness gate "{missing[0]}" is not "True"')
    return ready


def _condition(kind: str, value: tuple[str, str, str], before: Json | None, now: float) -> dict[str, Any]:
    status, reason, message = value
    since = before["lastTransitionTime"] if before and before.get("status") == status else rfc3339(now)
    condition: dict[str, Any] = {
        "type": kind,
        "status": status,
        "lastProbeTime": None,
        "lastTransitionTime": since,
    }
    return condition | {name: text for name, text in (("reason", reason), ("message", message)) if text}


def _ready(container: ContainerRecord) -> bool:
    return isinstance(container.state, Running) and container.ready


def _container_status(container: ContainerRecord) -> dict[str, Any]:
    running = isinstance(container.state, Running)
    status: dict[str, Any] = {
        "name": container.name,
        "image": container.spec.get("image", ""),
        "imageID": container.image_id,
        "state": _state(container.state),
        "lastState": _state(container.last) if container.last else {},
        # An ordinary init container is ready once it has ended well, not while it runs (kubelet's prober_manager).
        "ready": container.is_done if container.role is ContainerRole.INIT else _ready(container),
        "restartCount": container.restarts,
        "started": running and container.started,
    }
    if container.container_id:
        status["containerID"] = container.container_id
    # As since Kubernetes 1.36, where the feature gate ResourceHealthStatus is on by default; init containers have none.
    if container.devices and container.role is ContainerRole.APP:
        status["allocatedResourcesStatus"] = [
            {"name": resource, "resources": [_device_health(device, healthy) for device, healthy in devices.items()]}
            for resource, devices in container.devices.items()
        ]
    return status


def _device_health(device: str, healthy: bool | None) -> dict[str, str]:
    return {"resourceID": device, "health": {True: "Healthy", False: "Unhealthy", None: "Unknown"}[healthy]}


def _state(state: State) -> dict[str, Any]:
    match state:
        case Waiting():
            return {"waiting": {"reason": state.reason} | ({"message": state.message} if state.message else {})}
        case Running():
            return {"running": {"startedAt": rfc3339(state.started)}}
        case Terminated():
            ended: dict[str, Any] = {
                "exitCode": state.exit_code,
                "reason": state.reason or ("Error" if state.exit_code else "Completed"),
                "startedAt": rfc3339(state.started),
                "finishedAt": rfc3339(state.finished),
            }
            if state.container_id:
                ended["containerID"] = state.container_id
            return {"terminated": ended | ({"message": state.message} if state.message else {})}


#: containerd's exit code and reason for a container whose end it did not see.
UNKNOWN_EXIT, UNKNOWN_REASON = 255, "Unknown"


def mark_after_reboot(spec: Mapping[str, Any], containers: Iterable[ContainerRecord], now: float) -> None:
    """Records that containers ended because the node went down.

    Args:
        spec: the pod's spec.
        containers: its containers; changed in place.
        now: when the runtime notices, seconds since 1970.
    """
    again = spec.get("restartPolicy") != "Never"
    for record in containers:
        if isinstance(record.state, Running):
            record.state = Terminated(
                exit_code=UNKNOWN_EXIT,
                started=record.state.started,
                finished=now,
                container_id=record.container_id,
                reason=UNKNOWN_REASON,
            )
        if again and record.role is ContainerRole.INIT and isinstance(record.state, Terminated):
            record.last, record.state = record.state, Waiting("PodInitializing")
