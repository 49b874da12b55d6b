"""Finds the part of each card that a pod of the node holds: a card, a share of it, a MIG device, a slice on demand.

Kubelet knows the holders of static devices, the slices their own pods. A lost card lists no MIG device, so the part of
a device is remembered for as long as a pod holds it. After a restart of the agent a device that no card lists is on the
card that cannot be read, or whose MIG devices cannot, if there is only one; of several, nobody knows which. The slices
of a lost card are known from the node's Instaslice object, though not their GPU instances: they are then held as a part
of the whole card.
"""

from collections.abc import Iterator, Mapping, Sequence

from tessera.agent.base.node_objects import ApiMirror
from tessera.agent.inventory.device_health import DeviceScope
from tessera.agent.inventory.device_users import DeviceUsers
from tessera.agent.inventory.gpu_inventory import GpuInventory, InventoryReader
from tessera.agent.inventory.positions import SliceSource
from tessera.api.names import PodUid
from tessera.nvml.known_cards import UNREAD

#: The parts of cards that each pod holds.
Holdings = Mapping[PodUid, frozenset[DeviceScope]]


class PartHolders:
    """Reads which pods hold which parts.

    Args:
        users: asks kubelet for the holders of static devices.
        slices: the slices on demand.
        objects: the node's Instaslice object.
        inventory: the cards as last listed.
    """

    def __init__(self, users: DeviceUsers, slices: SliceSource, objects: ApiMirror, inventory: InventoryReader) -> None:
        self._users = users
        self._slices = slices
        self._objects = objects
        self._inventory = inventory
        #: The part of each device that is listed now, or that was listed and is held.
        self._parts: dict[str, DeviceScope] = {}

    async def read(self) -> Holdings:
        """Returns the parts that pods hold; pods that hold none, or none that is known, are missing.

        Raises:
            ConnectionError: kubelet did not answer.
        """
        users = await self._users.read()
        leases = self._slices.leases()
        inventory = self._inventory.inventory
        listed = _list_parts(inventory)
        held = users.keys() | {each.device for each in leases}
        self._parts = {device: part for device, part in self._parts.items() if device in held} | listed
        found: dict[PodUid, set[DeviceScope]] = {}
        silent = [gpu.uuid for gpu in inventory.gpus if gpu.error or gpu.info.lost]
        for device, each in users.items():
            part = self._parts.get(device) or _unlisted_part(device, silent)
            if part is not None:
                for user in each:
                    found.setdefault(user.pod, set()).add(part)
        for lease in leases:
            if lease.device in self._parts:
                found.setdefault(lease.pod, set()).add(self._parts[lease.device])
        for pod, gpu in self._recorded_slices():
            parts = found.setdefault(pod, set())
            if not any(part.gpu == gpu for part in parts):
                parts.add(DeviceScope(gpu))
        return {pod: frozenset(parts) for pod, parts in found.items()}

    def _recorded_slices(self) -> Iterator[tuple[PodUid, str]]:
        item = self._objects.instaslice()
        for pod, result in item.status.pod_allocation_results.items() if item is not None else ():
            for gpu in {result.gpu_uuid, *(each.gpu_uuid for each in result.slices)}:
                yield PodUid(pod), gpu


def _list_parts(inventory: GpuInventory) -> dict[str, DeviceScope]:
    """The part of each card and MIG device that is listed now, by UUID."""
    parts = {gpu.uuid: DeviceScope(gpu.uuid) for gpu in inventory.gpus}
    for gpu in inventory.gpus:
        for instance in gpu.instances:
            for compute in instance.compute_instances:
                parts[compute.mig_uuid] = DeviceScope(gpu.uuid, instance.gi_id, compute.ci_id)
    return parts


def _unlisted_part(device: str, silent: Sequence[str]) -> DeviceScope | None:
    """The card of a device that no card lists; ``silent`` are the cards whose devices cannot be listed."""
    if len(silent) != 1:
        return None
    possible = device.startswith("MIG-") or silent[0].startswith(UNREAD)  # a card is no part of another one
    return DeviceScope(silent[0]) if possible else None
