"""The ledger of devices and the containers that hold them: the state of kubelet's device manager.

Rules, all kubelet's (``pkg/kubelet/cm/devicemanager``):

* a device is healthy, unhealthy or unknown; capacity counts the first two, allocatable the healthy ones;
* one pod at a time holds a device, until the pod is finished, also while its containers restart;
* later containers of a pod reuse the devices of its ordinary init containers, but not those of an app container or a
  restartable init container;
* a resource whose plugin ended keeps its capacity with all devices unhealthy, for five minutes;
* a pod's status has the health that the plugin last listed for each of its devices (``UpdateAllocatedResourcesStatus``,
  KEP-4680); the end of the plugin does not change it, and a device that was never listed counts as healthy;
* after a restart kubelet knows resources and holders from its checkpoint, but no device is healthy until its plugin
  registers again. Containers that still run keep their devices. After a reboot kubelet refuses a container its old
  devices while they are not healthy (``devicesToAllocate``); plugins hardly ever come back before the containers.

No I/O, no plugin: :mod:`tessera_lab.kubelet.devices.device_manager` asks this ledger which devices are free and records
in it which devices it gave.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NewType

import msgspec

from tessera.kubelet.interfaces import (
    ClaimDevices,
    ContainerAllocateResponse,
    ContainerDevices,
    ContainerResources,
    Device,
    PodResources,
)

#: ``metadata.uid`` of a pod.
PodUid = NewType("PodUid", str)

#: Devices that a pod's earlier init containers leave to its later containers, by resource.
Reusable = dict[str, set[str]]


class DeviceAllocationError(Exception):
    """Kubelet cannot give the container its devices; the text is kubelet's."""


class DeviceHolding(msgspec.Struct, frozen=True, kw_only=True):
    """Devices of one resource that one container holds."""

    container: str
    resource: str
    device_ids: tuple[str, ...]
    allocation: ContainerAllocateResponse = ContainerAllocateResponse()


class PodHoldings(msgspec.Struct, frozen=True, kw_only=True):
    """Devices that one pod holds on this node."""

    uid: PodUid
    namespace: str
    name: str
    holdings: tuple[DeviceHolding, ...] = ()


class DeviceChoice(msgspec.Struct, frozen=True, kw_only=True):
    """Candidate devices: the container must get ``given``, and ``needed - len(given)`` more of ``available``."""

    given: tuple[str, ...]
    available: tuple[str, ...]
    needed: int


class DeviceLedger:
    """The devices of one node, and the containers that hold them."""

    def __init__(self) -> None:
        #: Healthy devices by resource, in the plugin's order. Has every registered resource, also without devices.
        self._healthy: dict[str, dict[str, None]] = {}
        #: Unhealthy devices by resource; the same resources as :attr:`_healthy`, and no device is in both.
        self._unhealthy: dict[str, set[str]] = {}
        #: By resource, the devices as the plugin last listed them, each with True if it is healthy.
        self._listed: dict[str, dict[str, bool]] = {}
        #: By resource and device, the pod that holds it. Keeps devices whose plugin has ended or is forgotten.
        self._owner: dict[str, dict[str, PodUid]] = {}
        #: The pods that hold devices; :attr:`_owner` has exactly their devices.
        self._pods: dict[PodUid, PodHoldings] = {}

    # Reports of plugins

    def set_devices(self, resource: str, devices: Sequence[Device]) -> frozenset[PodUid]:
        """Replaces the devices of a resource with a plugin's full list.

        Returns:
            The pods that hold a device whose health changed, or that was not listed before.
        """
        before = self._listed.get(resource, {})
        self._listed[resource] = {device.id: device.healthy for device in devices}
        self._healthy[resource] = {device.id: None for device in devices if device.healthy}
        self._unhealthy[resource] = {device.id for device in devices if not device.healthy}
        owners = self._owner.get(resource, {})
        changed = {each.id for each in devices if before.get(each.id) is not each.healthy}
        return frozenset(owners[device] for device in changed & owners.keys())

    def note_plugin_end(self, resource: str) -> None:
        """All devices of the resource become unhealthy."""
        if resource in self._healthy:
            self._unhealthy[resource] |= set(self._healthy[resource])
            self._healthy[resource] = {}

    def forget(self, resource: str) -> None:
        """Removes a resource from the node, after its plugin was absent for the grace period."""
        self._healthy.pop(resource, None)
        self._unhealthy.pop(resource, None)
        self._listed.pop(resource, None)

    def counts(self) -> tuple[dict[str, int], dict[str, int]]:
        """Capacity and allocatable by resource."""
        capacity = {name: len(ids) + len(self._unhealthy[name]) for name, ids in self._healthy.items()}
        return capacity, {name: len(ids) for name, ids in self._healthy.items()}

    # Devices of pods

    def choose(self, resource: str, needed: int, reusable: Collection[str]) -> DeviceChoice:
        """Returns candidate devices for a container; ``reusable`` are the devices that its pod's init containers left.

        Raises:
            DeviceAllocationError: unknown resource, no healthy devices, or too few free ones.
        """
        if resource not in self._healthy:
            raise DeviceAllocationError(f"cannot allocate unregistered device {resource}")
        healthy = self._healthy[resource]
        if not healthy:
            raise DeviceAllocationError(f"no healthy devices present; cannot allocate unhealthy devices {resource}")
        given = sorted(reusable)[:needed]  # healthy or not
        if len(given) == needed:
            return DeviceChoice(given=tuple(given), available=(), needed=needed)
        owners = self._owner.get(resource, {})
        available = tuple(each for each in healthy if each not in owners)
        if len(available) < needed - len(given):
            raise DeviceAllocationError(
                f"requested number of devices unavailable for {resource}. "
                f"Requested: {needed - len(given)}, Available: {len(available)}"
            )
        return DeviceChoice(given=tuple(given), available=available, needed=needed)

    def confirm(self, holding: DeviceHolding) -> None:
        """Checks that a pod which starts again after the node's boot can keep its devices.

        Raises:
            DeviceAllocationError: the plugin has not registered yet, or no longer has one of the devices.
        """
        healthy = self._healthy.get(holding.resource)
        if healthy is None:
            raise DeviceAllocationError(f"cannot allocate unregistered device {holding.resource}")
        if not healthy:
            raise DeviceAllocationError(
                f"no healthy devices present; cannot allocate unhealthy devices {holding.resource}"
            )
        if not healthy.keys() >= set(holding.device_ids):
            raise DeviceAllocationError(
                "previously allocated devices are no longer healthy; "
                f"cannot allocate unhealthy devices {holding.resource}"
            )

    def hold(self, uid: PodUid, namespace: str, name: str, holding: DeviceHolding) -> None:
        """Records that a container holds devices."""
        pod = self._pods.get(uid) or PodHoldings(uid=uid, namespace=namespace, name=name)
        self._pods[uid] = msgspec.structs.replace(pod, holdings=(*pod.holdings, holding))
        owners = self._owner.setdefault(holding.resource, {})
        for device in holding.device_ids:
            owners[device] = uid

    def release(self, uid: PodUid) -> bool:
        """Frees all devices of a pod. Returns True if it held any."""
        pod = self._pods.pop(uid, None)
        if pod is None:
            return False
        for holding in pod.holdings:
            owners = self._owner.get(holding.resource, {})
            for device in holding.device_ids:
                owners.pop(device, None)
        return True

    def holdings(self, uid: PodUid, container: str) -> tuple[DeviceHolding, ...]:
        """The container's devices, one entry for each resource."""
        pod = self._pods.get(uid)
        return tuple(each for each in pod.holdings if each.container == container) if pod else ()

    def health(self, uid: PodUid, container: str) -> dict[str, dict[str, bool]]:
        """The container's devices by resource, each with True if it is healthy."""
        return {
            held.resource: {each: self._listed.get(held.resource, {}).get(each, True) for each in held.device_ids}
            for held in self.holdings(uid, container)
        }

    def pods(self) -> tuple[PodHoldings, ...]:
        """Every pod that holds devices."""
        return tuple(self._pods.values())

    def has(self, resource: str) -> bool:
        """True if a plugin registered the resource on this node and :meth:`forget` has not removed it."""
        return resource in self._healthy

    # Restart

    def after_restart(self) -> "DeviceLedger":
        """The ledger of a restarted kubelet: it keeps holders and resource names, but no device is healthy."""
        return DeviceLedger.restore(self._pods.values(), self._healthy)

    @staticmethod
    def restore(pods: Collection[PodHoldings], resources: Collection[str]) -> "DeviceLedger":
        """Makes a ledger from a checkpoint's content."""
        ledger = DeviceLedger()
        for resource in resources:
            ledger.set_devices(resource, ())
        for pod in pods:
            for holding in pod.holdings:
                ledger.hold(pod.uid, pod.namespace, pod.name, holding)
        return ledger

    def registered_resources(self) -> dict[str, tuple[str, ...]]:
        """The healthy devices by resource, as the checkpoint records them."""
        return {name: tuple(ids) for name, ids in self._healthy.items()}


def requested_devices(container: Mapping[str, Any], ledger: DeviceLedger) -> list[tuple[str, int]]:
    """Returns the device resources that a container asks for; ignores limits that no plugin of this node serves."""
    limits = (container.get("resources") or {}).get("limits") or {}
    return [(name, int(value)) for name, value in limits.items() if ledger.has(name) and int(value) > 0]


def copy_allocations(
    spec: Mapping[str, Any], container: str, reusable: Reusable, taken: Sequence[DeviceHolding]
) -> None:
    """Updates the devices that later containers of the pod may reuse, after ``container`` got ``taken``."""
    ordinary_init = any(
        each["name"] == container and each.get("restartPolicy") != "Always" for each in spec.get("initContainers") or ()
    )
    for holding in taken:
        devices = reusable.setdefault(holding.resource, set())
        if ordinary_init:
            devices |= set(holding.device_ids)
        else:
            devices -= set(holding.device_ids)


def pod_resources(
    pods: Sequence[tuple[Mapping[str, Any], PodUid]],
    ledger: DeviceLedger,
    claims: Callable[[Mapping[str, Any], Mapping[str, Any]], tuple[ClaimDevices, ...]] = lambda _pod, _container: (),
) -> list[PodResources]:
    """Returns the pod-resources listing of running pods: app containers and restartable init containers.

    Args:
        pods: each pod as decoded JSON with its UID.
        ledger: the devices of each container.
        claims: returns the devices that a pod's container has by ResourceClaims.
    """
    listing: list[PodResources] = []
    for pod, uid in pods:
        spec = pod["spec"]
        sidecars = [each for each in spec.get("initContainers") or () if each.get("restartPolicy") == "Always"]
        containers = tuple(
            ContainerResources(
                name=each["name"],
                devices=tuple(
                    ContainerDevices(resource_name=held.resource, device_ids=held.device_ids)
                    for held in ledger.holdings(uid, each["name"])
                ),
                claims=claims(pod, each),
            )
            for each in [*sidecars, *spec.get("containers", ())]
        )
        metadata = pod["metadata"]
        listing.append(PodResources(name=metadata["name"], namespace=metadata["namespace"], containers=containers))
    return listing
