"""ResourceSlices: devices of a node, or counters that its devices share; and the pools that are read from them.

Slices are written by drivers on nodes, so a node may forge them; the API server bounds them, with the same bounds as
here, and lets a kubelet's identity write those of its own node only. Source: ``k8s.io/api/resource/v1/types.go``.

A pool counts only if all its slices of the newest generation are there and keep Kubernetes' rules: names of devices are
unique, and every counter that a device takes from exists. Otherwise the pool has a problem and its devices are not
allocated; other pools are not touched. Order: pools by driver and name, slices by name, devices as listed; this is
kube-scheduler's order since 1.36.

Slices of different nodes are never one pool, and of a driver of ours a pool that has another name than its node's has a
problem: it would name devices of the other node.
"""

from collections import Counter as Tally
from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal
from typing import Annotated

import msgspec

from tessera.cel.kubernetes_values import read_semver
from tessera.dra.claims import GROUP
from tessera.dra.devices import Capacity, Device, DeviceId, DeviceTaint, Pool, Value, qualify, rebuild_counters
from tessera.dra.limits import (
    COUNTERS,
    DEVICE_COUNTER_SETS,
    DEVICE_TAINTS,
    DEVICE_TRAITS,
    SLICE_COUNTER_SETS,
    SLICE_DEVICES,
)
from tessera.dra.node_devices import DRIVER, NVIDIA_DRIVER, pool_names
from tessera.kube.quantity import parse_quantity, quantity_text
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


class SliceRefused(ValueError):  # noqa: N818 - says what happened to the slice
    """A slice breaks a rule; the text names object, field and value."""


def read_pools(slices: Iterable[ResourceSlice]) -> list[Pool]:
    """Returns the pools of some slices, in kube-scheduler's order."""
    found: dict[tuple[str, str, str], list[ResourceSlice]] = {}
    for each in slices:
        found.setdefault((each.spec.driver, each.spec.pool.name, each.spec.node_name), []).append(each)
    return [_read_pool(*key, parts) for key, parts in sorted(found.items())]


def _read_pool(driver: str, name: str, node: str, parts: Sequence[ResourceSlice]) -> Pool:
    if driver in (DRIVER, NVIDIA_DRIVER) and name not in pool_names(node):
        problem = f"pool {name} of {driver}: it is published by node {node}, whose pools have the node's name"
        return Pool(driver=driver, name=name, node=node, problem=problem)
    newest = max(each.spec.pool.generation for each in parts)
    current = sorted(
        (each for each in parts if each.spec.pool.generation == newest), key=lambda each: each.metadata.name
    )
    wanted = current[0].spec.pool.resource_slice_count
    if len(current) != wanted:
        problem = f"{len(current)} of {wanted} ResourceSlices of generation {newest} are there; it is being updated"
        return Pool(driver=driver, name=name, node=node, problem=f"pool {name} of {driver}: {problem}")
    try:
        contents = [read_slice(part) for part in current]
        devices = tuple(device for each, _ in contents for device in each)
        counters = {key: value for _, each in contents for key, value in each.items()}
        _check_sets(current)
        _check_pool(devices, counters)
        if driver in (DRIVER, NVIDIA_DRIVER) and not counters:
            devices, counters = rebuild_counters(devices, driver)
    except ValueError as error:
        return Pool(driver=driver, name=name, node=node, problem=f"pool {name} of {driver}: {error}")
    return Pool(driver=driver, name=name, node=node, devices=devices, counters=counters)


def read_slice(part: ResourceSlice) -> tuple[tuple[Device, ...], dict[tuple[str, str], Decimal]]:
    """Returns the devices and the counters of one object.

    Raises:
        SliceRefused: a value is not valid.
    """
    spec, where = part.spec, f"ResourceSlice {part.metadata.name}"
    devices = tuple(
        _read_device(DeviceId(spec.driver, spec.pool.name, device.name), device, where) for device in spec.devices
    )
    counters = {
        (each.name, name): _read_amount(value.value, f"{where}, counter set {each.name}, {name}")
        for each in spec.shared_counters
        for name, value in each.counters.items()
    }
    return devices, counters


def _check_sets(parts: Sequence[ResourceSlice]) -> None:
    for name, count in Tally(each.name for part in parts for each in part.spec.shared_counters).items():
        if count > 1:
            raise SliceRefused(f"counter set {name} stands {count} times; its name must be unique in the pool")


def _check_pool(devices: Sequence[Device], counters: Mapping[tuple[str, str], Decimal]) -> None:
    for name, count in Tally(device.id.device for device in devices).items():
        if count > 1:
            raise SliceRefused(f"device {name} stands {count} times; its name must be unique in the pool")
    for device in devices:
        for key in device.counters:
            if key not in counters:
                raise SliceRefused(f"device {device.id.device} takes from counter {key[1]} of {key[0]}: there is none")


def _read_device(identity: DeviceId, device: SliceDevice, part: str) -> Device:
    where, driver = f"{part}, device {device.name}", identity.driver
    return Device(
        id=identity,
        attributes={
            qualify(name, driver): read_value(value, f"{where}, attribute {name}")
            for name, value in device.attributes.items()
        },
        capacity={
            qualify(name, driver): _read_capacity(value, f"{where}, capacity {name}")
            for name, value in device.capacity.items()
        },
        counters={
            (each.counter_set, name): _read_amount(value.value, f"{where}, counter {name}")
            for each in device.consumes_counters
            for name, value in each.counters.items()
        },
        taints=tuple(DeviceTaint(each.key, each.value, each.effect) for each in device.taints),
        shared=bool(device.allow_multiple_allocations),
    )


def read_value(value: Attribute, where: str) -> Value:
    """Returns the value of an attribute that ``where`` names.

    Raises:
        SliceRefused: it has none.
    """
    for each in (value.boolean, value.integer, value.string):
        if each is not None:
            return each
    if value.version is None:
        raise SliceRefused(f"{where} has no value of a known type: bool, int, string or version")
    try:
        return read_semver(value.version)
    except ValueError as error:
        raise SliceRefused(f"{where}: {error}") from None


def _read_capacity(capacity: DeviceCapacity, where: str) -> Capacity:
    value, policy = _read_amount(capacity.value, where), capacity.request_policy
    if policy is None:
        return Capacity(value=value)
    limits = policy.valid_range
    return Capacity(
        value=value,
        default=_optional(policy.default, where),
        least=None if limits is None else _optional(limits.min, where),
        most=None if limits is None else _optional(limits.max, where),
        step=(None if limits is None else _optional(limits.step, where)) or None,
        choices=tuple(_read_amount(each, where) for each in policy.valid_values),
    )


def _optional(amount: Amount | None, where: str) -> Decimal | None:
    return None if amount is None else _read_amount(amount, where)


def _read_amount(amount: Amount, where: str) -> Decimal:
    try:
        return parse_quantity(quantity_text(amount))
    except ValueError as error:
        raise SliceRefused(f"{where}: {error}") from None
