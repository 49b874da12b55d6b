"""What this node's agent did for MPS: the daemons it started, on disk, and the cards whose compute mode it changed.

Each entry is written before the act, so that an agent that is killed at any instruction leaves nothing that the next
one does not know. A crash of the machine may lose the file; its reboot ends the daemons and resets the compute modes
too.

In the compute mode ``EXCLUSIVE_PROCESS`` only the MPS server may compute on a card. A container without a way to the
daemon cannot compute beside those that share, which is what keeps the limits (NVIDIA MPS documentation, on compute
modes). A card is taken for one resource, and can be taken for another only after it was released. A card is not taken
while another process computes on it: its owner, with a whole card or a time slice, would get no second process onto it.
A card that no record has and that is in the mode all the same was taken before the record was lost: the processes on it
are MPS clients. Only modes that were set here are set back; after a restart the record says which.
"""

import contextlib
from collections.abc import Callable, Collection, Mapping
from pathlib import Path

import msgspec

from tessera.agent.base.state_file import StateFile
from tessera.agent.mps.interfaces import DaemonId
from tessera.nvml.asynchronous.async_nvml import AsyncNvml
from tessera.nvml.attributes import ComputeMode
from tessera.nvml.errors import GpuLost, NotFound, NotSupported
from tessera.nvml.interface import GpuUuid


class DaemonRecord(msgspec.Struct, frozen=True):
    """A daemon that was started.

    Attributes:
        mark: the daemon's id.
        cards: UUIDs of the cards that it serves.
    """

    mark: DaemonId
    cards: tuple[str, ...]


class _StoredState(msgspec.Struct, frozen=True):
    """The content of the file: daemons by resource, and the resource for which each card was taken."""

    daemons: Mapping[str, DaemonRecord] = {}
    exclusive: Mapping[str, str] = {}


class MpsState:
    """The record of daemons and cards, and its file. One agent at a time writes it.

    Args:
        path: the file.
    """

    def __init__(self, path: Path) -> None:
        self._file = StateFile(path, _StoredState)
        self._record = self._file.load() or _StoredState()

    @property
    def daemons(self) -> Mapping[str, DaemonRecord]:
        """The daemons by resource; a listed one may have ended."""
        return self._record.daemons

    @property
    def exclusive(self) -> Mapping[str, str]:
        """The cards whose compute mode was or was about to be changed, by UUID, with the resource that took them."""
        return self._record.exclusive

    def add_daemon(self, resource: str, daemon: DaemonRecord) -> None:
        """Records a daemon.

        Raises:
            OSError: the file cannot be written, here and in the methods below; the daemon must not work then.
        """
        self._save(_StoredState({**self.daemons, resource: daemon}, self.exclusive))

    def remove_daemon(self, resource: str) -> None:
        """Removes a daemon."""
        self._save(
            _StoredState({name: each for name, each in self.daemons.items() if name != resource}, self.exclusive)
        )

    def add_card(self, card: str, resource: str) -> None:
        """Records a card whose compute mode is about to change."""
        self._save(_StoredState(self.daemons, {**self.exclusive, card: resource}))

    def remove_card(self, card: str) -> None:
        """Removes a card whose compute mode is the default one again."""
        self._save(_StoredState(self.daemons, {uuid: each for uuid, each in self.exclusive.items() if uuid != card}))

    def _save(self, record: _StoredState) -> None:
        if record != self._record:
            self._file.save(record)
            self._record = record


class ExclusiveCards:
    """The cards that are in the mode ``EXCLUSIVE_PROCESS`` for MPS.

    Args:
        hardware: the node's cards.
        record: which cards were taken, over restarts.
        occupied: why a card cannot be taken, besides processes that compute on it; empty if it can.
    """

    def __init__(self, hardware: AsyncNvml, record: MpsState, occupied: Callable[[str], str]) -> None:
        self._hardware = hardware
        self._occupied = occupied
        self._record = record

    def cards_of(self, resource: str) -> frozenset[str]:
        """UUIDs of the cards taken for a resource."""
        return frozenset(card for card, owner in self._record.exclusive.items() if owner == resource)

    async def obstacles(self, resource: str, cards: Collection[str]) -> dict[str, str]:
        """The cards that cannot be taken for a resource now, and why. A card that it already has can be.

        Raises:
            NvmlError: a card cannot be read.
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
        """Puts cards into the mode, except those that are in it already.

        Raises:
            NvmlError: a card refuses; those before it stay taken.
            OSError: the record cannot be written.
        """
        for card in cards:
            self._record.add_card(card, resource)
            if await self._hardware.compute_mode(GpuUuid(card)) is not ComputeMode.EXCLUSIVE_PROCESS:
                await self._hardware.set_compute_mode(GpuUuid(card), ComputeMode.EXCLUSIVE_PROCESS)

    async def release(self, cards: Collection[str]) -> None:
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
            self._record.remove_card(card)
