"""Configuration, identity, bookkeeping: the small kinds, and how objects name and select each other."""

# ruff: noqa: RUF012 - msgspec gives every object its own copy of an empty default

import msgspec

from tessera.kube.meta import ObjectMeta, Uid, Wire


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
