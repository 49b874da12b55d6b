"""Reads the rollout's view of a node from a Node and its pods."""

from collections.abc import Callable, Iterable, Sequence

from tessera.api.nodes.driver_status import (
    ADVERTISED_CONDITION,
    AGENT_APP,
    DRIVER_APP,
    DRIVER_SET_LABEL,
    PAUSE_LABEL,
    UPGRADE_STATE_LABEL,
    VALIDATION_APP,
    WAITING_FOR_KUBELET,
)
from tessera.api.nodes.node_marks import is_marked_silent
from tessera.clock import parse_rfc3339
from tessera.driver.manifests.names import APP_LABEL, NAMESPACE
from tessera.driver.nodes.node_facts import counts_gpus, skip_reason
from tessera.driver.nodes.upgrade_record import (
    CORDONED_ANNOTATION,
    INITIAL_ANNOTATION,
    RECORD_ANNOTATION,
    REQUESTED_ANNOTATION,
    parse_upgrade_record,
    parse_upgrade_state,
)
from tessera.driver.rollout.node_view import DesiredDriver, DriverPodView, NodeView, PodView, PullPod, PullProgress
from tessera.kube.resources import Node, Pod

#: Label ``app.kubernetes.io/name`` of pull pods.
PULL_APP = "tessera-driver-pull"
#: Label of a pull pod: the driver set whose image it pulls.
PULL_SET_LABEL = "tessera.dev/driver-pull"
#: Annotation of a static pod on the API server; the API cannot delete such a pod.
_MIRROR_ANNOTATION = "kubernetes.io/config.mirror"

#: Restarts of a container after which its driver counts as broken. With kubelet's back-off they take two and a half
#: minutes, in which a GPU that is still held may be released; upstream's 10 take more than half an hour.
MOST_RESTARTS = 5
#: Seconds that a registry may fail before a pull is given up.
PULL_TIMEOUT = 600.0

_NEVER_PULLED = frozenset({"InvalidImageName", "ErrImageNeverPull"})
_NOT_PULLED = frozenset({"ErrImagePull", "ImagePullBackOff", "RegistryUnavailable", "ImageInspectError"})
_UNDER_WAY = frozenset({"", "ContainerCreating", "PodInitializing"})


def read_node_view(
    node: Node, pods: Sequence[Pod], desired: DesiredDriver, *, validated: Callable[[str], bool], now: float
) -> NodeView:
    """Reads a node.

    Args:
        node: the node.
        pods: all pods on it.
        desired: the driver that it should have.
        validated: given a set's id, returns True if its driver was proven to work on this node as it runs now.
        now: seconds since 1970.
    """
    meta = node.metadata
    labels, notes = meta.labels, meta.annotations
    current = labels.get(DRIVER_SET_LABEL, "")
    living = [pod for pod in pods if not pod.status.has_ended]
    return NodeView(
        name=meta.name,
        uid=meta.uid,
        version=meta.resource_version,
        desired=desired,
        current=current,
        state=parse_upgrade_state(labels.get(UPGRADE_STATE_LABEL, "")),
        record=parse_upgrade_record(notes.get(RECORD_ANNOTATION, "")),
        unschedulable=node.spec.unschedulable,
        cordoned_by_us=CORDONED_ANNOTATION in notes,
        cordoned_before=INITIAL_ANNOTATION in notes,
        ready=node.status.is_ready,
        skip_reason=skip_reason(labels),
        requested=notes.get(REQUESTED_ANNOTATION) == "true",
        pause_label=labels.get(PAUSE_LABEL, ""),
        offers_gpus=counts_gpus(node.status.allocatable),
        agent_holds_gpus=_advertises_gpus(node) and any(_app(pod) == AGENT_APP for pod in living),
        pods=tuple(map(read_pod_view, living)),
        drivers=tuple(_driver_pod_view(pod, now) for pod in living if _app(pod) == DRIVER_APP),
        validated=validated(current),
        pulls=tuple(_pull_pod(pod, now) for pod in pods if _app(pod) == PULL_APP),
    )


def _advertises_gpus(node: Node) -> bool:
    """True if an agent has the GPUs open by its last word; one that fell silent may have them still."""
    return any(
        each.type == ADVERTISED_CONDITION
        and (each.status == "True" or each.reason == WAITING_FOR_KUBELET or is_marked_silent(each))
        for each in node.status.conditions
    )


def live_pods(pods: Iterable[Pod]) -> tuple[PodView, ...]:
    """The pods that have not ended."""
    return tuple(read_pod_view(pod) for pod in pods if not pod.status.has_ended)


def read_pod_view(pod: Pod) -> PodView:
    """Reads a pod."""
    owner = next((each for each in pod.metadata.owner_references if each.controller), None)
    containers = (*pod.spec.init_containers, *pod.spec.containers)
    asked = [{**each.resources.requests, **each.resources.limits} for each in containers]
    return PodView(
        uid=pod.metadata.uid,
        namespace=pod.metadata.namespace,
        name=pod.metadata.name,
        labels=pod.metadata.labels,
        gpu=any(map(counts_gpus, asked)),
        controlled=owner is not None,
        empty_dir=any(volume.empty_dir is not None for volume in pod.spec.volumes),
        stays=(owner is not None and owner.kind == "DaemonSet")
        or _MIRROR_ANNOTATION in pod.metadata.annotations
        or _app(pod) in {PULL_APP, VALIDATION_APP},
        terminating=pod.metadata.deletion_timestamp is not None,
    )


def _app(pod: Pod) -> str:
    """The part of Tessera that a pod is; empty for pods outside Tessera's namespace, which may have any label."""
    return pod.metadata.labels.get(APP_LABEL, "") if pod.metadata.namespace == NAMESPACE else ""


def _driver_pod_view(pod: Pod, now: float) -> DriverPodView:
    ready = pod.status.is_ready
    return DriverPodView(
        set=pod.metadata.labels.get(DRIVER_SET_LABEL, ""),
        ready=ready and pod.metadata.deletion_timestamp is None,
        fault="" if ready else _driver_fault(pod, now),
    )


def _driver_fault(pod: Pod, now: float) -> str:
    for each in pod.status.containers:
        crashes = pod.status.crashes(each)
        if crashes >= MOST_RESTARTS and not each.ready:
            ended = each.waiting.message if each.waiting is not None else ""
            text = f"container {each.name} ended {crashes} times. {ended}".strip()
            return f"driver pod {pod.metadata.name}: {text}"
    fault = _pull_fault(pod, now)
    return f"driver pod {pod.metadata.name}: {fault}" if fault else ""


def _pull_fault(pod: Pod, now: float) -> str:
    """Reason that a pod's image will not arrive; empty if it may still arrive, or has arrived."""
    for each in pod.status.containers:
        waiting = each.waiting
        if waiting is None:
            continue
        late = now - _creation_time(pod, now) >= PULL_TIMEOUT
        if waiting.reason in _NEVER_PULLED or (waiting.reason in _NOT_PULLED and late):
            return f"{waiting.reason}: {waiting.message}"
    return ""


def _creation_time(pod: Pod, now: float) -> float:
    try:
        return parse_rfc3339(pod.metadata.creation_timestamp or "")
    except ValueError:
        return now


def _pull_pod(pod: Pod, now: float) -> PullPod:
    fault = _pull_fault(pod, now)
    if fault:
        pull = PullProgress.FAILED
    elif pod.status.has_ended and not pod.status.container_statuses:
        pull, fault = PullProgress.FAILED, f"{pod.status.reason}: {pod.status.message}"  # kubelet did not admit it
    else:
        pull = PullProgress.PRESENT if pod.status.has_ended or _has_image(pod) else PullProgress.PULLING
    return PullPod(
        uid=pod.metadata.uid,
        namespace=pod.metadata.namespace,
        name=pod.metadata.name,
        set=pod.metadata.labels.get(PULL_SET_LABEL, ""),
        pull=pull,
        fault=fault,
        until=_creation_time(pod, now) + PULL_TIMEOUT,
        terminating=pod.metadata.deletion_timestamp is not None,
    )


def _has_image(pod: Pod) -> bool:
    """True if kubelet has pulled the image: the container runs, has ended, or could not be started."""
    for each in pod.status.container_statuses:
        if each.running is not None or each.terminated is not None:
            return True
        if each.waiting is not None and each.waiting.reason not in _UNDER_WAY | _NOT_PULLED | _NEVER_PULLED:
            return True
    return False
