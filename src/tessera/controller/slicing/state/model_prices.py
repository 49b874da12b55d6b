"""Prices of card models: a pod that any card suits does not take a card that others will need.

See :mod:`tessera.placement.scarcity` for the price. Of models with one price the one with the most devices is taken.

The demand is that of all living pods with devices, running ones included. So the prices outlive the controller.
"""

from collections import Counter
from dataclasses import replace

from tessera.api.names import HOSTNAME_LABEL, NodeName, PodUid
from tessera.controller.cluster.node_index import NodeIndex
from tessera.controller.objects.node_constraints import NodeConstraints
from tessera.controller.objects.pod_info import PodInfo
from tessera.controller.slicing.state.device_inventory import DeviceInventory
from tessera.limits.planning import PRICED_CONSTRAINTS
from tessera.placement.card_table import CardTable
from tessera.placement.fleet import Fleet
from tessera.placement.scarcity import scarcity

#: Added to the price of the model with the fewest devices; a model with very many gets next to nothing.
_RARITY = 1e-3


class ModelPrices:
    """Sets the price of each model of devices.

    Args:
        fleet: the cards, whose tables get the prices.
        devices: the nodes of each model.
        index: says which nodes a pod selects.

    Attributes:
        cpu_a_slot: the CPU that these pods ask for beside a memory slot of devices on average; 0 if unknown.
    """

    def __init__(self, fleet: Fleet, devices: DeviceInventory, index: NodeIndex) -> None:
        self._fleet = fleet
        self._devices = devices
        self._index = index
        self.cpu_a_slot = 0.0
        #: The CPU of all these pods, and their devices by resource.
        self._cpu = 0
        self._resources: Counter[str] = Counter()
        #: By pod that requests devices, its constraints without pin and tolerations, its devices, and its CPU.
        self._of: dict[PodUid, tuple[NodeConstraints, tuple[str, ...], int]] = {}
        #: The devices requested under each of these constraints; no count is 0.
        self._asked: Counter[NodeConstraints] = Counter()

    def observe(self, uid: PodUid, pod: PodInfo | None) -> None:
        """Counts a pod as it is now; None once it is gone."""
        new = None
        if pod is not None and pod.devices and not pod.finished:
            selector = tuple(each for each in pod.constraints.selector if each[0] != HOSTNAME_LABEL)
            new = (replace(pod.constraints, selector=selector, tolerations=()), pod.devices, pod.amounts.get("cpu", 0))
        old = self._of.get(uid)
        if new == old:
            return
        if old is not None:
            del self._of[uid]
            self._count(*old, sign=-1)
        if new is not None:
            self._of[uid] = new
            self._count(*new)

    def _count(self, constraints: NodeConstraints, devices: tuple[str, ...], cpu: int, sign: int = 1) -> None:
        self._cpu += sign * cpu
        self._asked[constraints] += sign * len(devices)
        if not self._asked[constraints]:
            del self._asked[constraints]
        for resource in devices:
            self._resources[resource] += sign
            if not self._resources[resource]:
                del self._resources[resource]

    def update(self) -> None:
        """Sets the prices of all models, and the CPU beside a slot, for the next batch."""
        tables = [table for table in self._fleet.tables if table.geometry in self._devices.nodes]
        sizes = {
            name: table.size_of(name) for table in tables for name in (row.name for row in table.geometry.profiles)
        }
        slots = sum(sizes.get(resource, 0) * count for resource, count in self._resources.items())
        self.cpu_a_slot = self._cpu / slots if slots else 0.0
        if len(tables) < 2:
            for table in tables:
                table.price = 0.0
            return
        masks = {table: self._mask(self._devices.nodes[table.geometry]) for table in tables}
        histogram = self._fleet.histogram()
        free = {table: histogram[table.geometry][0] for table in tables}
        pinned, asked = self._pinned(masks)
        for table in tables:
            price = scarcity(pinned[table], asked, sum(free.values()), free[table])
            table.price = round(price + _RARITY / histogram[table.geometry].total(), 9)

    def _mask(self, nodes: set[NodeName]) -> int:
        mask = 0
        for node in nodes:
            mask |= self._index.mask_of(node)
        return mask

    def _pinned(self, masks: dict[CardTable, int]) -> tuple[dict[CardTable, float], int]:
        """Returns the devices that only some models suit, by model, and all devices that are requested."""
        pinned = dict.fromkeys(masks, 0.0)
        asked = 0
        for constraints, count in self._asked.most_common(int(PRICED_CONSTRAINTS)):
            asked += count
            selected = self._index.selected_nodes(constraints)
            able = [table for table in masks if any(map(table.name_of, constraints.devices))]
            suited = [table for table in able if masks[table] & selected]
            if len(suited) < len(able):
                for table in suited:
                    pinned[table] += count / len(suited)
        return pinned, asked
