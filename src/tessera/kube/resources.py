"""The kinds of objects that Tessera reads or writes, and where they live on the server.

The one place to import structs and :class:`Resource` constants from. Structs are partial; see
:mod:`tessera.kube.meta` for what follows from that.
"""

# ruff: noqa: RUF012 - msgspec gives every object its own copy of an empty default

import msgspec

from tessera.kube.meta import (
    ObjectMeta,
    OwnerReference,
    PartialObject,
    Resource,
    Uid,
    Wire,
    key,
    key_of,
    manifest,
    split_key,
    uid_of,
    version_of,
)
from tessera.kube.pods import (
    Affinity,
    Condition,
    Container,
    ContainerState,
    ContainerStateRunning,
    ContainerStateTerminated,
    ContainerStateWaiting,
    ContainerStatus,
    EnvVar,
    NodeAffinity,
    NodeSelector,
    NodeSelectorRequirement,
    NodeSelectorTerm,
    Pod,
    PodSpec,
    PodStatus,
    PreferredSchedulingTerm,
    ResourceRequirements,
    SchedulingGate,
    Toleration,
)

__all__ = [
    "CONFIGMAPS",
    "CRDS",
    "DAEMONSETS",
    "DEPLOYMENTS",
    "EVENTS",
    "JOBS",
    "LEASES",
    "MUTATING_WEBHOOKS",
    "NAMESPACES",
    "NODES",
    "PODS",
    "REPLICASETS",
    "RESOURCE_QUOTAS",
    "SECRETS",
    "SERVICES",
    "SERVICE_ACCOUNTS",
    "STATEFULSETS",
    "VALIDATING_WEBHOOKS",
    "Affinity",
    "Condition",
    "ConfigMap",
    "Container",
    "ContainerState",
    "ContainerStateRunning",
    "ContainerStateTerminated",
    "ContainerStateWaiting",
    "ContainerStatus",
    "CoreEvent",
    "CustomResourceDefinition",
    "CustomResourceDefinitionStatus",
    "DaemonSet",
    "DaemonSetStatus",
    "Deployment",
    "EnvVar",
    "EventSeries",
    "EventSource",
    "Job",
    "JobSpec",
    "JobStatus",
    "LabelSelector",
    "LabelSelectorRequirement",
    "Lease",
    "LeaseSpec",
    "Namespace",
    "NamespaceStatus",
    "Node",
    "NodeAddress",
    "NodeAffinity",
    "NodeSelector",
    "NodeSelectorRequirement",
    "NodeSelectorTerm",
    "NodeSpec",
    "NodeStatus",
    "NodeSystemInfo",
    "ObjectMeta",
    "ObjectReference",
    "OwnerReference",
    "PartialObject",
    "Pod",
    "PodSpec",
    "PodStatus",
    "PodTemplateSpec",
    "PreferredSchedulingTerm",
    "ReplicaSet",
    "Resource",
    "ResourceQuota",
    "ResourceQuotaSpec",
    "ResourceQuotaStatus",
    "ResourceRequirements",
    "Scale",
    "ScaleSpec",
    "ScaleStatus",
    "SchedulingGate",
    "Secret",
    "Service",
    "ServiceAccount",
    "ServicePort",
    "ServiceSpec",
    "Taint",
    "Toleration",
    "Uid",
    "Webhook",
    "WebhookClientConfig",
    "WebhookConfiguration",
    "Wire",
    "WorkloadSpec",
    "WorkloadStatus",
    "key",
    "key_of",
    "manifest",
    "split_key",
    "uid_of",
    "version_of",
]


class LabelSelectorRequirement(Wire, frozen=True, kw_only=True):
    """One test on a label; operators: In, NotIn, Exists, DoesNotExist."""

    key: str = ""
    operator: str = ""
    values: tuple[str, ...] = ()


class LabelSelector(Wire, frozen=True, kw_only=True):
    """``metav1.LabelSelector``: everything must hold; an empty one matches everything."""

    match_labels: dict[str, str] = {}
    match_expressions: tuple[LabelSelectorRequirement, ...] = ()


class ObjectReference(Wire, frozen=True, kw_only=True):
    """Names an object from another one."""

    api_version: str = ""
    kind: str = ""
    namespace: str = ""
    name: str = ""
    uid: Uid = Uid("")
    resource_version: str = ""
    field_path: str = ""


# Nodes


class Taint(Wire, frozen=True, kw_only=True):
    """Keeps pods off that do not tolerate it; effects: NoSchedule, PreferNoSchedule, NoExecute."""

    key: str = ""
    value: str = ""
    effect: str = ""
    time_added: str | None = None


class NodeSpec(Wire, frozen=True, kw_only=True):
    """``unschedulable`` is what ``kubectl cordon`` sets."""

    unschedulable: bool = False
    taints: tuple[Taint, ...] = ()
    provider_id: str = msgspec.field(name="providerID", default="")


class NodeAddress(Wire, frozen=True, kw_only=True):
    """Types: Hostname, InternalIP, ExternalIP, InternalDNS, ExternalDNS."""

    type: str = ""
    address: str = ""


class NodeSystemInfo(Wire, frozen=True, kw_only=True):
    """``boot_id`` changes with every boot: what lived on the hardware before it is gone."""

    boot_id: str = msgspec.field(name="bootID", default="")
    machine_id: str = msgspec.field(name="machineID", default="")
    kernel_version: str = ""
    os_image: str = ""
    container_runtime_version: str = ""
    kubelet_version: str = ""


class NodeStatus(Wire, frozen=True, kw_only=True):
    """Quantities by resource name are texts; see :mod:`tessera.kube.quantity`."""

    capacity: dict[str, str] = {}
    allocatable: dict[str, str] = {}
    conditions: tuple[Condition, ...] = ()
    addresses: tuple[NodeAddress, ...] = ()
    node_info: NodeSystemInfo = NodeSystemInfo()


class Node(Wire, frozen=True, kw_only=True):
    """A node, partial."""

    metadata: ObjectMeta = ObjectMeta()
    spec: NodeSpec = NodeSpec()
    status: NodeStatus = NodeStatus()


# Configuration, identity and bookkeeping


class NamespaceStatus(Wire, frozen=True, kw_only=True):
    """``phase``: Active or Terminating."""

    phase: str = ""


class Namespace(Wire, frozen=True, kw_only=True):
    """A namespace."""

    metadata: ObjectMeta = ObjectMeta()
    status: NamespaceStatus = NamespaceStatus()


class Secret(Wire, frozen=True, kw_only=True):
    """Values of ``data`` are base64 on the wire and bytes here."""

    metadata: ObjectMeta = ObjectMeta()
    type: str = ""
    data: dict[str, bytes] = {}


class ConfigMap(Wire, frozen=True, kw_only=True):
    """Values of ``binary_data`` are base64 on the wire and bytes here."""

    metadata: ObjectMeta = ObjectMeta()
    data: dict[str, str] = {}
    binary_data: dict[str, bytes] = {}


class ServiceAccount(Wire, frozen=True, kw_only=True):
    """An identity of pods."""

    metadata: ObjectMeta = ObjectMeta()


class ServicePort(Wire, frozen=True, kw_only=True):
    """A port of a Service; ``target_port`` is a number or a container port's name."""

    name: str = ""
    port: int = 0
    protocol: str = ""
    target_port: int | str | None = None


class ServiceSpec(Wire, frozen=True, kw_only=True):
    """Where a Service sends its connections."""

    selector: dict[str, str] = {}
    ports: tuple[ServicePort, ...] = ()
    cluster_ip: str = msgspec.field(name="clusterIP", default="")
    type: str = ""


class Service(Wire, frozen=True, kw_only=True):
    """A Service, partial."""

    metadata: ObjectMeta = ObjectMeta()
    spec: ServiceSpec = ServiceSpec()


class LeaseSpec(Wire, frozen=True, kw_only=True):
    """Who holds a lease; the times are RFC 3339 texts with microseconds, by the holder's clock."""

    holder_identity: str | None = None
    lease_duration_seconds: int | None = None
    acquire_time: str | None = None
    renew_time: str | None = None
    lease_transitions: int | None = None


class Lease(Wire, frozen=True, kw_only=True):
    """A lease (coordination.k8s.io)."""

    metadata: ObjectMeta = ObjectMeta()
    spec: LeaseSpec = LeaseSpec()


class EventSource(Wire, frozen=True, kw_only=True):
    """Who reported an event, and from which node."""

    component: str = ""
    host: str = ""


class EventSeries(Wire, frozen=True, kw_only=True):
    """Repeats of an event as events.k8s.io counts them."""

    count: int = 0
    last_observed_time: str | None = None


class CoreEvent(Wire, frozen=True, kw_only=True):
    """A core/v1 Event, as ``kubectl describe`` shows it. ``type``: Normal or Warning."""

    metadata: ObjectMeta = ObjectMeta()
    involved_object: ObjectReference = ObjectReference()
    reason: str = ""
    message: str = ""
    type: str = ""
    count: int = 0
    first_timestamp: str | None = None
    last_timestamp: str | None = None
    event_time: str | None = None
    series: EventSeries | None = None
    source: EventSource = EventSource()
    action: str = ""
    reporting_component: str = ""
    reporting_instance: str = ""


class ResourceQuotaSpec(Wire, frozen=True, kw_only=True):
    """Upper bounds by name, e.g. ``requests.nvidia.com/mig-1g.5gb``."""

    hard: dict[str, str] = {}


class ResourceQuotaStatus(Wire, frozen=True, kw_only=True):
    """Bounds in force and what is used of them."""

    hard: dict[str, str] = {}
    used: dict[str, str] = {}


class ResourceQuota(Wire, frozen=True, kw_only=True):
    """A namespace's quota."""

    metadata: ObjectMeta = ObjectMeta()
    spec: ResourceQuotaSpec = ResourceQuotaSpec()
    status: ResourceQuotaStatus = ResourceQuotaStatus()


class ScaleSpec(Wire, frozen=True, kw_only=True):
    """The number asked for."""

    replicas: int = 0


class ScaleStatus(Wire, frozen=True, kw_only=True):
    """The number there is, and the selector of the pods as a text."""

    replicas: int = 0
    selector: str = ""


class Scale(Wire, frozen=True, kw_only=True):
    """autoscaling/v1 Scale: the ``scale`` subresource."""

    metadata: ObjectMeta = ObjectMeta()
    spec: ScaleSpec = ScaleSpec()
    status: ScaleStatus = ScaleStatus()


# Workloads: as much as says what a pod belongs to and whether it is ready


class PodTemplateSpec(Wire, frozen=True, kw_only=True):
    """The pods that a workload makes."""

    metadata: ObjectMeta = ObjectMeta()
    spec: PodSpec = PodSpec()


class WorkloadSpec(Wire, frozen=True, kw_only=True):
    """Common part of Deployment and ReplicaSet."""

    replicas: int | None = None
    selector: LabelSelector | None = None
    template: PodTemplateSpec = PodTemplateSpec()


class WorkloadStatus(Wire, frozen=True, kw_only=True):
    """Common part of Deployment and ReplicaSet."""

    observed_generation: int = 0
    replicas: int = 0
    updated_replicas: int = 0
    ready_replicas: int = 0
    available_replicas: int = 0
    conditions: tuple[Condition, ...] = ()


class Deployment(Wire, frozen=True, kw_only=True):
    """A Deployment, partial."""

    metadata: ObjectMeta = ObjectMeta()
    spec: WorkloadSpec = WorkloadSpec()
    status: WorkloadStatus = WorkloadStatus()


class ReplicaSet(Wire, frozen=True, kw_only=True):
    """A ReplicaSet, partial."""

    metadata: ObjectMeta = ObjectMeta()
    spec: WorkloadSpec = WorkloadSpec()
    status: WorkloadStatus = WorkloadStatus()


class DaemonSetStatus(Wire, frozen=True, kw_only=True):
    """How many nodes should and do run the pod."""

    observed_generation: int = 0
    desired_number_scheduled: int = 0
    current_number_scheduled: int = 0
    number_ready: int = 0


class DaemonSet(Wire, frozen=True, kw_only=True):
    """A DaemonSet, partial."""

    metadata: ObjectMeta = ObjectMeta()
    spec: WorkloadSpec = WorkloadSpec()
    status: DaemonSetStatus = DaemonSetStatus()


class JobSpec(Wire, frozen=True, kw_only=True):
    """How often the pod must succeed."""

    parallelism: int | None = None
    completions: int | None = None
    backoff_limit: int | None = None
    suspend: bool = False
    template: PodTemplateSpec = PodTemplateSpec()


class JobStatus(Wire, frozen=True, kw_only=True):
    """How often it did."""

    active: int = 0
    succeeded: int = 0
    failed: int = 0
    conditions: tuple[Condition, ...] = ()


class Job(Wire, frozen=True, kw_only=True):
    """A Job, partial."""

    metadata: ObjectMeta = ObjectMeta()
    spec: JobSpec = JobSpec()
    status: JobStatus = JobStatus()


# Admission and extension


class WebhookClientConfig(Wire, frozen=True, kw_only=True):
    """How the API server reaches a webhook; ``ca_bundle`` is PEM, base64 on the wire."""

    ca_bundle: bytes = b""
    url: str | None = None
    service: dict[str, str | int] | None = None


class Webhook(Wire, frozen=True, kw_only=True):
    """One webhook of a configuration; ``name`` is its merge key."""

    name: str = ""
    client_config: WebhookClientConfig = WebhookClientConfig()
    failure_policy: str = ""


class WebhookConfiguration(Wire, frozen=True, kw_only=True):
    """A mutating or validating webhook configuration, partial."""

    metadata: ObjectMeta = ObjectMeta()
    webhooks: tuple[Webhook, ...] = ()


class CustomResourceDefinitionStatus(Wire, frozen=True, kw_only=True):
    """Served once the condition ``Established`` is ``True``."""

    conditions: tuple[Condition, ...] | None = ()


class CustomResourceDefinition(Wire, frozen=True, kw_only=True):
    """A CRD, partial."""

    metadata: ObjectMeta = ObjectMeta()
    status: CustomResourceDefinitionStatus = CustomResourceDefinitionStatus()


PODS = Resource("", "v1", "pods", "Pod", True, Pod)
NODES = Resource("", "v1", "nodes", "Node", False, Node)
NAMESPACES = Resource("", "v1", "namespaces", "Namespace", False, Namespace)
EVENTS = Resource("", "v1", "events", "Event", True, CoreEvent)
SECRETS = Resource("", "v1", "secrets", "Secret", True, Secret)
CONFIGMAPS = Resource("", "v1", "configmaps", "ConfigMap", True, ConfigMap)
SERVICES = Resource("", "v1", "services", "Service", True, Service)
SERVICE_ACCOUNTS = Resource("", "v1", "serviceaccounts", "ServiceAccount", True, ServiceAccount)
RESOURCE_QUOTAS = Resource("", "v1", "resourcequotas", "ResourceQuota", True, ResourceQuota)
LEASES = Resource("coordination.k8s.io", "v1", "leases", "Lease", True, Lease)
DEPLOYMENTS = Resource("apps", "v1", "deployments", "Deployment", True, Deployment)
REPLICASETS = Resource("apps", "v1", "replicasets", "ReplicaSet", True, ReplicaSet)
DAEMONSETS = Resource("apps", "v1", "daemonsets", "DaemonSet", True, DaemonSet)
STATEFULSETS = Resource("apps", "v1", "statefulsets", "StatefulSet", True, Deployment)
JOBS = Resource("batch", "v1", "jobs", "Job", True, Job)
MUTATING_WEBHOOKS = Resource(
    "admissionregistration.k8s.io",
    "v1",
    "mutatingwebhookconfigurations",
    "MutatingWebhookConfiguration",
    False,
    WebhookConfiguration,
)
VALIDATING_WEBHOOKS = Resource(
    "admissionregistration.k8s.io",
    "v1",
    "validatingwebhookconfigurations",
    "ValidatingWebhookConfiguration",
    False,
    WebhookConfiguration,
)
CRDS = Resource(
    "apiextensions.k8s.io",
    "v1",
    "customresourcedefinitions",
    "CustomResourceDefinition",
    False,
    CustomResourceDefinition,
)
