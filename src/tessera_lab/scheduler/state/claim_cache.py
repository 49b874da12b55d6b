"""The scheduler's cache of claims, devices and their taints, and of its own allocations in flight.

Pools of a node are read once and kept until one of their slices changes; who holds which device is kept by pool. What
claims hold of a node's devices is read from their allocations. The functions that read a pod's claims work on decoded
JSON; the claim controller and the simulated kubelet use them too, as in Kubernetes
(``k8s.io/dynamic-resource-allocation/resourceclaim``).

A device may vanish while a claim holds it: the driver gave its profile another number, or the card has another role
now. It is held all the same, and with it everything of its card: nobody knows here which part it was.

DeviceTaintRules are taints that an administrator gives to devices without writing their ResourceSlices. Source:
``resourceslice/tracker`` of k8s.io/dynamic-resource-allocation. A rule without a selector matches no device, one with
an empty selector all; every field of it that is set must be equal. The taint counts as one of the driver's.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal
from typing import Any, NamedTuple

import msgspec

from tessera.dra.claims import AllocatedDevice
from tessera.dra.devices import Device, DeviceId, Holdings, Pool, qualify
from tessera.dra.node_devices import DRIVER, NVIDIA_DRIVER
from tessera.dra.resource_slices import ResourceSlice, read_pools
from tessera.dra.selectors import DeviceSelectors
from tessera.kube.quantity import parse_quantity, quantity_text
from tessera_lab.scheduler.state.pod_requests import term_matches

#: Keeps an allocated claim until nobody uses it; without it the claim controller clears no allocation.
FINALIZER = "resource.kubernetes.io/delete-protection"
_CARD = re.compile(r"(gpu-[0-9]+)(?:-.*)?")
Json = Mapping[str, Any]
_PoolId = tuple[str, str]
#: Beginning of the extended resource that every class stands for.
IMPLICIT = "deviceclass.resource.kubernetes.io/"


def claim_names(pod: Json) -> Mapping[str, str]:
    """Names of the pod's claims by their entry in its spec; empty for a claim that its controller has still to make.

    An entry for which no claim is needed is left out.
    """
    made = {each["name"]: each.get("resourceClaimName") for each in _statuses(pod)}
    found: dict[str, str] = {}
    for each in pod["spec"].get("resourceClaims") or ():
        name = each.get("resourceClaimName") or made.get(each["name"], "")
        if name is not None:
            found[each["name"]] = name
    extended = (pod.get("status") or {}).get("extendedResourceClaimStatus")
    if extended:
        found[""] = extended["resourceClaimName"]
    return found


def _statuses(pod: Json) -> Sequence[Json]:
    return (pod.get("status") or {}).get("resourceClaimStatuses") or ()


def is_of_template(pod: Json, entry: str) -> bool:
    """True if the pod's claim of this entry is made for this pod alone."""
    listed = {each["name"]: each for each in pod["spec"].get("resourceClaims") or ()}
    return entry not in listed or not listed[entry].get("resourceClaimName")


def owner_uid(claim: Json) -> str:
    """UID of the pod for which a claim was made; empty if it was not made for one."""
    owners = claim["metadata"].get("ownerReferences") or ()
    return next((each["uid"] for each in owners if each.get("controller") and each.get("kind") == "Pod"), "")


def allocation_of(claim: Json) -> Json | None:
    """The claim's allocation."""
    found: Json | None = (claim.get("status") or {}).get("allocation")
    return found


def results_of(allocation: Json | None) -> Sequence[Json]:
    """The devices of an allocation."""
    found: Sequence[Json] = ((allocation or {}).get("devices") or {}).get("results") or ()
    return found


def reservations(claim: Json) -> Sequence[Json]:
    """The consumers that may use the claim."""
    found: Sequence[Json] = (claim.get("status") or {}).get("reservedFor") or ()
    return found


def is_reserved_for(claim: Json, uid: str) -> bool:
    """True if the pod of that UID may use the claim."""
    return any(each.get("uid") == uid for each in reservations(claim))


def consumer(name: str, uid: str) -> dict[str, str]:
    """The entry of ``status.reservedFor`` for a pod."""
    return {"resource": "pods", "name": name, "uid": uid}


def container_requests(container: Json) -> Iterable[tuple[str, str]]:
    """Entries of the pod's claims that a container uses, each with the one request that it uses; empty for all."""
    for each in (container.get("resources") or {}).get("claims") or ():
        yield each["name"], each.get("request") or ""


def base_request(name: str) -> str:
    """The request of a result, without the alternative that was chosen."""
    return name.partition("/")[0]


class TaintRules:
    """The rules by name."""

    def __init__(self) -> None:
        self._rules: dict[str, Json] = {}

    def __bool__(self) -> bool:
        return bool(self._rules)

    def set(self, item: Json, *, gone: bool = False) -> None:
        """A rule was made, changed or deleted."""
        name = item["metadata"]["name"]
        if gone:
            self._rules.pop(name, None)
        else:
            self._rules[name] = item["spec"]

    def taints(self, device: DeviceId) -> tuple[Json, ...]:
        """The taints of a device by rules."""
        return tuple(each["taint"] for each in self._rules.values() if _matches(each.get("deviceSelector"), device))

    def apply(self, item: Json) -> Json:
        """The ResourceSlice with the taints of its devices by rules."""
        spec = item["spec"]
        if not self._rules or not spec.get("devices"):
            return item
        devices = [
            {**each, "taints": [*(each.get("taints") or ()), *self.taints(_id(spec, each))]} for each in spec["devices"]
        ]
        return {**item, "spec": {**spec, "devices": devices}}


def _id(spec: Json, device: Json) -> DeviceId:
    return DeviceId(spec["driver"], spec["pool"]["name"], device["name"])


def _matches(selector: Json | None, device: DeviceId) -> bool:
    if selector is None:
        return False
    given = {"driver": device.driver, "pool": device.pool, "device": device.device}
    return all(selector.get(key) in {None, value} for key, value in given.items())


def read_holdings(pools: Sequence[Pool], allocated: Iterable[AllocatedDevice]) -> Holdings:
    """Returns what allocations hold. Those with admin access hold nothing.

    Args:
        pools: the pools of a node.
        allocated: the devices of all claims, also those of other nodes.
    """
    known = {device.id: device for pool in pools for device in pool.devices}
    found = Holdings()
    for each in allocated:
        if each.admin_access:
            continue
        identity = DeviceId(each.driver, each.pool, each.device)
        amounts = {qualify(name, each.driver): _amount(value) for name, value in each.consumed_capacity.items()}
        if identity in known:
            found.take(known[identity], amounts)
        else:
            _take_vanished(found, identity, pools, Device(id=identity, shared=bool(each.share_id)), amounts)
    return found


def _take_vanished(
    found: Holdings, identity: DeviceId, pools: Sequence[Pool], device: Device, amounts: dict[str, Decimal]
) -> None:
    found.take(device, amounts)
    card = _CARD.fullmatch(identity.device) if identity.driver in (DRIVER, NVIDIA_DRIVER) else None
    if card is None:
        return
    for pool in pools:
        if pool.driver == identity.driver and identity.pool.partition("/")[0] == pool.node:
            counters = {key: value for key, value in pool.counters.items() if key[0].startswith(f"{card[1]}-")}
            found.take(Device(id=DeviceId(pool.driver, pool.name, f"card of {identity.device}"), counters=counters), {})


def _amount(value: object) -> Decimal:
    """An amount in a status; one that is no quantity counts as nothing, which the API server does not store."""
    try:
        return parse_quantity(quantity_text(value))
    except ValueError:
        return Decimal(0)


class Reach(NamedTuple):
    """The nodes of a device: one by name, those of a selector, or all if both are empty."""

    node: str = ""
    selector: Json | None = None

    def admits(self, name: str, labels: Mapping[str, str]) -> bool:
        """True if the device can be used on a node."""
        if self.node:
            return self.node == name
        terms = (self.selector or {}).get("nodeSelectorTerms") or ()
        return self.selector is None or any(term_matches(term, labels, name) for term in terms)


class ClaimCache:
    """Cached objects of ``resource.k8s.io``.

    Attributes:
        claims: ResourceClaims by ``namespace/name``.
        classes: DeviceClasses by name.
        pending: allocations that the scheduler has decided and not yet written, by the claim's UID.
        selectors: evaluates selectors and remembers results.
    """

    def __init__(self) -> None:
        self.claims: dict[str, Json] = {}
        self.classes: dict[str, Json] = {}
        self.pending: dict[str, Json] = {}
        self._class_of: dict[str, str] = {}
        self.selectors = DeviceSelectors()
        self._rules = TaintRules()
        #: Slices of one node by its name, and under the empty name those of several nodes.
        self._slices: dict[str, dict[str, Json]] = {}
        self._pools: dict[str, list[Pool]] = {}
        self._held: dict[_PoolId, dict[str, list[AllocatedDevice]]] = {}
        self._pools_of_claim: dict[str, set[_PoolId]] = {}

    # Claims

    def set_claim(self, key: str, claim: Json) -> None:
        """A claim was made or changed."""
        self.claims[key] = claim
        uid = claim["metadata"]["uid"]
        if allocation_of(claim) is not None:
            self.pending.pop(uid, None)
        self._hold(uid, self.allocation(claim))

    def remove_claim(self, key: str, uid: str) -> None:
        """A claim is gone."""
        self.claims.pop(key, None)
        self.pending.pop(uid, None)
        self._hold(uid, None)

    def assume(self, claim: Json, allocation: Json | None) -> None:
        """Counts an allocation before it is written; with None no longer."""
        uid = claim["metadata"]["uid"]
        if allocation is None:
            self.pending.pop(uid, None)
        else:
            self.pending[uid] = allocation
        self._hold(uid, self.allocation(claim))

    def allocation(self, claim: Json) -> Json | None:
        """The claim's allocation, written or decided."""
        return allocation_of(claim) or self.pending.get(claim["metadata"]["uid"])

    def _hold(self, uid: str, allocation: Json | None) -> None:
        for pool in self._pools_of_claim.pop(uid, ()):
            self._held[pool].pop(uid, None)
        for result in results_of(allocation):
            pool = (result["driver"], result["pool"])
            self._held.setdefault(pool, {}).setdefault(uid, []).append(msgspec.convert(result, AllocatedDevice))
            self._pools_of_claim.setdefault(uid, set()).add(pool)

    # Classes

    def set_class(self, item: Json, *, gone: bool = False) -> None:
        """A class was made, changed or deleted."""
        name = item["metadata"]["name"]
        if gone:
            self.classes.pop(name, None)
        else:
            self.classes[name] = item
        self._class_of = {f"{IMPLICIT}{each}": each for each in self.classes}
        ordered = sorted(self.classes.items(), reverse=True)
        for each, found in sorted(ordered, key=lambda pair: str(pair[1]["metadata"]["creationTimestamp"])):
            extended = found["spec"].get("extendedResourceName")
            if extended:
                self._class_of[extended] = each  # the newest, and the first by name of several

    def class_of(self, resource: str) -> str:
        """The class that stands for an extended resource; empty for none."""
        return self._class_of.get(resource, "")

    # Slices

    def set_slice(self, item: Json, *, gone: bool = False) -> None:
        """A slice was made, changed or deleted."""
        node, name = item["spec"].get("nodeName") or "", item["metadata"]["name"]
        known = self._slices.setdefault(node, {})
        if gone:
            known.pop(name, None)
        else:
            known[name] = item
        if node:
            self._pools.pop(node, None)
        else:
            self._pools.clear()

    def set_rule(self, item: Json, *, gone: bool = False) -> None:
        """A DeviceTaintRule was made, changed or deleted."""
        self._rules.set(item, gone=gone)
        self._pools.clear()

    def pools(self, node: str, labels: Mapping[str, str]) -> list[Pool]:
        """The pools whose devices can be used on a node."""
        shared = self._slices.get("", {})
        if not shared and node in self._pools:
            return self._pools[node]
        slices = [*self._slices.get(node, {}).values(), *shared.values()]
        found = read_pools(
            msgspec.convert(self._rules.apply(_reachable(each, node, labels)), ResourceSlice) for each in slices
        )
        self._pools[node] = found
        return found

    def holdings(self, pools: list[Pool]) -> Holdings:
        """What claims hold of some pools."""
        claims = (self._held.get((pool.driver, pool.name), {}).values() for pool in pools)
        return read_holdings(pools, (each for held in claims for devices in held for each in devices))

    def reach(self, device: DeviceId, node: str) -> Reach:
        """The nodes of a device that can be used on a node."""
        for item in (*self._slices.get(node, {}).values(), *self._slices.get("", {}).values()):
            spec = item["spec"]
            if (spec["driver"], spec["pool"]["name"]) != (device.driver, device.pool):
                continue
            for each in spec.get("devices") or ():
                if each["name"] == device.device:
                    return Reach(node) if each.get("bindsToNode") else _reach_of(spec, each)
        return Reach(node)


def _reach_of(spec: Json, device: Json) -> Reach:
    holder = device if spec.get("perDeviceNodeSelection") else spec
    return Reach(holder.get("nodeName") or "", holder.get("nodeSelector"))


def _reachable(item: Json, node: str, labels: Mapping[str, str]) -> Json:
    """The slice with only those devices that can be used on the node, so that it still counts for its pool."""
    spec = item["spec"]
    if spec.get("nodeName"):
        return item
    devices = [each for each in spec.get("devices") or () if _reach_of(spec, each).admits(node, labels)]
    return {**item, "spec": {**spec, "devices": devices}}
