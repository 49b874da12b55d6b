"""The GPUs that are not cut on demand: whole, shared, or cut by a MIG configuration."""

from collections.abc import Sequence

from tessera.agent.inventory.card_ownership import CardOwnership
from tessera.agent.inventory.gpu_inventory import GpuState, InventoryReader, fixed_memory_gib


class StaticGpus:
    """The static GPUs of the node, from the last reading of the inventory.

    Args:
        inventory: the node's GPUs.
        ownership: the side of the agent that has each GPU.
    """

    def __init__(self, inventory: InventoryReader, ownership: CardOwnership) -> None:
        self._inventory = inventory
        self._ownership = ownership

    def gpus(self) -> Sequence[GpuState]:
        """The static GPUs by index, without those that are about to be cut on demand."""
        static = self._ownership.static_gpus()
        return [
            gpu
            for gpu in self._inventory.inventory.gpus
            if gpu.uuid in static and not self._ownership.is_leaving(gpu.uuid)
        ]

    def mig_memory_gib(self) -> int:
        """Memory of all MIG devices on these GPUs as pods are charged for it, GiB."""
        return fixed_memory_gib(self.gpus())
