"""Reads milestones from Nodes and pods. Pure.

Times that are missing or invalid are unknown. Others write these objects, so names that become metric labels or record
keys are cut. Labels mark a driver pod only if ordinary users cannot create the pod: Tessera's pods in its own
namespace, and pods of NVIDIA's operator if they are privileged, as the operator runs them.

Machines and NodeClaims of autoscalers tell the nodes that they become, and the times of their requests.
"""

from collections.abc import Iterable, Mapping
from enum import Enum

import msgspec

from tessera.api.names import SIMULATED_RUNTIME, SYSTEM_NAMESPACE
from tessera.api.nodes.node_cards import brings_agent
from tessera.api.nodes.node_marks import (
    DRIVER_APP,
    SHARING,
    TOOLKIT_APP,
    VALIDATION_APP,
    DriverPhase,
    DriverStatus,
    DriverStrategy,
)
from tessera.api.nodes.offers import OFFERS_ANNOTATION
from tessera.api.slice_requests import requests_gpus
from tessera.clock import parse_rfc3339
from tessera.kube.resources import Condition, Machine, Node, Pod, Resource
from tessera.provisioning.history import RECORD_TEXT, decode_record
from tessera.provisioning.milestones import PROVISIONING_ANNOTATION, ProvisioningRecord
from tessera.provisioning.startup_deadline import driver_status, missing_offer, offers_gpus

#: The things that a driver of NVIDIA's operator waits for.
_NFD_KERNEL = "feature.node.kubernetes.io/kernel-version.full"

#: Driver containers in the pods of NVIDIA's operator; the other containers there build or manage.
_DRIVER_CONTAINERS = ("nvidia-driver-ctr", "driver")


class PodRole(Enum):
    """The role of a pod in the startup of a node."""

    DRIVER = "driver"
    TOOLKIT = "toolkit"
    VALIDATION = "validation"
    WORKLOAD = "workload"


_NAME_LABEL = "app.kubernetes.io/name"
_OURS = {DRIVER_APP: PodRole.DRIVER, TOOLKIT_APP: PodRole.TOOLKIT, VALIDATION_APP: PodRole.VALIDATION}
_UPSTREAM = {
    "nvidia-driver-daemonset": PodRole.DRIVER,
    "nvidia-container-toolkit-daemonset": PodRole.TOOLKIT,
    "nvidia-operator-validator": PodRole.VALIDATION,
}


class NodeTimestamps(msgspec.Struct, frozen=True, kw_only=True):
    """The facts of a Node that matter for its record.

    Attributes:
        name: name of the node.
        uid: UID of the Node object.
        registered: when it was created, seconds since 1970; None if unknown.
        ready: since when it is Ready; None if it is not.
        gpu: True if anything shows that it has a GPU.
        facts: True if the facts that its driver depends on are known.
        managed: its annotation says that Tessera, or another operator's driver pod, brings its driver.
        usable: it offers all its GPUs as requested; without an agent, any GPU.
        agent: since when its agent reports how its GPUs are shared; None if it does not.
        record: its record from the annotation; None if there is none, or it cannot be decoded.
        group: group from its labels; empty if they name none.
        pool: driver pool, as text.
        strategy: the way in which it gets its driver.
        image: its driver's image.
        driver_since: time of the driver status in its annotation; None if the annotation has none.
        held_back: a cause that would hold back another node's driver too holds back its driver.
        wanted: its annotation says that Tessera is requested to bring its driver.
        provider_id: provider id of its virtual machine.
        simulated: its kubelet is simulated.
    """

    name: str
    uid: str
    registered: float | None
    ready: float | None = None
    gpu: bool = False
    facts: bool = False
    managed: bool = False
    usable: bool = False
    agent: float | None = None
    record: ProvisioningRecord | None = None
    group: str = ""
    pool: str = ""
    strategy: str = ""
    image: str = ""
    driver_since: float | None = None
    held_back: bool = False
    wanted: bool = False
    provider_id: str = ""
    simulated: bool = False


class PodTimestamps(msgspec.Struct, frozen=True, kw_only=True):
    """The facts of a pod that matter for a node's record; moments in seconds since 1970, None if unknown or not yet.

    Attributes:
        uid: the pod's UID.
        namespace: the pod's namespace.
        name: the pod's name.
        role: its role in the startup of its node.
        node: its node; empty if it has none yet.
        created: when it was created.
        unschedulable: since when no node fits it; None once one does.
        bound: when it was bound to a node.
        started: when its first container, or the driver's, started.
        done: when its work was done: it was ready, or, for Tessera's validation pod, it has succeeded.
        image: image of that container.
        precompiled: its driver's modules need no building; None if that is not known.
    """

    uid: str
    namespace: str
    name: str
    role: PodRole
    node: str = ""
    created: float | None = None
    unschedulable: float | None = None
    bound: float | None = None
    started: float | None = None
    done: float | None = None
    image: str = ""
    precompiled: bool | None = None


def read_node(node: Node) -> NodeTimestamps:
    """Reads a Node."""
    labels, status = node.metadata.labels, driver_status(node)
    sharing = node.status.condition(SHARING)
    preinstalled = status is not None and status.strategy is DriverStrategy.PREINSTALLED
    agent_speaks = OFFERS_ANNOTATION in node.metadata.annotations
    managed = status is not None and not preinstalled and not _is_left_alone(status)
    wanted = managed and status is not None and not status.leaving
    return NodeTimestamps(
        name=node.metadata.name,
        uid=node.metadata.uid,
        registered=parse_time(node.metadata.creation_timestamp),
        ready=true_since(node.status.conditions, "Ready"),
        gpu=_has_gpu(node, labels),
        facts=preinstalled or (wanted and bool(status.pool))
        if status is not None
        else _NFD_KERNEL in labels and _has_gpu(node, labels),
        managed=managed,
        usable=offers_gpus(node) and (not agent_speaks or not missing_offer(node)),
        agent=parse_time(sharing.last_transition_time) if sharing is not None else None,
        record=record_on(node),
        group=node_group(labels, node.metadata.annotations)[:RECORD_TEXT],
        pool=status.pool[:RECORD_TEXT] if status is not None else "",
        strategy=status.strategy.value if status is not None else "",
        image=status.image[:RECORD_TEXT] if status is not None else "",
        driver_since=parse_time(status.since) if status is not None else None,
        held_back=status is not None and status.shared,
        wanted=wanted,
        provider_id=node.spec.provider_id,
        simulated=node.status.node_info.container_runtime_version.startswith(SIMULATED_RUNTIME),
    )


def _is_left_alone(status: DriverStatus) -> bool:
    """True if people or policies exclude a node: it is blocked, has no version, and no image was looked up."""
    return status.phase is DriverPhase.BLOCKED and not status.version and not status.rejected


def _has_gpu(node: Node, labels: Mapping[str, str]) -> bool:
    return brings_agent(labels) or offers_gpus(node)


def record_on(node: Node) -> ProvisioningRecord | None:
    """The record in a node's annotation; None if there is none of this Node object, or it cannot be decoded."""
    text = node.metadata.annotations.get(PROVISIONING_ANNOTATION)
    try:
        found = decode_record(text) if text else None
    except ValueError:
        return None
    return found if found is not None and found.uid == node.metadata.uid else None


def read_pod(pod: Pod) -> PodTimestamps | None:
    """Reads a pod; None if it has no role in the startup of any node."""
    role = _role(pod)
    if role is None:
        return None
    scheduled = pod.status.condition("PodScheduled")
    waits = scheduled is not None and scheduled.status == "False" and scheduled.reason == "Unschedulable"
    return PodTimestamps(
        uid=pod.metadata.uid,
        namespace=pod.metadata.namespace,
        name=pod.metadata.name,
        role=role,
        node=pod.spec.node_name,
        created=parse_time(pod.metadata.creation_timestamp),
        unschedulable=parse_time(scheduled.last_transition_time) if scheduled is not None and waits else None,
        bound=true_since(pod.status.conditions, "PodScheduled"),
        started=_started_at(pod, role),
        done=_finished_at(pod),
        image=_image(pod)[:RECORD_TEXT],
        precompiled=_is_precompiled(pod) if role is PodRole.DRIVER else None,
    )


def _role(pod: Pod) -> PodRole | None:
    return _OURS.get(tessera_app(pod)) or _upstream(pod) or (PodRole.WORKLOAD if requests_gpus(pod) else None)


def tessera_app(pod: Pod) -> str:
    """The part of Tessera that a pod is; empty for pods outside Tessera's namespace, which may have any label."""
    return pod.metadata.labels.get(_NAME_LABEL, "") if pod.metadata.namespace == SYSTEM_NAMESPACE else ""


def _upstream(pod: Pod) -> PodRole | None:
    """The part of NVIDIA's operator that a pod is."""
    if not pod.spec.privileged:
        return None
    labels = pod.metadata.labels
    if labels.get("app.kubernetes.io/component") == "nvidia-driver":
        return PodRole.DRIVER
    return _UPSTREAM.get(labels.get("app", ""))


def has_gpu_limits(pod: Pod) -> bool:
    """True if one of its app containers has a limit of GPUs, slices or shares."""
    return any(name.startswith("nvidia.com/") for each in pod.spec.containers for name in each.resources.limits)


def _is_precompiled(pod: Pod) -> bool | None:
    text = pod.metadata.labels.get("nvidia.com/precompiled")
    return None if text is None else text == "true"


def _main(pod: Pod) -> str:
    """The name of the container that counts: the driver's, or the only one."""
    names = [each.name for each in pod.spec.containers]
    return next((each for each in names if each in _DRIVER_CONTAINERS), names[0] if names else "")


def _image(pod: Pod) -> str:
    return next((each.image for each in pod.spec.containers if each.name == _main(pod)), "")


def _started_at(pod: Pod, role: PodRole) -> float | None:
    """Start of a workload's first container; for other pods, of their main container."""
    every = [each for each in pod.status.container_statuses if role is PodRole.WORKLOAD or each.name == _main(pod)]
    states = [each.state for each in every if each.state is not None]
    texts = [part.started_at for state in states for part in (state.running, state.terminated) if part is not None]
    return min((found for text in texts if (found := parse_time(text)) is not None), default=None)


def _finished_at(pod: Pod) -> float | None:
    if tessera_app(pod) != VALIDATION_APP:
        return true_since(pod.status.conditions, "Ready")
    if pod.status.phase != "Succeeded":
        return None
    states = [each.state.terminated for each in pod.status.container_statuses if each.state is not None]
    texts = [each.finished_at for each in states if each is not None]
    return max((found for text in texts if (found := parse_time(text)) is not None), default=None)


def true_since(conditions: Iterable[Condition], kind: str) -> float | None:
    """Since when a condition is True; None if it is not, or has no time."""
    found = next((each for each in conditions if each.type == kind and each.status == "True"), None)
    return parse_time(found.last_transition_time) if found is not None else None


def parse_time(text: str | None) -> float | None:
    """Parses a time in an object to seconds since 1970; None if it is missing or invalid."""
    try:
        return parse_rfc3339(text) if text else None
    except (ValueError, OverflowError):
        return None


KARPENTER_LABEL = "karpenter.sh/nodepool"

#: Labels that name the group, by provider: Karpenter, EKS, eksctl, GKE, AKS, Cluster API, Alibaba Cloud.
_LABELS = (
    KARPENTER_LABEL,
    "eks.amazonaws.com/nodegroup",
    "alpha.eksctl.io/nodegroup-name",
    "cloud.google.com/gke-nodepool",
    "kubernetes.azure.com/agentpool",
    "topology.cluster.x-k8s.io/deployment-name",
    "alibabacloud.com/nodepool-id",
)
#: Annotations that name the group: Cluster API writes the MachineSet that owns the node's Machine.
_OWNER_NAME = "cluster.x-k8s.io/owner-name"
_OWNER_KIND = "cluster.x-k8s.io/owner-kind"
#: OpenShift: the node's Machine, ``namespace/name``; a Machine's name is its MachineSet's and five characters.
_OPENSHIFT_MACHINE = "machine.openshift.io/machine"


def node_group(labels: Mapping[str, str], annotations: Mapping[str, str]) -> str:
    """The node group's name; empty if nothing names it."""
    for name in _LABELS:
        if labels.get(name):
            return labels[name]
    if annotations.get(_OWNER_KIND) == "MachineSet" and annotations.get(_OWNER_NAME):
        return annotations[_OWNER_NAME]
    machine = annotations.get(_OPENSHIFT_MACHINE, "").rpartition("/")[2]
    return machine.rpartition("-")[0]


#: Labels of machines that name their node group: Karpenter, Cluster API (two), OpenShift.
_GROUPS = (
    KARPENTER_LABEL,
    "topology.cluster.x-k8s.io/deployment-name",
    "cluster.x-k8s.io/set-name",
    "machine.openshift.io/cluster-api-machineset",
)
#: Conditions that show that a machine's virtual machine exists: Cluster API, OpenShift, Karpenter.
_VM_CONDITIONS = frozenset({"InfrastructureReady", "InstanceExists", "Launched"})


class MachineRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The Machine or NodeClaim that a node was made from.

    Attributes:
        resource: plural and group, ``machines.cluster.x-k8s.io``.
        namespace: the object's namespace; empty for a NodeClaim.
        name: the object's name.
        uid: the object's UID.
        node: the node that it became; empty if none yet.
        provider_id: provider id of its virtual machine; empty if not known yet.
        requested: when it was created.
        vm_created: when its virtual machine existed.
        group: the node group.
        annotations: its annotations, which may forbid its replacement.
        deleting: it is being deleted.
    """

    resource: str
    namespace: str
    name: str
    uid: str
    node: str = ""
    provider_id: str = ""
    requested: float | None = None
    vm_created: float | None = None
    group: str = ""
    annotations: Mapping[str, str] = {}
    deleting: bool = False


def read_machine(machine: Machine, resource: Resource[Machine]) -> MachineRequest:
    """Reads a Machine or NodeClaim."""
    status, labels = machine.status, machine.metadata.labels
    newer = status.v1beta2.conditions if status.v1beta2 is not None else ()
    conditions = (*status.conditions, *newer)
    node = status.node_ref.name if status.node_ref is not None else status.node_name
    return MachineRequest(
        resource=resource.label,
        namespace=machine.metadata.namespace,
        name=machine.metadata.name,
        uid=machine.metadata.uid,
        node=node,
        provider_id=machine.spec.provider_id or status.provider_id,
        requested=parse_time(machine.metadata.creation_timestamp),
        vm_created=next(
            (true_since(conditions, name) for name in _VM_CONDITIONS if true_since(conditions, name) is not None), None
        ),
        group=next((labels[name] for name in _GROUPS if labels.get(name)), ""),
        annotations=machine.metadata.annotations,
        deleting=machine.metadata.deletion_timestamp is not None,
    )
