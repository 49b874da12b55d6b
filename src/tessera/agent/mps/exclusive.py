"""Compute modes of the cards that MPS serves: one process at a time, which is the MPS server.

In the mode ``EXCLUSIVE_PROCESS`` a container without a way to the daemon cannot compute beside those that share, which
is what keeps the limits (NVIDIA MPS documentation, on compute modes). A card is taken for one resource and can be taken
for another only after it was given back. Only modes that were set here are set back; after a restart the record tells
which.
"""

import contextlib
from collections.abc import Collection

from tessera.agent.mps.record import RecordFile
from tessera.nvml.attributes import ComputeMode
from tessera.nvml.errors import GpuLost, NotFound, NotSupported
from tessera.nvml.interface import GpuUuid
from tessera.nvml.worker import AsyncNvml


class ExclusiveCards:
    """The cards that are in the mode ``EXCLUSIVE_PROCESS`` for MPS.

    Args:
        hardware: the node's cards.
        record: tells, over restarts, which cards were taken.
    """

    def __init__(self, hardware: AsyncNvml, record: RecordFile) -> None:
        self._hardware = hardware
        self._record = record

    def of(self, resource: str) -> frozenset[str]:
        """UUIDs of the cards taken for a resource."""
        return frozenset(card for card, owner in self._record.exclusive.items() if owner == resource)

    def in_the_way(self, resource: str, cards: Collection[str]) -> str:
        """Says which card is still taken for another resource; empty if all are free."""
        owners = self._record.exclusive
        for card in cards:
            if (owner := owners.get(card, resource)) != resource:
                return f"card {card} is still served by the MPS daemon of {owner}"
        return ""

    async def take(self, resource: str, cards: Collection[str]) -> None:
        """Puts cards into the mode; those that are in it already are left alone.

        Raises:
            NvmlError: a card refuses; those before it stay taken.
            OSError: the record cannot be written.
        """
        for card in cards:
            self._record.took(card, resource)
            if await self._hardware.compute_mode(GpuUuid(card)) is not ComputeMode.EXCLUSIVE_PROCESS:
                await self._hardware.set_compute_mode(GpuUuid(card), ComputeMode.EXCLUSIVE_PROCESS)

    async def give_back(self, cards: Collection[str]) -> None:
        """Puts cards back into the default mode.

        A card in MIG mode is in it already. One that is lost or was taken out comes back in it: the mode ends with
        the driver's hold on the card (NVML, on ``nvmlDeviceSetComputeMode``).

        Raises:
            NvmlError: a card refuses; it and those after it stay taken.
            OSError: the record cannot be written.
        """
        for card in sorted(cards):
            with contextlib.suppress(GpuLost, NotFound, NotSupported):
                await self._hardware.set_compute_mode(GpuUuid(card), ComputeMode.DEFAULT)
            self._record.gave_back(card)
