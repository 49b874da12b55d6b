"""The small kinds of configuration, identity, events, leases and quotas (core/v1 and others)."""

# ruff: noqa: RUF012 - msgspec gives every object its own copy of an empty default

from tessera.kube.resources.meta import ObjectMeta, ObjectReference, Wire
from tessera.kube.resources.pods import Condition


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


class ProvisioningRequestStatus(Wire, frozen=True, kw_only=True):
    """Accepted, Provisioned, Failed and others, as Cluster Autoscaler sets them."""

    conditions: tuple[Condition, ...] = ()


class ProvisioningRequest(Wire, frozen=True, kw_only=True):
    """A request for capacity (autoscaling.x-k8s.io)."""

    metadata: ObjectMeta = ObjectMeta()
    status: ProvisioningRequestStatus = ProvisioningRequestStatus()


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


class CustomResourceDefinitionStatus(Wire, frozen=True, kw_only=True):
    """Served once the condition ``Established`` is ``True``."""

    conditions: tuple[Condition, ...] = ()


class CustomResourceDefinition(Wire, frozen=True, kw_only=True):
    """A CRD, partial."""

    metadata: ObjectMeta = ObjectMeta()
    status: CustomResourceDefinitionStatus = CustomResourceDefinitionStatus()
