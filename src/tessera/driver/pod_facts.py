"""Reads the driver-related pods of a node: driver, toolkit, validation, and other operators' driver pods. Pure."""

import re
from collections.abc import Iterable, Iterator
from enum import Enum

import msgspec

from tessera.api.nodes.node_marks import DRIVER_APP, DRIVER_SET_LABEL, TOOLKIT_APP, VALIDATION_APP
from tessera.clock import parse_time_or_zero
from tessera.driver.driver_sets import (
    APP_LABEL,
    COMPONENT,
    DRIVER_CONTAINER,
    MANAGER_CONTAINER,
    NAMESPACE,
    TOOLKIT_CONTAINER,
)
from tessera.kube.resources import ContainerStatus, Pod
from tessera.kube.resources.pods import NOT_PULLED

#: Most characters: kubelet's message about a driver pod's container, in a status. Kubelet's messages fit; an image's
#: name in them is the tenant's.
KUBELET_WORDS = 300

#: Labels of the driver pods that NVIDIA's operator makes.
_FOREIGN_APP = "nvidia-driver-daemonset"

#: Kubelet's reasons for a container that it cannot create: an object is missing, or the runtime refuses.
_NOT_MADE = frozenset({"CreateContainerConfigError", "CreateContainerError", "RunContainerError"})
#: The message of containerd and CRI-O if the host does not allow a mount's propagation (``ensureShared``).
_NOT_SHARED = re.compile(r'is mounted on "?(/[\w/.-]{0,100})"? but it is not a shared')
#: Starts of a container after which the status reports a problem with it.
_MANY_RESTARTS = 3


class DriverPodProgress(Enum):
    """The progress of a driver pod."""

    PULLING = "pulling"  # kubelet pulls its images, or it waits for its turn
    STARTING = "starting"  # the driver container runs
    READY = "ready"
    FAILED = "failed"


class DriverPod(msgspec.Struct, frozen=True, kw_only=True):
    """A driver pod of Tessera's.

    Attributes:
        name: its name.
        set: the driver set.
        progress: its progress.
        started: seconds since 1970 at which the driver container started; 0 if it has not.
        ready_since: seconds since 1970 at which it became ready; 0 if it is not.
        terminating: its deletion has begun.
        unpullable: images that kubelet cannot pull, with kubelet's message.
        fault: its problem, in a sentence; empty if none is known.
        unload_blocked: the problem is that the earlier driver cannot be unloaded.
    """

    name: str
    set: str
    progress: DriverPodProgress
    started: float = 0.0
    ready_since: float = 0.0
    terminating: bool = False
    unpullable: tuple[tuple[str, str], ...] = ()
    fault: str = ""
    unload_blocked: bool = False


class ToolkitPod(msgspec.Struct, frozen=True, kw_only=True):
    """The container toolkit's pod on the node: whether it is ready, since when it runs, and its problem."""

    name: str
    uid: str
    ready: bool = False
    started: float = 0.0
    terminating: bool = False
    fault: str = ""


class ValidationPod(msgspec.Struct, frozen=True, kw_only=True):
    """A validation pod: its driver set, its start, and whether it succeeded or can continue."""

    name: str
    uid: str
    set: str
    created: float
    succeeded: bool = False
    failed: bool = False
    terminating: bool = False
    fault: str = ""


class NodePods(msgspec.Struct, frozen=True, kw_only=True):
    """The driver-related pods on one node.

    Attributes:
        drivers: Tessera's driver pods.
        toolkit: the container toolkit's pod; None if there is none.
        validation: the node's validation pod; None if there is none.
        foreign: another operator's driver pod, ``namespace/name``; empty if there is none.
    """

    drivers: tuple[DriverPod, ...] = ()
    toolkit: ToolkitPod | None = None
    validation: ValidationPod | None = None
    foreign: str = ""

    def driver_pod(self, driver_set: str) -> DriverPod | None:
        """The pod of a set; one that is not terminating is preferred."""
        found = sorted((each for each in self.drivers if each.set == driver_set), key=lambda each: each.terminating)
        return found[0] if found else None

    def toolkit_of(self, driver_set: str) -> ToolkitPod | None:
        """The toolkit's pod, if it started after the driver of a set was ready.

        An older one configured the container runtime for an earlier driver, for instance with other library versions.
        """
        driver = self.driver_pod(driver_set)
        if driver is None or self.toolkit is None or self.toolkit.terminating:
            return None
        return self.toolkit if self.toolkit.started >= driver.started else None

    def validated(self, driver_set: str) -> bool:
        """True if a set's driver was validated as it runs now."""
        driver, proof = self.driver_pod(driver_set), self.validation
        if driver is None or driver.progress is not DriverPodProgress.READY or proof is None:
            return False
        return proof.succeeded and proof.set == driver_set and proof.created >= driver.ready_since


def concerns_drivers(pod: Pod) -> bool:
    """True if a pod is related to drivers."""
    return _app(pod) in {DRIVER_APP, TOOLKIT_APP, VALIDATION_APP} or _is_foreign(pod)


def read_node_pods(pods: Iterable[Pod]) -> NodePods:
    """Reads the pods of one node."""
    drivers: list[DriverPod] = []
    found = NodePods()
    for pod in pods:
        if pod.metadata.namespace != NAMESPACE or _app(pod) not in {DRIVER_APP, TOOLKIT_APP, VALIDATION_APP}:
            if _is_foreign(pod) and not pod.status.has_ended:
                name = f"{pod.metadata.namespace}/{pod.metadata.name}"
                found = msgspec.structs.replace(found, foreign=name)
        elif _app(pod) == DRIVER_APP:
            if not pod.status.has_ended:
                drivers.append(_driver_pod(pod))
        elif _app(pod) == TOOLKIT_APP:
            toolkit = _toolkit_pod(pod)
            if found.toolkit is None or not toolkit.terminating:
                found = msgspec.structs.replace(found, toolkit=toolkit)
        else:
            found = msgspec.structs.replace(found, validation=_validation_pod(pod))
    return msgspec.structs.replace(found, drivers=tuple(sorted(drivers, key=lambda each: each.name)))


def _driver_pod(pod: Pod) -> DriverPod:
    ready = pod.status.is_ready and pod.metadata.deletion_timestamp is None
    unpullable = tuple(_pull_failures(pod))
    started = any(each.name == DRIVER_CONTAINER and _has_begun(each) for each in pod.status.container_statuses)
    if ready:
        progress = DriverPodProgress.READY
    elif unpullable:
        progress = DriverPodProgress.FAILED
    else:
        progress = DriverPodProgress.STARTING if started else DriverPodProgress.PULLING
    return DriverPod(
        name=pod.metadata.name,
        set=pod.metadata.labels.get(DRIVER_SET_LABEL, ""),
        progress=progress,
        started=_start_time(pod, DRIVER_CONTAINER),
        ready_since=_ready_since(pod) if ready else 0.0,
        terminating=pod.metadata.deletion_timestamp is not None,
        unpullable=unpullable,
        fault="" if ready else _fault(pod),
        unload_blocked=any(each.name == MANAGER_CONTAINER and _ends_often(pod, each) for each in pod.status.containers),
    )


def _toolkit_pod(pod: Pod) -> ToolkitPod:
    return ToolkitPod(
        name=pod.metadata.name,
        uid=pod.metadata.uid,
        ready=pod.status.is_ready,
        started=_start_time(pod, TOOLKIT_CONTAINER),
        terminating=pod.metadata.deletion_timestamp is not None,
        fault=_fault(pod),
    )


def _start_time(pod: Pod, container: str) -> float:
    """The time at which a container started; 0 while it does not run."""
    for each in pod.status.container_statuses:
        if each.name == container and each.running is not None:
            return parse_time_or_zero(each.running.started_at)
    return 0.0


def _validation_pod(pod: Pod) -> ValidationPod:
    return ValidationPod(
        name=pod.metadata.name,
        uid=pod.metadata.uid,
        set=pod.metadata.labels.get(DRIVER_SET_LABEL, ""),
        created=parse_time_or_zero(pod.metadata.creation_timestamp),
        succeeded=pod.status.phase == "Succeeded",
        failed=pod.status.phase == "Failed",
        terminating=pod.metadata.deletion_timestamp is not None,
        fault=_fault(pod),
    )


def _app(pod: Pod) -> str:
    return pod.metadata.labels.get(APP_LABEL, "")


def _is_foreign(pod: Pod) -> bool:
    """True for another operator's driver pod. Labels are not enough, since any user may set them."""
    labels = pod.metadata.labels
    ((component, driver),) = COMPONENT.items()
    named = labels.get("app") == _FOREIGN_APP or labels.get(component) == driver
    return named and pod.spec.privileged and not (pod.metadata.namespace == NAMESPACE and _app(pod) == DRIVER_APP)


def _ready_since(pod: Pod) -> float:
    ready = pod.status.condition("Ready")
    return parse_time_or_zero(ready.last_transition_time) if ready is not None else 0.0


def _has_begun(status: ContainerStatus) -> bool:
    return status.restart_count > 0 or (status.running or status.terminated) is not None


def _pull_failures(pod: Pod) -> Iterator[tuple[str, str]]:
    images = {each.name: each.image for each in (*pod.spec.init_containers, *pod.spec.containers)}
    for each in pod.status.containers:
        waiting = each.waiting
        if waiting is not None and waiting.reason in NOT_PULLED:
            yield images.get(each.name, ""), f"{waiting.reason}: {waiting.message[:KUBELET_WORDS]}".rstrip(": ")


def _fault(pod: Pod) -> str:
    for image, text in _pull_failures(pod):
        return f"pod {pod.metadata.name} cannot pull {image}: {text}"
    for each in pod.status.containers:
        waiting = each.waiting
        if waiting is not None and waiting.reason in _NOT_MADE:
            words = f"{waiting.reason}: {waiting.message[:KUBELET_WORDS]}".rstrip(": .")
            return f"pod {pod.metadata.name}: container {each.name} cannot be made, {words}{_remedy(words)}"
        if _ends_often(pod, each):
            return f"pod {pod.metadata.name}: container {each.name} ended {_restart_text(each.name)}"
    return ""


def _remedy(words: str) -> str:
    """The remedy on the node, if the runtime's message does not name it."""
    private = _NOT_SHARED.search(words)
    if private is None:
        return ""
    return (
        f"; the driver's files reach the host by a shared mount only: mount --make-rshared {private[1]} on the node,"
        " and at every boot"
    )


def _ends_often(pod: Pod, status: ContainerStatus) -> bool:
    return pod.status.crashes(status) >= _MANY_RESTARTS and not status.ready


def _restart_text(container: str) -> str:
    """One text for all further restarts, so that a restart alone does not change the status."""
    before = container == MANAGER_CONTAINER
    hint = "; it cannot unload the driver before while pods use the cards" if before else ""
    return f"{_MANY_RESTARTS} times or more{hint}"
