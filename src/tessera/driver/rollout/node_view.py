"""The rollout's view of a node: plain values, which functions here read from a Node and its pods.

The rest of the rollout knows these values only, and not the API's types.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import Enum

import msgspec

from tessera.api.nodes.node_marks import (
    ADVERTISED_CONDITION,
    AGENT_APP,
    DRAIN_SKIP_LABEL,
    DRIVER_APP,
    DRIVER_SET_LABEL,
    PAUSE_LABEL,
    PAUSED,
    UPGRADE_STATE_LABEL,
    VALIDATION_APP,
    WAITING_FOR_KUBELET,
    is_marked_silent,
)
from tessera.clock import parse_rfc3339
from tessera.driver.driver_sets import APP_LABEL, NAMESPACE
from tessera.driver.node_facts import (
    CORDONED_ANNOTATION,
    INITIAL_ANNOTATION,
    RECORD_ANNOTATION,
    REQUESTED_ANNOTATION,
    UpgradeRecord,
    UpgradeState,
    counts_gpus,
    parse_upgrade_record,
    parse_upgrade_state,
    skip_reason,
)
from tessera.kube.resources import Node, Pod


class PodView(msgspec.Struct, frozen=True, kw_only=True):
    """A pod that has not ended.

    Attributes:
        uid: its UID.
        namespace: its namespace.
        name: its name.
        labels: its labels.
        gpu: one of its containers requests GPUs or parts of them.
        controlled: a controller replaces it when it goes.
        empty_dir: it has an emptyDir, whose data is lost with the pod.
        stays: nobody evicts it: a DaemonSet's pod, a static pod, or one of Tessera's.
        terminating: its deletion has begun.
    """

    uid: str
    namespace: str
    name: str
    labels: Mapping[str, str] = {}
    gpu: bool = False
    controlled: bool = True
    empty_dir: bool = False
    stays: bool = False
    terminating: bool = False

    @property
    def drain_skip(self) -> bool:
        """True if people keep it out of drains."""
        return self.labels.get(DRAIN_SKIP_LABEL) == "true"

    @property
    def text(self) -> str:
        """``namespace/name``."""
        return f"{self.namespace}/{self.name}"


class DriverPodView(msgspec.Struct, frozen=True, kw_only=True):
    """A driver pod on the node.

    Attributes:
        set: the driver set.
        ready: its probes succeed, and it is not terminating.
        fault: why it will not become ready by itself; empty while it may.
    """

    set: str
    ready: bool = False
    fault: str = ""


class PullProgress(Enum):
    """Progress of the pull of an image."""

    ABSENT = "absent"
    PULLING = "pulling"
    PRESENT = "present"
    FAILED = "failed"


class PullPod(msgspec.Struct, frozen=True, kw_only=True):
    """A pod that pulls an image onto the node.

    Attributes:
        uid: its UID.
        namespace: its namespace.
        name: its name.
        set: the driver set whose image it pulls.
        pull: how far the pull has come.
        fault: why the image does not arrive; empty while it may.
        until: when a failing registry is given up, seconds since 1970.
        terminating: its deletion has begun.
    """

    uid: str
    namespace: str
    name: str
    set: str
    pull: PullProgress
    fault: str = ""
    until: float = 0.0
    terminating: bool = False


class DesiredDriver(msgspec.Struct, frozen=True, kw_only=True):
    """The driver that a node should have, as the planner decided.

    Attributes:
        policy: the object that asks for it, ``ClusterPolicy/cluster-policy``.
        set: the driver set's id; empty if the node should have no driver of Tessera's.
        image: the set's image.
        pull_secrets: the pull secrets for the image.
        when_idle: a better way to the same driver, for which no pod is evicted.
        reload: the node has the set, but its driver cannot load while pods use the GPUs: they are evicted.
        obstacle: why the set's pods could not start, such as a refused DaemonSet: no upgrade begins before it is gone;
            empty if nothing is known.
        undecided: a registry lookup is open; until it ends, the status of a node at rest does not change.
    """

    policy: str
    set: str = ""
    image: str = ""
    pull_secrets: tuple[str, ...] = ()
    when_idle: bool = False
    reload: bool = False
    obstacle: str = ""
    undecided: bool = False


class NodeView(msgspec.Struct, frozen=True, kw_only=True):
    """A node with GPUs.

    Attributes:
        name: its name.
        uid: UID of the Node object.
        version: its resourceVersion.
        desired: the driver that it should have.
        current: the driver set that its label names; ``changing`` between two.
        state: state of its upgrade.
        record: record of its upgrade.
        unschedulable: it is cordoned.
        cordoned_by_us: Tessera cordoned it.
        cordoned_before: it was cordoned when the upgrade began.
        ready: kubelet reports it ready.
        skip_reason: why a person does not want it upgraded; empty if nobody objects.
        requested: a person requests its upgrade.
        pause_label: value of the label that pauses users of GPUs.
        offers_gpus: its kubelet offers GPUs to pods.
        agent_holds_gpus: its agent has the GPUs open, so no driver can be unloaded.
        pods: its pods that have not ended.
        drivers: the driver pods on it.
        validated: its present driver was proven to work.
        pulls: its pull pods.
    """

    name: str
    uid: str
    version: str
    desired: DesiredDriver
    current: str
    state: UpgradeState = UpgradeState.NONE
    record: UpgradeRecord | None = None
    unschedulable: bool = False
    cordoned_by_us: bool = False
    cordoned_before: bool = False
    ready: bool = True
    skip_reason: str = ""
    requested: bool = False
    pause_label: str = ""
    offers_gpus: bool = True
    agent_holds_gpus: bool = False
    pods: tuple[PodView, ...] = ()
    drivers: tuple[DriverPodView, ...] = ()
    validated: bool = False
    pulls: tuple[PullPod, ...] = ()

    @property
    def paused(self) -> bool:
        """True if users of GPUs were asked to release them."""
        return self.pause_label == PAUSED

    @property
    def foreign_cordon(self) -> bool:
        """True if a person or another controller keeps pods away."""
        return self.unschedulable and not self.cordoned_by_us

    @property
    def gpu_pods(self) -> tuple[PodView, ...]:
        """Pods that hold GPUs and can be evicted."""
        return tuple(pod for pod in self.pods if pod.gpu and not pod.stays)

    @property
    def failure(self) -> str:
        """Cause of the failure of its upgrade's target set here; empty if it did not fail."""
        record = self.record
        return record.cause if self.state is UpgradeState.FAILED and record is not None and record.blames_set else ""

    @property
    def driver(self) -> DriverPodView | None:
        """The pod of the set in the node's label, once no other driver is there."""
        if len({pod.set for pod in self.drivers}) != 1:
            return None
        return next((pod for pod in self.drivers if pod.set == self.current), None)

    @property
    def works(self) -> bool:
        """True if its driver runs and was proven to work."""
        return self.driver is not None and self.driver.ready and self.validated

    @property
    def pull_pod(self) -> PullPod | None:
        """The pod that pulls the desired image."""
        return next((each for each in self.pulls if each.set == self.desired.set), None)

    @property
    def pull(self) -> PullProgress:
        """Progress of the pull of the desired image."""
        return self.pull_pod.pull if self.pull_pod is not None else PullProgress.ABSENT


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
