"""The small kinds: configuration, identity, events, leases, quotas, volumes and claims, and workloads.

Of volumes and claims they have what decides where a pod may run; of workloads, what shows their pods and readiness.
"""

# ruff: noqa: RUF012 - msgspec gives every object its own copy of an empty default

from tessera.kube.resources.meta import LabelSelector, ObjectMeta, ObjectReference, Wire
from tessera.kube.resources.pods import Condition, NodeSelector, PodSpec


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
    """A port of a Service."""

    name: str = ""
    port: int = 0
    protocol: str = ""


class ServiceSpec(Wire, frozen=True, kw_only=True):
    """Selector and ports of a Service."""

    selector: dict[str, str] = {}
    ports: tuple[ServicePort, ...] = ()
    type: str = ""


class Service(Wire, frozen=True, kw_only=True):
    """A Service, partial."""

    metadata: ObjectMeta = ObjectMeta()
    spec: ServiceSpec = ServiceSpec()


class LeaseSpec(Wire, frozen=True, kw_only=True):
    """Holder and times of a lease; the times are RFC 3339 texts with microseconds, by the holder's clock."""

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
    """The component that reported an event, and its node."""

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


class ResourceQuotaSpec(Wire, frozen=True, kw_only=True):
    """Upper bounds by name, e.g. ``requests.nvidia.com/mig-1g.5gb``."""

    hard: dict[str, str] = {}


class ResourceQuotaStatus(Wire, frozen=True, kw_only=True):
    """The quota's limits and the used amounts."""

    hard: dict[str, str] = {}
    used: dict[str, str] = {}


class ResourceQuota(Wire, frozen=True, kw_only=True):
    """A namespace's quota."""

    metadata: ObjectMeta = ObjectMeta()
    spec: ResourceQuotaSpec = ResourceQuotaSpec()
    status: ResourceQuotaStatus = ResourceQuotaStatus()


class ConditionsStatus(Wire, frozen=True, kw_only=True):
    """A status of which only the conditions are read."""

    conditions: tuple[Condition, ...] = ()


class ProvisioningRequest(Wire, frozen=True, kw_only=True):
    """A request for capacity (autoscaling.x-k8s.io): Accepted, Provisioned or Failed, as its autoscaler says."""

    metadata: ObjectMeta = ObjectMeta()
    status: ConditionsStatus = ConditionsStatus()


class WebhookClientConfig(Wire, frozen=True, kw_only=True):
    """The way from the API server to a webhook; ``ca_bundle`` is PEM, base64 on the wire."""

    ca_bundle: bytes = b""
    url: str | None = None
    service: dict[str, str | int] | None = None


class Webhook(Wire, frozen=True, kw_only=True):
    """One webhook of a configuration; ``name`` is its merge key."""

    name: str = ""
    client_config: WebhookClientConfig = WebhookClientConfig()


class WebhookConfiguration(Wire, frozen=True, kw_only=True):
    """A mutating or validating webhook configuration, partial."""

    metadata: ObjectMeta = ObjectMeta()
    webhooks: tuple[Webhook, ...] = ()


class CustomResourceDefinition(Wire, frozen=True, kw_only=True):
    """A CRD, partial. It is served once its condition ``Established`` is ``True``."""

    metadata: ObjectMeta = ObjectMeta()
    status: ConditionsStatus = ConditionsStatus()


class CsiVolume(Wire, frozen=True, kw_only=True):
    """A volume that a CSI driver attaches."""

    driver: str = ""
    volume_handle: str = ""


class VolumeNodeAffinity(Wire, frozen=True, kw_only=True):
    """The nodes that reach a volume."""

    required: NodeSelector | None = None


class PersistentVolumeSpec(Wire, frozen=True, kw_only=True):
    """Spec of a volume; ``claim_ref`` names the claim that has it, or for which it is reserved."""

    capacity: dict[str, str] = {}
    access_modes: tuple[str, ...] = ()
    claim_ref: ObjectReference | None = None
    storage_class_name: str = ""
    volume_mode: str = "Filesystem"
    node_affinity: VolumeNodeAffinity | None = None
    csi: CsiVolume | None = None


class PersistentVolumeStatus(Wire, frozen=True, kw_only=True):
    """``phase``: Pending, Available, Bound, Released or Failed."""

    phase: str = ""


class PersistentVolume(Wire, frozen=True, kw_only=True):
    """A volume."""

    metadata: ObjectMeta = ObjectMeta()
    spec: PersistentVolumeSpec = PersistentVolumeSpec()
    status: PersistentVolumeStatus = PersistentVolumeStatus()


class VolumeAmounts(Wire, frozen=True, kw_only=True):
    """Amounts that a claim requests."""

    requests: dict[str, str] = {}


class PersistentVolumeClaimSpec(Wire, frozen=True, kw_only=True):
    """Spec of a claim; ``volume_name`` names its volume once it has one."""

    access_modes: tuple[str, ...] = ()
    selector: LabelSelector | None = None
    resources: VolumeAmounts = VolumeAmounts()
    volume_name: str = ""
    storage_class_name: str = ""
    volume_mode: str = "Filesystem"


class PersistentVolumeClaimStatus(Wire, frozen=True, kw_only=True):
    """``phase``: Pending, Bound or Lost."""

    phase: str = ""


class PersistentVolumeClaim(Wire, frozen=True, kw_only=True):
    """A claim to a volume."""

    metadata: ObjectMeta = ObjectMeta()
    spec: PersistentVolumeClaimSpec = PersistentVolumeClaimSpec()
    status: PersistentVolumeClaimStatus = PersistentVolumeClaimStatus()


class TopologyTest(Wire, frozen=True, kw_only=True):
    """A node label and the values that it may have."""

    key: str = ""
    values: tuple[str, ...] = ()


class TopologyTerm(Wire, frozen=True, kw_only=True):
    """All tests must hold."""

    match_label_expressions: tuple[TopologyTest, ...] = ()


class StorageClass(Wire, frozen=True, kw_only=True):
    """The rules by which volumes are made. If there are ``allowed_topologies``, a volume needs one of them."""

    metadata: ObjectMeta = ObjectMeta()
    provisioner: str = ""
    volume_binding_mode: str = "Immediate"
    allowed_topologies: tuple[TopologyTerm, ...] = ()


class CsiAllocatable(Wire, frozen=True, kw_only=True):
    """The number of a driver's volumes that a node can attach; None without a limit."""

    count: int | None = None


class CsiDriver(Wire, frozen=True, kw_only=True):
    """A CSI driver on a node."""

    name: str = ""
    allocatable: CsiAllocatable | None = None


class CsiNodeSpec(Wire, frozen=True, kw_only=True):
    """The drivers of a node."""

    drivers: tuple[CsiDriver, ...] = ()


class CsiNode(Wire, frozen=True, kw_only=True):
    """Facts that CSI drivers report about the node of the same name."""

    metadata: ObjectMeta = ObjectMeta()
    spec: CsiNodeSpec = CsiNodeSpec()


class ScaleSpec(Wire, frozen=True, kw_only=True):
    """The desired number of pods."""

    replicas: int = 0


class ScaleStatus(Wire, frozen=True, kw_only=True):
    """The present number of pods, and their selector as a text."""

    replicas: int = 0
    selector: str = ""


class Scale(Wire, frozen=True, kw_only=True):
    """autoscaling/v1 Scale: the ``scale`` subresource."""

    metadata: ObjectMeta = ObjectMeta()
    spec: ScaleSpec = ScaleSpec()
    status: ScaleStatus = ScaleStatus()


class PodTemplateSpec(Wire, frozen=True, kw_only=True):
    """The pods that a workload makes."""

    metadata: ObjectMeta = ObjectMeta()
    spec: PodSpec = PodSpec()


class RollingUpdate(Wire, frozen=True, kw_only=True):
    """How many pods more, and how many less, an update may have: a number, or ``25%`` of the desired ones."""

    max_unavailable: int | str = "25%"
    max_surge: int | str = "25%"


class DeploymentStrategy(Wire, frozen=True, kw_only=True):
    """How a Deployment replaces its pods: ``RollingUpdate`` or ``Recreate``."""

    type: str = ""
    rolling_update: RollingUpdate | None = None


class WorkloadSpec(Wire, frozen=True, kw_only=True):
    """Common part of Deployment and ReplicaSet; only a Deployment has a strategy."""

    replicas: int | None = None
    strategy: DeploymentStrategy = DeploymentStrategy()
    selector: LabelSelector | None = None
    template: PodTemplateSpec = PodTemplateSpec()
    min_ready_seconds: int = 0
    progress_deadline_seconds: int = 600


class WorkloadStatus(Wire, frozen=True, kw_only=True):
    """Common part of Deployment and ReplicaSet."""

    replicas: int = 0
    conditions: tuple[Condition, ...] = ()


class Deployment(Wire, frozen=True, kw_only=True):
    """A Deployment, partial."""

    metadata: ObjectMeta = ObjectMeta()
    spec: WorkloadSpec = WorkloadSpec()
    status: WorkloadStatus = WorkloadStatus()

    @property
    def keeps_old_pods(self) -> bool:
        """True if a rolling update ends no old pod before a new one is available.

        ``maxUnavailable`` is rounded down, and counts as 1 where ``maxSurge`` is 0 too
        (``pkg/controller/deployment/util``, ``ResolveFenceposts``).
        """
        strategy, replicas = self.spec.strategy, self.spec.replicas
        if strategy.type not in {"", "RollingUpdate"}:
            return False
        count, rolling = 1 if replicas is None else replicas, strategy.rolling_update or RollingUpdate()
        unavailable, surge = (_share(each, count) for each in (rolling.max_unavailable, rolling.max_surge))
        return unavailable < 1 and surge > 0


def _share(value: int | str, count: int) -> float:
    text = str(value).strip()
    number = text.removesuffix("%")
    if not number.isdecimal():
        return 0.0
    return int(number) * count / 100 if number != text else float(number)


class ReplicaSet(Wire, frozen=True, kw_only=True):
    """A ReplicaSet, partial."""

    metadata: ObjectMeta = ObjectMeta()
    spec: WorkloadSpec = WorkloadSpec()
    status: WorkloadStatus = WorkloadStatus()


class DaemonSetStatus(Wire, frozen=True, kw_only=True):
    """The number of nodes that should run the pod."""

    desired_number_scheduled: int = 0


class DaemonSet(Wire, frozen=True, kw_only=True):
    """A DaemonSet, partial."""

    metadata: ObjectMeta = ObjectMeta()
    spec: WorkloadSpec = WorkloadSpec()
    status: DaemonSetStatus = DaemonSetStatus()


class JobSpec(Wire, frozen=True, kw_only=True):
    """The number of pods that must succeed, and the seconds from the Job's start in which they must."""

    parallelism: int | None = None
    completions: int | None = None
    active_deadline_seconds: int | None = None
    suspend: bool = False
    template: PodTemplateSpec = PodTemplateSpec()


class CronJobSpec(Wire, frozen=True, kw_only=True):
    """Whether a CronJob makes no Jobs now."""

    suspend: bool = False


class CronJob(Wire, frozen=True, kw_only=True):
    """A CronJob, partial."""

    metadata: ObjectMeta = ObjectMeta()
    spec: CronJobSpec = CronJobSpec()


class JobStatus(Wire, frozen=True, kw_only=True):
    """The number of pods that succeeded, and the Job's start, which a suspended Job does not have."""

    start_time: str | None = None
    active: int = 0
    succeeded: int = 0
    failed: int = 0
    conditions: tuple[Condition, ...] = ()


class Job(Wire, frozen=True, kw_only=True):
    """A Job, partial."""

    metadata: ObjectMeta = ObjectMeta()
    spec: JobSpec = JobSpec()
    status: JobStatus = JobStatus()
