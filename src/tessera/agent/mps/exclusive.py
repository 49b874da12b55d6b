"""Compute modes of the cards that MPS serves: one process at a time, which is the MPS server.

In the mode ``EXCLUSIVE_PROCESS`` a container without a way to the daemon cannot compute beside those that share, which
is what keeps the limits (NVIDIA MPS documentation, on compute modes). A card is taken for one resource and can be taken
for another only after it was given back, and not while it computes for somebody who came to it otherwise: who has a
whole card or a time slice would get no second process onto it, and no first one either while the other computes. A
card that nobody has taken and that is in the mode all the same was taken before the record was lost: who holds parts of
it are clients. Only modes that were set here are set back; after a restart the record tells which.
"""

import contextlib
from collections.abc import Callable, Collection

from tessera.agent.mps.state import RecordFile
from tessera.nvml.attributes import ComputeMode
from tessera.nvml.errors import GpuLost, NotFound, NotSupported
from tessera.nvml.interface import GpuUuid
from tessera.nvml.worker import AsyncNvml


class ExclusiveCards:
    """The cards that are in the mode ``EXCLUSIVE_PROCESS`` for MPS.

    Args:
        hardware: the node's cards.
        record: tells, over restarts, which cards were taken.
        occupied: what speaks against taking a card besides processes that compute on it; empty if nothing does.
    """

    def __init__(self, hardware: AsyncNvml, record: RecordFile, occupied: Callable[[str], str]) -> None:
        self._hardware = hardware
        self._occupied = occupied
        self._record = record

    def of(self, resource: str) -> frozenset[str]:
        """UUIDs of the cards taken for a resource."""
        return frozenset(card for card, owner in self._record.exclusive.items() if owner == resource)

    async def obstacles(self, resource: str, cards: Collection[str]) -> dict[str, str]:
        """The cards that cannot be taken for a resource now, and why; those that are taken for it can.

        Raises:
            NvmlError: a card cannot be asked.
        """
        found = {card: await self._obstacle(resource, card) for card in cards}
        return {card: why for card, why in found.items() if why}

    async def _obstacle(self, resource: str, card: str) -> str:
        if (owner := self._record.exclusive.get(card)) is not None:
            return "" if owner == resource else f"card {card} is still served by the MPS daemon of {owner}"
        try:
            ours = await self._hardware.compute_mode(GpuUuid(card)) is ComputeMode.EXCLUSIVE_PROCESS
            if not ours and (why := self._occupied(card)):
                return f"card {card}: {why}"
            processes = await self._hardware.processes(GpuUuid(card))
        except GpuLost:
            return f"card {card} is lost"
        return f"card {card} still computes for others than MPS" if processes else ""

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
