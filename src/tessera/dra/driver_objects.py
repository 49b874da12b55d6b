"""The objects that the driver publishes: its DeviceClasses, and the ResourceSlices of a node's pools.

By default the driver is ``gpu.tessera.dev``. Where NVIDIA's DRA driver is not installed it can take that driver's name,
``gpu.nvidia.com``, and then has its classes, so NVIDIA's claims run unchanged. Both are never on one node: a node with
slices of NVIDIA's driver is left alone.

The classes that an installation makes have a guard, an expression that no device fulfils; only the controller leaves it
out. So kube-scheduler's allocator is kept away by a server too that drops taints of devices (Kubernetes 1.34 and 1.35).

Slices of a pool: counters first, then devices, as many whole cards in one object as Kubernetes' limits allow, so that
the change of one card writes one object. A change of one object keeps the pool's generation; any other change writes
all objects of the pool with the next one, so that no reader mixes old and new. Nothing is written while nothing
changes: objects are compared by value, not by text.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from decimal import Decimal
from itertools import groupby
from typing import Any

import msgspec

from tessera.cel.kubernetes_values import Semver
from tessera.dra.claims import GROUP, ClaimSpec
from tessera.dra.devices import Capacity, Device, DeviceId, DeviceTaint, Pool, Value
from tessera.dra.limits import SLICE_COUNTER_SETS, SLICE_TAINTED_DEVICES
from tessera.dra.node_devices import DRIVER, NVIDIA_DRIVER, SHARES, bounded_name
from tessera.dra.requests import GUARD, ClaimRefused
from tessera.dra.resource_slices import ResourceSlice, SliceRefused, read_slice
from tessera.kube.quantity import format_quantity

Json = dict[str, Any]
#: Longest name of an object.
_NAME = 253
#: Label of the slices that this module makes, by which others of the same driver's name are known.
MANAGED_BY, MANAGER = "app.kubernetes.io/managed-by", "tessera"


class SlicePlan(msgspec.Struct, frozen=True, kw_only=True):
    """Objects to create, objects to replace, and names of objects to delete, in this order."""

    create: tuple[Json, ...] = ()
    replace: tuple[Json, ...] = ()
    delete: tuple[str, ...] = ()


def plan_slices(pools: Sequence[Pool], stored: Iterable[ResourceSlice], salt: str = "") -> SlicePlan:
    """Returns what must be written so that the server has exactly these pools.

    Args:
        pools: the desired pools of a node.
        stored: the objects of the node and driver, all of them ours.
        salt: end of all names, where another node has taken a name without.
    """
    by_pool: dict[str, list[ResourceSlice]] = {}
    for each in stored:
        by_pool.setdefault(each.spec.pool.name, []).append(each)
    create: list[Json] = []
    replace: list[Json] = []
    delete: list[str] = []
    for pool in pools:
        current = {each.metadata.name: each for each in by_pool.pop(pool.name, ())}
        wanted = dict(_parts(pool, salt))
        changed = [name for name, part in wanted.items() if name not in current or _differs(part, current[name])]
        gone = sorted(current.keys() - wanted.keys())
        generation = max((each.spec.pool.generation for each in current.values()), default=0)
        mixed = any(
            each.spec.pool.generation != generation or each.spec.pool.resource_slice_count != len(wanted)
            for each in current.values()
        )
        if mixed or gone or len(changed) > 1 or len(current) < len(wanted):
            changed, generation = list(wanted), generation + 1
        for name in changed:
            held = current.get(name)
            (create if held is None else replace).append(_object(name, wanted[name], generation, len(wanted), held))
        delete += gone
    delete += sorted(each.metadata.name for parts in by_pool.values() for each in parts)
    return SlicePlan(create=tuple(create), replace=tuple(replace), delete=tuple(delete))


def dropped_fields(pools: Sequence[Pool], stored: Iterable[ResourceSlice]) -> frozenset[str]:
    """Returns what the server did not keep of objects that it took: ``taints``, ``counters``, ``shares``.

    A server whose gate is off drops such fields without an error (Kubernetes 1.34 and 1.35 by default).
    """
    kept: dict[DeviceId, Device] = {}
    for each in stored:
        with suppress(SliceRefused):
            kept |= {device.id: device for device in read_slice(each)[0]}
    found: set[str] = set()
    for pool in pools:
        for device in pool.devices:
            other = kept.get(device.id)
            if other is not None:
                found |= {"taints"} if device.taints and not other.taints else set()
                found |= {"counters"} if device.counters and not other.counters else set()
                found |= {"shares"} if device.shared and not other.shared else set()
    return frozenset(found)


def find_salt(stored: Iterable[ResourceSlice]) -> str:
    """Returns the salt in the names of a node's objects; empty if they have none."""
    for each in stored:
        _, found, salt = each.metadata.name.rpartition(f"-{each.spec.driver}-{each.spec.node_name}-")
        if found and salt:
            return salt
    return ""


def is_ours(stored: ResourceSlice) -> bool:
    """True if this module made the object; a driver of the same name may have made others."""
    return stored.metadata.labels.get(MANAGED_BY) == MANAGER


class _Part(msgspec.Struct, frozen=True):
    """One object's share of a pool."""

    pool: Pool
    devices: tuple[Device, ...] = ()
    sets: tuple[str, ...] = ()


def _parts(pool: Pool, salt: str) -> Iterator[tuple[str, _Part]]:
    sets = sorted({name for name, _counter in pool.counters})
    parts = [
        _Part(pool, sets=tuple(sets[at : at + SLICE_COUNTER_SETS])) for at in range(0, len(sets), SLICE_COUNTER_SETS)
    ]
    parts += [_Part(pool, devices=each) for each in _groups(pool.devices)] or [_Part(pool)] * (not parts)
    for number, part in enumerate(parts):
        yield _name(number, pool, salt), part


def _groups(devices: Sequence[Device]) -> Iterator[tuple[Device, ...]]:
    """Yields the devices of as many cards as fit in one object; a card with more devices has objects of its own."""
    group: tuple[Device, ...] = ()
    for _, of_card in groupby(devices, key=lambda each: each.attributes.get(f"{each.id.driver}/index")):
        card = tuple(of_card)
        if group and len(group) + len(card) > SLICE_TAINTED_DEVICES:
            yield group
            group = ()
        group += card
        while len(group) > SLICE_TAINTED_DEVICES:
            yield group[:SLICE_TAINTED_DEVICES]
            group = group[SLICE_TAINTED_DEVICES:]
    if group:
        yield group


def _name(number: int, pool: Pool, salt: str) -> str:
    """``03-gpu.tessera.dev-n1``; the number is the order of preference for kube-scheduler.

    The name of the node comes last, so that a node named ``n1-shares`` has other objects than the shares of ``n1``.
    """
    kind = "shares-" if pool.name.endswith(SHARES) else ""
    end = f"-{salt}" if salt else ""
    return bounded_name(f"{number:02x}-{kind}{pool.driver}-{pool.node}{end}", _NAME)


# -- values -----------------------------------------------------------------------------------------------------------


def _differs(part: _Part, stored: ResourceSlice) -> bool:
    """True if an object says something else than it should. Its generation and the order of its maps do not count."""
    try:
        return read_slice(stored) != (part.devices, _counters(part))
    except SliceRefused:
        return True


def _counters(part: _Part) -> dict[tuple[str, str], Decimal]:
    return {key: value for key, value in part.pool.counters.items() if key[0] in part.sets}


def _object(name: str, part: _Part, generation: int, count: int, stored: ResourceSlice | None) -> Json:
    """Returns an object; one that replaces another has its version, and keeps the times of its taints."""
    pool = part.pool
    spec: Json = {
        "driver": pool.driver,
        "nodeName": pool.node,
        "pool": {"name": pool.name, "generation": generation, "resourceSliceCount": count},
    }
    if part.sets:
        spec["sharedCounters"] = _counter_sets(_counters(part), "name")
    else:
        times = {} if stored is None else _taint_times(stored)
        spec["devices"] = [_device(each, times) for each in part.devices]
    metadata: Json = {"name": name, "labels": {MANAGED_BY: MANAGER}}
    if stored is not None:
        metadata["resourceVersion"] = stored.metadata.resource_version
    return {"apiVersion": f"{GROUP}/v1", "kind": "ResourceSlice", "metadata": metadata, "spec": spec}


_TaintKey = tuple[str, DeviceTaint]


def _taint_times(stored: ResourceSlice) -> dict[_TaintKey, str]:
    return {
        (device.name, DeviceTaint(taint.key, taint.value, taint.effect)): taint.time_added
        for device in stored.spec.devices
        for taint in device.taints
        if taint.time_added
    }


def _device(device: Device, times: Mapping[_TaintKey, str]) -> Json:
    found: Json = {
        "name": device.id.device,
        "attributes": {_short(name, device): _attribute(value) for name, value in device.attributes.items()},
    }
    if device.capacity:
        found["capacity"] = {_short(name, device): _capacity(value) for name, value in device.capacity.items()}
    if device.counters:
        found["consumesCounters"] = _counter_sets(device.counters, "counterSet")
    if device.taints:
        found["taints"] = [_taint(each, times.get((device.id.device, each))) for each in device.taints]
    if device.shared:
        found["allowMultipleAllocations"] = True
    return found


def _taint(taint: DeviceTaint, added: str | None) -> Json:
    found = {"key": taint.key, "effect": taint.effect}
    return found | ({"value": taint.value} if taint.value else {}) | ({"timeAdded": added} if added else {})


def _short(name: str, device: Device) -> str:
    """A name without the driver's own domain, as NVIDIA writes it."""
    return name.removeprefix(f"{device.id.driver}/")


def _attribute(value: Value) -> Json:
    match value:
        case bool():
            return {"bool": value}
        case int():
            return {"int": value}
        case Semver():
            return {"version": str(value)}
    return {"string": value}


def _capacity(capacity: Capacity) -> Json:
    found: Json = {"value": format_quantity(capacity.value, binary=True)}
    if capacity.default is not None:
        policy: Json = {"default": format_quantity(capacity.default, binary=True)}
        limits = {"min": capacity.least, "max": capacity.most, "step": capacity.step}
        span = {key: format_quantity(value, binary=True) for key, value in limits.items() if value is not None}
        if span:
            policy["validRange"] = span
        if capacity.choices:
            policy["validValues"] = [format_quantity(each, binary=True) for each in capacity.choices]
        found["requestPolicy"] = policy
    return found


def _counter_sets(counters: Mapping[tuple[str, str], Decimal], key: str) -> list[Json]:
    sets: dict[str, Json] = {}
    for (name, counter), amount in sorted(counters.items()):
        sets.setdefault(name, {})[counter] = {"value": format_quantity(amount)}
    return [{key: name, "counters": each} for name, each in sets.items()]


#: Prefix of each driver's classes: ``mig.nvidia.com``.
_DOMAINS = {DRIVER: "tessera.dev", NVIDIA_DRIVER: "nvidia.com"}


def find_rival(driver: str, node: str, slices: Iterable[ResourceSlice]) -> str:
    """Returns why the driver must not publish on a node, as another program does under its name; empty if none does.

    Args:
        driver: our driver's name.
        node: the node.
        slices: the ResourceSlices of the cluster or node.
    """
    for each in slices:
        if each.spec.driver == driver and each.spec.node_name == node and not is_ours(each):
            return (
                f"node {node}: ResourceSlice {each.metadata.name} of driver {driver} is another program's; remove that"
                f" driver from the node, or choose --claim-driver {DRIVER}"
            )
    return ""


def device_classes(driver: str, *, guarded: bool = False) -> list[Json]:
    """Returns the driver's classes: whole cards, MIG devices, and for our own name shares.

    Args:
        driver: the driver's name.
        guarded: the server keeps no taints of devices.
    """
    domain = _DOMAINS[driver]
    whole = _typed(driver, "gpu")
    if driver == NVIDIA_DRIVER:
        wanted = {"gpu": whole, "mig": _typed(driver, "mig"), "vfio.gpu": _typed(driver, "vfio")}
    else:
        shared = "device.allowMultipleAllocations"
        wanted = {"gpu": f"{whole} && !{shared}", "mig": _typed(driver, "mig"), "gpu-shares": f"{whole} && {shared}"}
    found = [_class(f"{name}.{domain}", expression, guarded) for name, expression in wanted.items()]
    if not guarded:  # else kube-scheduler would look for a device that it never finds, for every pod with cards
        found[0]["spec"]["extendedResourceName"] = "nvidia.com/gpu"
    return found


def _typed(driver: str, kind: str) -> str:
    return f"device.driver == '{driver}' && device.attributes['{driver}'].type == '{kind}'"


def _class(name: str, expression: str, guarded: bool) -> Json:
    selectors = [{"cel": {"expression": each}} for each in (expression, *([GUARD] if guarded else []))]
    return {
        "apiVersion": f"{GROUP}/v1",
        "kind": "DeviceClass",
        "metadata": {"name": name},
        "spec": {"selectors": selectors},
    }


def check_served(name: str, spec: ClaimSpec, driver: str) -> None:
    """Refuses a claim for devices that the driver never has.

    Args:
        name: ``claim namespace/name``, for messages.
        spec: the claim.
        driver: the driver's name.

    Raises:
        ClaimRefused: a request is for a card for a virtual machine.
    """
    for index, request in enumerate(spec.devices.requests):
        queries = [("exactly", request.exactly)] if request.exactly is not None else []
        queries += [(f"firstAvailable[{number}]", each) for number, each in enumerate(request.first_available)]
        for place, query in queries:
            if query is not None and query.device_class_name == f"vfio.{driver}":
                raise ClaimRefused(
                    f"{name}: spec.devices.requests[{index}].{place}.deviceClassName is {query.device_class_name}:"
                    " cards are not given to virtual machines"
                )
