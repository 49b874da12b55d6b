"""The parts of a Pod that decide where and whether it runs, and the state of its containers (core/v1)."""

# ruff: noqa: RUF012 - msgspec gives every object its own copy of an empty default

from typing import TYPE_CHECKING, Any

import msgspec

from tessera.kube.quantity import quantity_text
from tessera.kube.resources.meta import LabelSelector, ObjectMeta, Wire, cut_entries, cut_selectors
from tessera.limits import (
    HOST_PORTS,
    NODE_AFFINITY_EXPRESSIONS,
    NODE_AFFINITY_TERMS,
    NODE_AFFINITY_VALUES,
    NODE_SELECTOR_LABELS,
    POD_AFFINITY_TERMS,
    POD_QUANTITIES,
    POLICY_ENTRIES,
    SELECTOR_VALUES,
    SPREAD_CONSTRAINTS,
    TOLERATIONS,
)

#: ``spec.schedulerName`` of pods that name none.
DEFAULT_SCHEDULER = "default-scheduler"
#: Kubelet's reasons for a container whose image cannot be pulled.
NOT_PULLED = frozenset(
    {"ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull", "ImageInspectError"}
)

#: Entries of a pod's other lists; Kubernetes' own components write a handful.
_ENTRIES = 1_000

if TYPE_CHECKING:
    _Quantities = dict[str, str]
else:
    _Quantities = dict[str, Any]  # decoding takes any value, and _write_texts makes it a text


def _write_texts(quantities: dict[str, Any]) -> None:
    for name, value in quantities.items():
        if type(value) is not str:
            quantities[name] = quantity_text(value)


class PodAffinityTerm(Wire, frozen=True, kw_only=True):
    """The selected pods, and the node label whose equal values are one domain.

    Label keys (``matchLabelKeys``, ``mismatchLabelKeys``) are not read: the API server writes them into the selector.
    """

    label_selector: LabelSelector | None = None
    namespaces: tuple[str, ...] = ()
    topology_key: str = ""
    namespace_selector: LabelSelector | None = None


class WeightedPodAffinityTerm(Wire, frozen=True, kw_only=True):
    """A rule about other pods that a pod prefers, with a weight from 1 to 100."""

    weight: int = 0
    pod_affinity_term: PodAffinityTerm = PodAffinityTerm()


class PodAffinity(Wire, frozen=True, kw_only=True):
    """Affinity or anti-affinity to other pods."""

    required: tuple[PodAffinityTerm, ...] = msgspec.field(
        name="requiredDuringSchedulingIgnoredDuringExecution", default=()
    )
    preferred: tuple[WeightedPodAffinityTerm, ...] = msgspec.field(
        name="preferredDuringSchedulingIgnoredDuringExecution", default=()
    )


class TopologySpreadConstraint(Wire, frozen=True, kw_only=True):
    """A rule that spreads pods evenly over the values of a node label."""

    max_skew: int = 1
    topology_key: str = ""
    when_unsatisfiable: str = ""
    label_selector: LabelSelector | None = None
    min_domains: int | None = None
    node_affinity_policy: str = ""
    node_taints_policy: str = ""
    match_label_keys: tuple[str, ...] = ()


class EnvVar(Wire, frozen=True, kw_only=True):
    """The name of an environment variable. Values are omitted: only the container needs them, and they cost memory."""

    name: str = ""


class ResourceRequirements(Wire, frozen=True, kw_only=True):
    """Quantities by resource name, as texts.

    kube-apiserver writes those of its own kinds as texts. A template in a custom resource, such as a Workload, has what
    its author wrote: often a number.
    """

    limits: _Quantities = {}
    requests: _Quantities = {}

    def __post_init__(self) -> None:
        if self.limits:
            _write_texts(self.limits)
        if self.requests:
            _write_texts(self.requests)


class ContainerPort(Wire, frozen=True, kw_only=True):
    """A port; ``host_port`` 0 takes none of the node's."""

    container_port: int = 0
    host_port: int = 0
    host_ip: str = msgspec.field(name="hostIP", default="")
    protocol: str = ""


class SecurityContext(Wire, frozen=True, kw_only=True):
    """Rights of a container that give it access to the host."""

    privileged: bool = False


class Container(Wire, frozen=True, kw_only=True):
    """A container of any of a pod's three lists. ``restart_policy`` ``Always`` marks a sidecar among the init ones."""

    name: str = ""
    image: str = ""
    command: tuple[str, ...] = ()
    args: tuple[str, ...] = ()
    env: tuple[EnvVar, ...] = ()
    ports: tuple[ContainerPort, ...] = ()
    resources: ResourceRequirements = ResourceRequirements()
    restart_policy: str = ""
    security_context: SecurityContext | None = None


class SchedulingGate(Wire, frozen=True, kw_only=True):
    """While a pod has a gate, the scheduler ignores the pod."""

    name: str = ""


class NodeSelectorRequirement(Wire, frozen=True, kw_only=True):
    """One test on a node's label or field; operators: In, NotIn, Exists, DoesNotExist, Gt, Lt."""

    key: str = ""
    operator: str = ""
    values: tuple[str, ...] = ()


class NodeSelectorTerm(Wire, frozen=True, kw_only=True):
    """All tests must hold; an empty term matches no node."""

    match_expressions: tuple[NodeSelectorRequirement, ...] = ()
    match_fields: tuple[NodeSelectorRequirement, ...] = ()


class NodeSelector(Wire, frozen=True, kw_only=True):
    """One of the terms must hold."""

    node_selector_terms: tuple[NodeSelectorTerm, ...] = ()


class PreferredSchedulingTerm(Wire, frozen=True, kw_only=True):
    """A preference with a weight from 1 to 100."""

    weight: int = 0
    preference: NodeSelectorTerm = NodeSelectorTerm()


class NodeAffinity(Wire, frozen=True, kw_only=True):
    """The nodes on which a pod may run, and those that it prefers."""

    required: NodeSelector | None = msgspec.field(name="requiredDuringSchedulingIgnoredDuringExecution", default=None)
    preferred: tuple[PreferredSchedulingTerm, ...] = msgspec.field(
        name="preferredDuringSchedulingIgnoredDuringExecution", default=()
    )


class Affinity(Wire, frozen=True, kw_only=True):
    """Affinity to nodes and to other pods."""

    node_affinity: NodeAffinity | None = None
    pod_affinity: PodAffinity | None = None
    pod_anti_affinity: PodAffinity | None = None


class Toleration(Wire, frozen=True, kw_only=True):
    """A toleration of a taint; an empty ``key`` with ``Exists`` tolerates every taint."""

    key: str = ""
    operator: str = ""
    value: str = ""
    effect: str = ""
    toleration_seconds: int | None = None

    def tolerates(self, key: str, value: str, effect: str) -> bool:
        """True if it is for a taint of this key, value and effect."""
        if self.effect and self.effect != effect:
            return False
        if self.key and self.key != key:
            return False
        return self.operator == "Exists" or (bool(self.key) and self.value == value)


class EmptyDir(Wire, frozen=True, kw_only=True):
    """A folder that lives as long as the pod."""


class ClaimVolume(Wire, frozen=True, kw_only=True):
    """A volume by its claim."""

    claim_name: str = ""


class EphemeralVolume(Wire, frozen=True, kw_only=True):
    """A volume whose claim is created for the pod and named after it."""


class ImageVolume(Wire, frozen=True, kw_only=True):
    """The content of an image, or of another OCI artefact, as a volume."""

    reference: str = ""


class Volume(Wire, frozen=True, kw_only=True):
    """A volume: its claim, its image, and the fields that show if its data is deleted with the pod."""

    name: str = ""
    empty_dir: EmptyDir | None = None
    persistent_volume_claim: ClaimVolume | None = None
    ephemeral: EphemeralVolume | None = None
    image: ImageVolume | None = None


class PodClaim(Wire, frozen=True, kw_only=True):
    """A claim of devices (dynamic resource allocation), by its name in the pod.

    It names a ResourceClaim, or a template; or neither, for one of its PodGroup. Its status names the one that is made.
    """

    name: str = ""
    resource_claim_name: str = ""
    resource_claim_template_name: str = ""


class PullSecret(Wire, frozen=True, kw_only=True):
    """A Secret of the pod's namespace with credentials for images."""

    name: str = ""


class PodSpec(Wire, frozen=True, kw_only=True):
    """The desired state of a pod."""

    node_name: str = ""
    scheduling_gates: tuple[SchedulingGate, ...] = ()
    containers: tuple[Container, ...] = ()
    init_containers: tuple[Container, ...] = ()
    volumes: tuple[Volume, ...] = ()
    restart_policy: str = ""
    active_deadline_seconds: int | None = None
    node_selector: dict[str, str] = {}
    affinity: Affinity | None = None
    tolerations: tuple[Toleration, ...] = ()
    topology_spread_constraints: tuple[TopologySpreadConstraint, ...] = ()
    priority: int = 0
    preemption_policy: str = ""
    termination_grace_period_seconds: int | None = None
    overhead: _Quantities = {}
    scheduler_name: str = ""
    runtime_class_name: str = ""
    resource_claims: tuple[PodClaim, ...] = ()
    host_network: bool = False
    image_pull_secrets: tuple[PullSecret, ...] = ()
    resources: ResourceRequirements | None = None

    def __post_init__(self) -> None:
        if self.overhead:
            _write_texts(self.overhead)

    def cut(self) -> None:
        """See :meth:`tessera.kube.resources.meta.Wire.cut`.

        The containers stay: with the API server's defaults, each has nearly as many bytes as text.
        """
        cut_entries(NODE_SELECTOR_LABELS, [self], "node_selector")
        cut_entries(TOLERATIONS, [self], "tolerations")
        cut_entries(SPREAD_CONSTRAINTS, [self], "topology_spread_constraints")
        cut_entries(_ENTRIES, [self], "scheduling_gates", "resource_claims", "image_pull_secrets", "overhead")
        containers = (*self.init_containers, *self.containers)
        cut_entries(POLICY_ENTRIES, [self], "volumes")
        cut_entries(POLICY_ENTRIES, containers, "env", "command", "args")
        cut_entries(HOST_PORTS, containers, "ports")
        cut_entries(POD_QUANTITIES, [each.resources for each in containers], "limits", "requests")
        selectors = [each.label_selector for each in self.topology_spread_constraints]
        if self.affinity is not None:
            _cut_node_affinity(self.affinity.node_affinity or NodeAffinity())
            for rule in (self.affinity.pod_affinity, self.affinity.pod_anti_affinity):
                selectors += _cut_pod_affinity(rule or PodAffinity())
        cut_selectors(SELECTOR_VALUES, filter(None, selectors))

    @property
    def privileged(self) -> bool:
        """True if a container has all rights of the host. A user who may run such pods controls the nodes."""
        contexts = (each.security_context for each in (*self.init_containers, *self.containers))
        return any(each is not None and each.privileged for each in contexts)


def _cut_node_affinity(affinity: NodeAffinity) -> None:
    required = affinity.required or NodeSelector()
    cut_entries(NODE_AFFINITY_TERMS, [required], "node_selector_terms")
    cut_entries(NODE_AFFINITY_TERMS, [affinity], "preferred")
    terms = (*required.node_selector_terms, *(each.preference for each in affinity.preferred))
    cut_entries(NODE_AFFINITY_EXPRESSIONS, terms, "match_expressions", "match_fields")
    tests = [test for term in terms for test in (*term.match_expressions, *term.match_fields)]
    cut_entries(NODE_AFFINITY_VALUES, tests, "values")


def _cut_pod_affinity(rule: PodAffinity) -> list[LabelSelector | None]:
    """Cuts the terms; returns their selectors."""
    cut_entries(POD_AFFINITY_TERMS, [rule], "required", "preferred")
    terms = (*rule.required, *(each.pod_affinity_term for each in rule.preferred))
    cut_entries(SELECTOR_VALUES, terms, "namespaces")
    return [found for each in terms for found in (each.label_selector, each.namespace_selector)]


class ContainerStateWaiting(Wire, frozen=True, kw_only=True):
    """The container waits for its first or next start."""

    reason: str = ""
    message: str = ""


class ContainerStateRunning(Wire, frozen=True, kw_only=True):
    """Running since ``started_at``."""

    started_at: str | None = None


class ContainerStateTerminated(Wire, frozen=True, kw_only=True):
    """Ended."""

    exit_code: int = 0
    reason: str = ""
    message: str = ""
    started_at: str | None = None
    finished_at: str | None = None


class ContainerState(Wire, frozen=True, kw_only=True):
    """At most one of the three is set; none means waiting."""

    waiting: ContainerStateWaiting | None = None
    running: ContainerStateRunning | None = None
    terminated: ContainerStateTerminated | None = None


class ComputeQuantities(Wire, frozen=True, kw_only=True):
    """The two resources that kubelet can resize in place; an empty text is no quantity.

    Other resources are not kept, since every container would take memory for them.
    """

    cpu: str = ""
    memory: str = ""


class ComputeRequests(Wire, frozen=True, kw_only=True):
    """The requests that are in force."""

    requests: ComputeQuantities = ComputeQuantities()


class DeviceHealth(Wire, frozen=True, kw_only=True):
    """What kubelet says of one device of a container: ``Healthy``, ``Unhealthy`` or ``Unknown``."""

    health: str = ""
    message: str = ""


class ResourceStatus(Wire, frozen=True, kw_only=True):
    """The devices of one resource that a container holds, with their health (KEP-4680)."""

    name: str = ""
    resources: tuple[DeviceHealth, ...] = ()


class ContainerStatus(Wire, frozen=True, kw_only=True):
    """The state of one container, as kubelet reports it.

    Attributes:
        allocated_resources: the requests that the node has admitted; None if kubelet does not report them.
        resources: the requests in force, which follow the allocated ones.
        allocated_resources_status: the health of its devices; empty if kubelet does not report it.
        container_id: the runtime and its id of the present or last run, ``containerd://0123...``.
    """

    name: str = ""
    ready: bool = False
    restart_count: int = 0
    state: ContainerState | None = None
    allocated_resources: ComputeQuantities | None = None
    resources: ComputeRequests | None = None
    allocated_resources_status: tuple[ResourceStatus, ...] = ()
    container_id: str = msgspec.field(name="containerID", default="")

    @property
    def waiting(self) -> ContainerStateWaiting | None:
        """Why the container does not run yet; None if it runs, has ended, or kubelet does not say."""
        return self.state.waiting if self.state is not None else None

    @property
    def terminated(self) -> ContainerStateTerminated | None:
        """How the container ended; None if it did not, or kubelet does not say."""
        return self.state.terminated if self.state is not None else None

    @property
    def running(self) -> ContainerStateRunning | None:
        """Since when the container runs; None if it does not, or kubelet does not say."""
        return self.state.running if self.state is not None else None


class Condition(Wire, frozen=True, kw_only=True):
    """A condition of any kind of object; ``status`` is ``True``, ``False`` or ``Unknown``.

    ``last_heartbeat_time`` is that of the writer's last word, on Nodes only; on pods that is ``last_probe_time``.
    """

    type: str = ""
    status: str = ""
    reason: str = ""
    message: str = ""
    last_transition_time: str | None = None
    last_heartbeat_time: str | None = None
    last_probe_time: str | None = None


class PodClaimStatus(Wire, frozen=True, kw_only=True):
    """The ResourceClaim that was made for a claim of the pod; without a name the pod needs none."""

    name: str = ""
    resource_claim_name: str = ""


class PodStatus(Wire, frozen=True, kw_only=True):
    """The last reported state of a pod. ``phase`` ends in ``Succeeded`` or ``Failed``.

    ``allocated_resources`` and ``resources`` are those of :class:`ContainerStatus`, for the pod's own resources.
    """

    phase: str = ""
    pod_ip: str = msgspec.field(name="podIP", default="")
    reason: str = ""
    message: str = ""
    nominated_node_name: str = ""
    start_time: str | None = None
    conditions: tuple[Condition, ...] = ()
    container_statuses: tuple[ContainerStatus, ...] = ()
    init_container_statuses: tuple[ContainerStatus, ...] = ()
    allocated_resources: ComputeQuantities | None = None
    resources: ComputeRequests | None = None
    resource_claim_statuses: tuple[PodClaimStatus, ...] = ()

    def condition(self, kind: str) -> Condition | None:
        """Returns the condition of a type; None if the pod has none."""
        return next((each for each in self.conditions if each.type == kind), None)

    @property
    def is_ready(self) -> bool:
        """True if kubelet reports the pod as ready."""
        ready = self.condition("Ready")
        return ready is not None and ready.status == "True"

    @property
    def has_ended(self) -> bool:
        """True if all containers ended and none starts again."""
        return self.phase in {"Succeeded", "Failed"}

    @property
    def containers(self) -> tuple[ContainerStatus, ...]:
        """Returns all containers, in the order of their starts."""
        return (*self.init_container_statuses, *self.container_statuses)

    def crashes(self, of: ContainerStatus) -> int:
        """Returns how often a container was restarted alone, not together with its pod.

        Kubelet keeps counting when a node boots, and starts all containers of a pod again; a restart of all is no
        crash. In a pod of one container the two cannot be distinguished, and every restart counts.
        """
        every = [each.restart_count for each in self.containers]
        return of.restart_count - (min(every) if len(every) > 1 else 0)


class Pod(Wire, frozen=True, kw_only=True):
    """A pod, partial."""

    metadata: ObjectMeta = ObjectMeta()
    spec: PodSpec = PodSpec()
    status: PodStatus = PodStatus()

    def cut(self) -> None:
        """See :meth:`tessera.kube.resources.meta.Wire.cut`."""
        cut_entries(_ENTRIES - 1, [self.metadata], "finalizers")  # Tessera writes none of a pod
        super().cut()
        self.spec.cut()
        cut_entries(_ENTRIES, [self.status], "conditions", "resource_claim_statuses")

    @property
    def lasts(self) -> bool:
        """True if it ends only when somebody deletes it, and nobody has: it restarts always, and has no deadline."""
        ends_itself = (
            self.spec.restart_policy in {"Never", "OnFailure"} or self.spec.active_deadline_seconds is not None
        )
        return not ends_itself and self.metadata.deletion_timestamp is None

    @property
    def workload(self) -> str:
        """``Kind/name`` of the workload that made it, a Deployment for the ReplicaSets that one makes; or empty."""
        owner = next((each for each in self.metadata.owner_references if each.controller), None)
        if owner is None:
            return ""
        template = self.metadata.labels.get("pod-template-hash", "")
        if owner.kind == "ReplicaSet" and template and owner.name.endswith(f"-{template}"):
            return f"Deployment/{owner.name.removesuffix(f'-{template}')}"
        return f"{owner.kind}/{owner.name}"
