"""DeviceClass, ResourceClaim and ResourceClaimTemplate.

Claims are written by tenants. The API server bounds them; the same bounds hold here, so an object beyond them does not
decode. A field that a later Kubernetes adds is not read: :func:`tessera.dra.requests.read_demand` refuses a request
of an unknown form rather than guess. Sources of all fields and bounds: ``k8s.io/api/resource/v1/types.go``.
"""

from typing import Annotated, Any

import msgspec

from tessera.dra.limits import CLAIM_ALTERNATIVES, CLAIM_CONSUMERS, CLAIM_ENTRIES, CLAIM_TOLERATIONS, EXPRESSION_TEXT
from tessera.kube.resources import ObjectMeta, Resource, Wire
from tessera.kube.resources import Toleration as PodToleration

GROUP = "resource.k8s.io"
EXACT_COUNT, ALL = "ExactCount", "All"

_Entries = msgspec.Meta(max_length=int(CLAIM_ENTRIES))


class CelSelector(Wire, frozen=True, kw_only=True):
    """An expression over one device."""

    expression: Annotated[str, msgspec.Meta(max_length=int(EXPRESSION_TEXT))] = ""


class Selector(Wire, frozen=True, kw_only=True):
    """A condition on a device; without ``cel`` it is of a kind that is not known here."""

    cel: CelSelector | None = None


class Toleration(PodToleration, frozen=True, kw_only=True):
    """A taint of a device that a request tolerates; without an effect it tolerates all."""

    operator: str = "Equal"


class CapacityRequest(Wire, frozen=True, kw_only=True):
    """Amounts that a request takes of each device."""

    requests: Annotated[dict[str, str | int | float], _Entries] = msgspec.field(default_factory=dict)


class DeviceQuery(Wire, frozen=True, kw_only=True):
    """``exactly`` of a request, or one of its ``firstAvailable``, which has a name and no ``admin_access``.

    Attributes:
        name: of an alternative.
        device_class_name: the class.
        selectors: conditions, all of which a device must fulfil.
        allocation_mode: ``ExactCount`` (also without a value) or ``All``.
        count: devices with ``ExactCount``; absent is 1.
        admin_access: take no device away from others.
        tolerations: taints that do not matter.
        capacity: amounts of each device.
    """

    name: str = ""
    device_class_name: str = ""
    selectors: Annotated[tuple[Selector, ...], _Entries] = ()
    allocation_mode: str = EXACT_COUNT
    count: int | None = None
    admin_access: bool = False
    tolerations: Annotated[tuple[Toleration, ...], msgspec.Meta(max_length=int(CLAIM_TOLERATIONS))] = ()
    capacity: CapacityRequest = CapacityRequest()


class DeviceRequest(Wire, frozen=True, kw_only=True):
    """One request: exactly one of ``exactly`` and ``first_available``."""

    name: str = ""
    exactly: DeviceQuery | None = None
    first_available: Annotated[tuple[DeviceQuery, ...], msgspec.Meta(max_length=int(CLAIM_ALTERNATIVES))] = ()


class Constraint(Wire, frozen=True, kw_only=True):
    """What devices of several requests have in common, or not; no ``requests`` means all."""

    requests: Annotated[tuple[str, ...], _Entries] = ()
    match_attribute: str | None = None
    distinct_attribute: str | None = None


class OpaqueConfig(Wire, frozen=True, kw_only=True):
    """A driver's configuration, as its author wrote it."""

    driver: str = ""
    parameters: Any = None


class DeviceConfig(Wire, frozen=True, kw_only=True):
    """Configuration for some requests; no ``requests`` means all.

    Attributes:
        requests: names of requests, or ``request/alternative``.
        opaque: the configuration.
        source: in an allocation, ``FromClass`` or ``FromClaim``.
    """

    requests: Annotated[tuple[str, ...], _Entries] = ()
    opaque: OpaqueConfig | None = None
    source: str = ""


class DeviceClaim(Wire, frozen=True, kw_only=True):
    """``spec.devices`` of a claim."""

    requests: Annotated[tuple[DeviceRequest, ...], _Entries] = ()
    constraints: Annotated[tuple[Constraint, ...], _Entries] = ()
    config: Annotated[tuple[DeviceConfig, ...], _Entries] = ()


class ClaimSpec(Wire, frozen=True, kw_only=True):
    """What a claim asks for."""

    devices: DeviceClaim = DeviceClaim()


class AllocatedDevice(Wire, frozen=True, kw_only=True):
    """One device of an allocation; driver, pool and device identify it.

    Attributes:
        request: the request's name, or ``request/alternative``.
        admin_access: nothing is taken from other claims.
        tolerations: as in the request.
        share_id: of this share, for a device that several claims hold.
        consumed_capacity: amounts that this share takes.
    """

    request: str = ""
    driver: str = ""
    pool: str = ""
    device: str = ""
    admin_access: bool = False
    tolerations: Annotated[tuple[Toleration, ...], msgspec.Meta(max_length=int(CLAIM_TOLERATIONS))] = ()
    share_id: str = msgspec.field(default="", name="shareID")
    consumed_capacity: dict[str, str | int | float] = msgspec.field(default_factory=dict)


class DeviceAllocation(Wire, frozen=True, kw_only=True):
    """``status.allocation.devices``."""

    results: Annotated[tuple[AllocatedDevice, ...], _Entries] = ()
    config: Annotated[tuple[DeviceConfig, ...], msgspec.Meta(max_length=2 * int(CLAIM_ENTRIES))] = ()


class NodeTerm(Wire, frozen=True, kw_only=True):
    """One requirement on a node's labels or fields."""

    key: str = ""
    operator: str = ""
    values: tuple[str, ...] = ()


class NodeSelectorTerm(Wire, frozen=True, kw_only=True):
    """Requirements that all hold."""

    match_expressions: tuple[NodeTerm, ...] = ()
    match_fields: tuple[NodeTerm, ...] = ()


class NodeSelector(Wire, frozen=True, kw_only=True):
    """Nodes on which an allocation can be used: those of any term."""

    node_selector_terms: tuple[NodeSelectorTerm, ...] = ()


class Allocation(Wire, frozen=True, kw_only=True):
    """``status.allocation``."""

    devices: DeviceAllocation = DeviceAllocation()
    node_selector: NodeSelector | None = None

    @property
    def node(self) -> str:
        """The one node that the selector names by ``metadata.name``; empty if it is of another form."""
        match self.node_selector:
            case NodeSelector(
                node_selector_terms=(
                    NodeSelectorTerm(
                        match_expressions=(),
                        match_fields=(NodeTerm(key="metadata.name", operator="In", values=(name,)),),
                    ),
                )
            ):
                return name
        return ""


class Consumer(Wire, frozen=True, kw_only=True):
    """An object, mostly a pod, that may use the claim's devices."""

    api_group: str = ""
    resource: str = ""
    name: str = ""
    uid: str = ""


class ClaimStatus(Wire, frozen=True, kw_only=True):
    """What the claim has, and for whom."""

    allocation: Allocation | None = None
    reserved_for: Annotated[tuple[Consumer, ...], msgspec.Meta(max_length=int(CLAIM_CONSUMERS))] = ()


class ResourceClaim(Wire, frozen=True, kw_only=True):
    """A claim for devices."""

    metadata: ObjectMeta = ObjectMeta()
    spec: ClaimSpec = ClaimSpec()
    status: ClaimStatus = ClaimStatus()

    @property
    def pod(self) -> str:
        """UID of the pod for which it was made from a template; empty for any other claim."""
        owners = self.metadata.owner_references
        return next((each.uid for each in owners if each.kind == "Pod" and each.controller), "")


class TemplateSpec(Wire, frozen=True, kw_only=True):
    """The claim that a template makes."""

    metadata: ObjectMeta = ObjectMeta()
    spec: ClaimSpec = ClaimSpec()


class ResourceClaimTemplate(Wire, frozen=True, kw_only=True):
    """Makes a claim for each pod."""

    metadata: ObjectMeta = ObjectMeta()
    spec: TemplateSpec = TemplateSpec()


class ClassSpec(Wire, frozen=True, kw_only=True):
    """Devices of a class, their configuration, and the extended resource that stands for one of them."""

    selectors: Annotated[tuple[Selector, ...], _Entries] = ()
    config: Annotated[tuple[DeviceConfig, ...], _Entries] = ()
    extended_resource_name: str = ""


class DeviceClass(Wire, frozen=True, kw_only=True):
    """A kind of devices, by the cluster's administrator."""

    metadata: ObjectMeta = ObjectMeta()
    spec: ClassSpec = ClassSpec()


def is_our_class(found: DeviceClass, driver: str) -> bool:
    """True if a class chooses devices of the driver: one of its expressions names the driver."""
    texts = [each.cel.expression for each in found.spec.selectors if each.cel is not None]
    return any(f"'{driver}'" in text or f'"{driver}"' in text for text in texts)


RESOURCE_CLAIMS = Resource(GROUP, "v1", "resourceclaims", "ResourceClaim", True, ResourceClaim)
RESOURCE_CLAIM_TEMPLATES = Resource(
    GROUP, "v1", "resourceclaimtemplates", "ResourceClaimTemplate", True, ResourceClaimTemplate
)
DEVICE_CLASSES = Resource(GROUP, "v1", "deviceclasses", "DeviceClass", False, DeviceClass)
