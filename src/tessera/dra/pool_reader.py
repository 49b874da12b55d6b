"""Reads pools from ResourceSlices.

A pool counts only if all its slices of the newest generation are there and keep Kubernetes' rules: names of devices are
unique, and every counter that a device takes from exists. Otherwise the pool has a problem and its devices are not
allocated; other pools are not touched. Order: pools by driver and name, slices by name, devices as listed; this is
kube-scheduler's order since 1.36.
"""

from collections import Counter as Tally
from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal

from tessera.api.dra.resource_slices import Amount, Attribute, DeviceCapacity, ResourceSlice, SliceDevice
from tessera.cel.kubernetes_values import read_semver
from tessera.dra.devices import Capacity, Device, DeviceId, DeviceTaint, Pool, Value, qualify
from tessera.kube.quantity import parse_quantity, quantity_text


class _WrongError(ValueError):
    """A slice breaks a rule; the text names object, field and value."""


def read_pools(slices: Iterable[ResourceSlice]) -> list[Pool]:
    """Returns the pools of some slices, in kube-scheduler's order."""
    found: dict[tuple[str, str], list[ResourceSlice]] = {}
    for each in slices:
        found.setdefault((each.spec.driver, each.spec.pool.name), []).append(each)
    return [_read_pool(driver, name, parts) for (driver, name), parts in sorted(found.items())]


def _read_pool(driver: str, name: str, parts: Sequence[ResourceSlice]) -> Pool:
    newest = max(each.spec.pool.generation for each in parts)
    current = sorted(
        (each for each in parts if each.spec.pool.generation == newest), key=lambda each: each.metadata.name
    )
    nodes = {each.spec.node_name for each in current}
    node = nodes.pop() if len(nodes) == 1 else ""
    wanted = current[0].spec.pool.resource_slice_count
    if len(current) != wanted:
        problem = f"{len(current)} of {wanted} ResourceSlices of generation {newest} are there; it is being updated"
        return Pool(driver=driver, name=name, node=node, problem=f"pool {name} of {driver}: {problem}")
    try:
        devices = tuple(
            _read_device(DeviceId(driver, name, device.name), device, f"ResourceSlice {part.metadata.name}")
            for part in current
            for device in part.spec.devices
        )
        counters = _read_counters(current)
        _check_pool(devices, counters)
    except _WrongError as error:
        return Pool(driver=driver, name=name, node=node, problem=f"pool {name} of {driver}: {error}")
    return Pool(driver=driver, name=name, node=node, devices=devices, counters=counters)


def _read_counters(parts: Sequence[ResourceSlice]) -> dict[tuple[str, str], Decimal]:
    found: dict[tuple[str, str], Decimal] = {}
    names: set[str] = set()
    for part in parts:
        for each in part.spec.shared_counters:
            where = f"ResourceSlice {part.metadata.name}, counter set {each.name}"
            if each.name in names:
                raise _WrongError(f"{where} stands twice in the pool; its name must be unique")
            names.add(each.name)
            found |= {
                (each.name, name): _read_amount(value.value, f"{where}, {name}")
                for name, value in each.counters.items()
            }
    return found


def _check_pool(devices: Sequence[Device], counters: Mapping[tuple[str, str], Decimal]) -> None:
    for name, count in Tally(device.id.device for device in devices).items():
        if count > 1:
            raise _WrongError(f"device {name} stands {count} times; its name must be unique in the pool")
    for device in devices:
        for key in device.counters:
            if key not in counters:
                raise _WrongError(f"device {device.id.device} takes from counter {key[1]} of {key[0]}: there is none")


def _read_device(identity: DeviceId, device: SliceDevice, part: str) -> Device:
    where, driver = f"{part}, device {device.name}", identity.driver
    return Device(
        id=identity,
        attributes={
            qualify(name, driver): _read_value(value, f"{where}, attribute {name}")
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


def _read_value(value: Attribute, where: str) -> Value:
    for each in (value.boolean, value.integer, value.string):
        if each is not None:
            return each
    if value.version is None:
        raise _WrongError(f"{where} has no value of a known type: bool, int, string or version")
    try:
        return read_semver(value.version)
    except ValueError as error:
        raise _WrongError(f"{where}: {error}") from None


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
        raise _WrongError(f"{where}: {error}") from None
