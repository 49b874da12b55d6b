"""Whole cards and shares: those of nodes as cards of the fleet, the pods that hold them, and the mix of requests.

Rules of the inventory:

- A node has as many devices of a resource as kubelet says are allocatable. They are alike, so they are numbered.
- Every pod that requests devices holds them here from the moment at which it is bound, or pinned by Tessera, whoever
  placed it; the scheduler counts in the same way.
- A pod may request more devices than the node still has, for instance after a card has failed. It then holds those that
  are left.

The ratings of nodes use the mix of the requests of pods that count. Its rules:

- A pod counts as long as it holds devices, whoever placed it. So the mix follows the cluster as pods end, and a new
  controller that sees the same pods comes to the same mix.
- CPU and memory of such a pod are those that its node has allocated, not those of a resize that waits, and at most what
  the node had when the pod was last counted. A pod that names its node itself may ask for any amount until kubelet
  refuses it.
- Of the waiting pods of a namespace the oldest count, up to a limit of devices: enough that a card is kept for a pod
  that waits for it, and too little for a tenant who makes many gated pods. They count for the shares of the requests
  and the prices of models, not for the CPU and memory beside a card: no node has allocated these amounts yet.
"""

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from tessera.api.instaslice import Slice
from tessera.api.names import HOSTNAME_LABEL, NodeName, PodUid, device_id
from tessera.controller.objects.node_info import UNKNOWN_MODEL, NodeDevices, NodeInfo
from tessera.controller.objects.pod_constraints import NodeConstraints
from tessera.controller.objects.pod_info import DEVICES, PodInfo
from tessera.controller.slicing.state.allocation import FleetInventory
from tessera.limits import CARD_MODELS
from tessera.mig.geometry import Geometry
from tessera.placement.card_demand import CPU_STEP, MEMORY_STEP
from tessera.placement.devices import device_geometry


class DeviceInventory:
    """The devices of all nodes.

    Args:
        inventory: the cards, to which this class adds the devices.

    Attributes:
        used: True once a pod waits for devices or a namespace is managed; before, no node has devices here. Never
            becomes False again.
        nodes: by geometry of a device, the nodes that have such devices; no set is empty.
        changes: number of changes of ``nodes``.
        rebuilt: nodes whose devices have changed; the next decision empties it.
    """

    def __init__(self, inventory: FleetInventory) -> None:
        self._inventory = inventory
        self._fleet = inventory.fleet
        self.used = False
        self.nodes: dict[Geometry, set[NodeName]] = {}
        self.changes = 0
        self.rebuilt: set[NodeName] = set()
        #: The devices of each node, as last read; no entry is empty.
        self._devices: dict[NodeName, tuple[NodeDevices, ...]] = {}
        #: The geometries, so that alike devices share one.
        self._geometries: dict[tuple[str, str, int, int], Geometry] = {}

    def __contains__(self, node: object) -> bool:
        return node in self._devices

    def resources(self, node: NodeName) -> frozenset[str]:
        """Returns the resources of which a node has devices."""
        return frozenset(each.resource for each in self._devices.get(node, ()))

    def put(self, node: NodeName, devices: tuple[NodeDevices, ...]) -> bool:
        """Replaces the devices of a node, and with them what pods hold of them; False if they are the same."""
        if not self.used or self._devices.get(node, ()) == devices:
            return False
        self._remove(node)
        cards: dict[str, Geometry] = {}
        for each in devices:
            geometry = self._geometry(each)
            cards |= {f"{each.resource}/{number}": geometry for number in range(each.count)}
            self.nodes.setdefault(geometry, set()).add(node)
        self._inventory.put_cards(DEVICES, node, cards)
        if devices:
            self._devices[node] = devices
        self.rebuilt.add(node)
        self.changes += 1
        return True

    def _remove(self, node: NodeName) -> None:
        for each in self._devices.pop(node, ()):
            geometry = self._geometry(each)
            self.nodes[geometry].discard(node)
            if not self.nodes[geometry]:
                del self.nodes[geometry]

    def _geometry(self, devices: NodeDevices) -> Geometry:
        """Returns the shared geometry; nodes may say anything, so models beyond a limit count as one."""
        key = (devices.model, devices.resource, devices.slots, devices.memory_gb)
        if key not in self._geometries and len(self._geometries) >= CARD_MODELS:
            key = (UNKNOWN_MODEL, devices.resource, devices.slots, 0)
        if key not in self._geometries:
            self._geometries[key] = device_geometry(*key)
        return self._geometries[key]

    def free_slices(self, node: NodeName, resources: Iterable[str]) -> Sequence[Slice]:
        """Returns a free device for each of these resources, as long as there are some."""
        if node not in self._devices:
            return ()
        free = [card for card in self._fleet.cards(node) if not card.occupancy and "/" in card.gpu]
        found = []
        for resource in resources:
            card = next((each for each in free if each.table.name_of(resource)), None)
            if card is not None:
                free.remove(card)
                size = card.geometry.slots
                name = device_id(card.gpu, resource, 0)
                found.append(Slice(id=name, profile=resource, gpu_uuid=card.gpu, start=0, size=size))
        return found

    def has_free(self, node: NodeName, resources: Iterable[str]) -> bool:
        """True if a node has a free device of one of these resources."""
        return bool(self.free_slices(node, set(resources)))


#: Most devices: cards and shares of a namespace's oldest waiting pods that count for shares of requests and prices of
#: models. Two nodes; gated pods of one tenant hardly change where others go; pods count in full once they hold cards.
COUNTED_WAITING_DEVICES = 16

_MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class AskedDevices:
    """What pods request that differ in nothing else of interest.

    Attributes:
        resource: the resource of the devices.
        devices: their number.
        cpu: thousandths of a CPU.
        memory: MiB.
        constraints: the nodes that suit, without tolerations and without the pin of a placed pod.
    """

    resource: str
    devices: int
    cpu: int
    memory: int
    constraints: NodeConstraints


def asked_devices(pod: PodInfo, node: NodeInfo | None = None) -> AskedDevices | None:
    """Returns what a pod requests, in whole steps of CPU and memory; None without devices, or with two resources.

    Args:
        pod: the pod.
        node: the node where it holds devices: then, what it has there counts; None for what it asks for.
    """
    if len(set(pod.devices)) != 1:
        return None
    cpu, memory = (_amount(name, pod, node) for name in ("cpu", "memory"))
    memory //= _MIB
    selector = tuple(each for each in pod.constraints.selector if each[0] != HOSTNAME_LABEL)
    return AskedDevices(
        pod.devices[0],
        len(pod.devices),
        -(-cpu // CPU_STEP) * CPU_STEP,
        -(-memory // MEMORY_STEP) * MEMORY_STEP,
        replace(pod.constraints, selector=selector, tolerations=()),
    )


def _amount(resource: str, pod: PodInfo, node: NodeInfo | None) -> int:
    if node is None:
        return pod.amounts.get(resource, 0)
    held = pod.amounts if pod.allocated is None else pod.allocated
    return min(held.get(resource, 0), node.allocatable.get(resource, 0))


class RequestCounts(Protocol):
    """Counts requests."""

    def count(self, asked: AskedDevices, pods: int, *, hold: bool) -> None:
        """Counts pods with a request, which they hold or wait for; fewer of them with a negative number."""
        ...


#: A waiting pod: creation time, UID, what it requests.
_Waiting = tuple[str, PodUid, AskedDevices]


class DeviceDemand:
    """Counts what pods request.

    Args:
        counts: takes over what is counted.
    """

    def __init__(self, counts: RequestCounts) -> None:
        self._counts = counts
        #: By pod that holds devices, its request.
        self._held: dict[PodUid, AskedDevices] = {}
        #: By waiting pod its namespace, and by namespace its waiting pods, the oldest first; no list is empty.
        self._namespace_of: dict[PodUid, tuple[str, _Waiting]] = {}
        self._waiting: dict[str, list[_Waiting]] = {}
        #: By namespace, the first of these, which count; no dict is empty.
        self._counted: dict[str, dict[PodUid, AskedDevices]] = {}

    def observe(self, uid: PodUid, pod: PodInfo | None, node: NodeInfo | None) -> None:
        """Counts a pod as it is now.

        Args:
            uid: its UID.
            pod: the pod; None once it has gone or ended.
            node: the node where it holds devices; None if it waits.
        """
        asked = asked_devices(pod, node) if pod is not None else None
        self._hold(uid, asked if node is not None else None)
        waits = None if pod is None or asked is None or node is not None else (pod.namespace, (pod.created, uid, asked))
        self._wait(uid, waits)

    def _hold(self, uid: PodUid, asked: AskedDevices | None) -> None:
        before = self._held.pop(uid, None)
        if asked is not None:
            self._held[uid] = asked
        if before != asked:
            if before is not None:
                self._counts.count(before, -1, hold=True)
            if asked is not None:
                self._counts.count(asked, 1, hold=True)

    def _wait(self, uid: PodUid, waits: tuple[str, _Waiting] | None) -> None:
        before = self._namespace_of.pop(uid, None)
        if waits is not None:
            self._namespace_of[uid] = waits
        if before == waits:
            return
        if before is not None:
            namespace, one = before
            place = bisect_left(self._waiting[namespace], one[:2], key=_rank)
            del self._waiting[namespace][place]
            self._recount(namespace, place)
        if waits is not None:
            namespace, one = waits
            place = bisect_left(self._waiting.setdefault(namespace, []), one[:2], key=_rank)
            self._waiting[namespace].insert(place, one)
            self._recount(namespace, place)

    def _recount(self, namespace: str, place: int) -> None:
        """After a change at this place of the waiting pods, counts the first of them."""
        before = self._counted.get(namespace, {})
        if place > len(before):
            return  # behind the first pod that does not count
        now: dict[PodUid, AskedDevices] = {}
        devices = 0
        for _, uid, asked in self._waiting[namespace]:
            devices += asked.devices
            if devices > COUNTED_WAITING_DEVICES:
                break
            now[uid] = asked
        if now:
            self._counted[namespace] = now
        else:
            self._counted.pop(namespace, None)
        if not self._waiting[namespace]:
            del self._waiting[namespace]
        for uid, asked in before.items():
            if now.get(uid) is not asked:
                self._counts.count(asked, -1, hold=False)
        for uid, asked in now.items():
            if before.get(uid) is not asked:
                self._counts.count(asked, 1, hold=False)


def _rank(one: _Waiting) -> tuple[str, PodUid]:
    return one[:2]
