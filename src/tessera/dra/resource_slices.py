"""ResourceSlice: devices of a node, or counters that its devices share.

Slices are written by drivers on nodes, so a node may forge them; the API server bounds them, with the same bounds as
here, and lets a kubelet's identity write those of its own node only. Source: ``k8s.io/api/resource/v1/types.go``.
"""

from typing import Annotated

import msgspec

from tessera.dra.claims import GROUP
from tessera.dra.limits import (
    COUNTERS,
    DEVICE_COUNTER_SETS,
    DEVICE_TAINTS,
    DEVICE_TRAITS,
    SLICE_COUNTER_SETS,
    SLICE_DEVICES,
)
from tessera.kube.resources import ObjectMeta, Resource, Wire

Amount = str | int | float


class Attribute(Wire, frozen=True, kw_only=True):
    """A value; exactly one member is set."""

    integer: int | None = msgspec.field(default=None, name="int")
    boolean: bool | None = msgspec.field(default=None, name="bool")
    string: str | None = None
    version: str | None = None


class CapacityRange(Wire, frozen=True, kw_only=True):
    """Amounts from ``min`` to ``max`` in steps."""

    min: Amount | None = None
    max: Amount | None = None
    step: Amount | None = None


class RequestPolicy(Wire, frozen=True, kw_only=True):
    """Amounts that a share of a device may take, and the one without a request."""

    default: Amount | None = None
    valid_values: tuple[Amount, ...] = ()
    valid_range: CapacityRange | None = None


class DeviceCapacity(Wire, frozen=True, kw_only=True):
    """An amount that a device has."""

    value: Amount = "0"
    request_policy: RequestPolicy | None = None


class Counter(Wire, frozen=True, kw_only=True):
    """An amount."""

    value: Amount = "0"


_Counters = Annotated[dict[str, Counter], msgspec.Meta(max_length=int(COUNTERS))]


class CounterSet(Wire, frozen=True, kw_only=True):
    """Amounts that several devices take from."""

    name: str = ""
    counters: _Counters = msgspec.field(default_factory=dict)


class CounterConsumption(Wire, frozen=True, kw_only=True):
    """Amounts that a device takes from one set."""

    counter_set: str = ""
    counters: _Counters = msgspec.field(default_factory=dict)


class Taint(Wire, frozen=True, kw_only=True):
    """Keeps a device from claims that do not tolerate it; ``NoSchedule``, ``NoExecute`` or ``None``."""

    key: str = ""
    value: str = ""
    effect: str = ""
    time_added: str | None = None


_Traits = msgspec.Meta(max_length=int(DEVICE_TRAITS))


class SliceDevice(Wire, frozen=True, kw_only=True):
    """One device."""

    name: str = ""
    attributes: Annotated[dict[str, Attribute], _Traits] = msgspec.field(default_factory=dict)
    capacity: Annotated[dict[str, DeviceCapacity], _Traits] = msgspec.field(default_factory=dict)
    consumes_counters: Annotated[tuple[CounterConsumption, ...], msgspec.Meta(max_length=int(DEVICE_COUNTER_SETS))] = ()
    taints: Annotated[tuple[Taint, ...], msgspec.Meta(max_length=int(DEVICE_TAINTS))] = ()
    allow_multiple_allocations: bool | None = None


class SlicePool(Wire, frozen=True, kw_only=True):
    """The pool to which a slice belongs: complete with this number of slices of one generation."""

    name: str = ""
    generation: int = 0
    resource_slice_count: int = 0


class SliceSpec(Wire, frozen=True, kw_only=True):
    """Devices or counters, never both."""

    driver: str = ""
    pool: SlicePool = SlicePool()
    node_name: str = ""
    devices: Annotated[tuple[SliceDevice, ...], msgspec.Meta(max_length=int(SLICE_DEVICES))] = ()
    shared_counters: Annotated[tuple[CounterSet, ...], msgspec.Meta(max_length=int(SLICE_COUNTER_SETS))] = ()


class ResourceSlice(Wire, frozen=True, kw_only=True):
    """One object of a pool."""

    metadata: ObjectMeta = ObjectMeta()
    spec: SliceSpec = SliceSpec()


RESOURCE_SLICES = Resource(GROUP, "v1", "resourceslices", "ResourceSlice", False, ResourceSlice)
