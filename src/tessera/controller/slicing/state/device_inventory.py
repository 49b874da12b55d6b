"""The whole cards and shares of nodes, as cards of the fleet, and the pods that hold them.

Rules:

- A node has as many devices of a resource as kubelet says are allocatable. They are alike, so they are numbered.
- Every pod that requests devices holds them here from the moment at which it is bound, or pinned by Tessera, whoever
  placed it; the scheduler counts in the same way.
- A pod may request more devices than the node still has, for instance after a card has failed. It then holds those that
  are left.
"""

from collections.abc import Iterable, Sequence

from tessera.api.instaslice import Slice
from tessera.api.names import NodeName, device_id
from tessera.controller.objects.node_devices import UNKNOWN_MODEL, NodeDevices
from tessera.controller.objects.pod_info import DEVICES
from tessera.controller.slicing.state.fleet_inventory import FleetInventory
from tessera.limits.planning import CARD_MODELS
from tessera.mig.geometry import Geometry
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
