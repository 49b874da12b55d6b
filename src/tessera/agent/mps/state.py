"""What this node's agent did for MPS, on disk: daemons it started, and cards whose compute mode it changed.

Written before the deed, so that an agent that is killed at any instruction leaves nothing that the next one does not
know. What a crash of the machine may take from the file, daemons and compute modes, its reboot takes as well.
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
        mark: what it is found again by.
        cards: UUIDs of the cards that it serves.
    """

    mark: DaemonId
    cards: tuple[str, ...]


class _StoredState(msgspec.Struct, frozen=True):
    daemons: Mapping[str, DaemonRecord] = {}
    exclusive: Mapping[str, str] = {}


class MpsState:
    """The record and its file. One agent at a time writes it.

    Args:
        path: the file.
    """

    def __init__(self, path: Path) -> None:
        self._file = StateFile(path, _StoredState)
        self._record = self._file.load() or _StoredState()

    @property
    def daemons(self) -> Mapping[str, DaemonRecord]:
        """The daemons by resource. One that is listed may have ended."""
        return self._record.daemons

    @property
    def exclusive(self) -> Mapping[str, str]:
        """The cards, by UUID, whose compute mode was or was about to be changed, with the resource it was done for."""
        return self._record.exclusive

    def add_daemon(self, resource: str, daemon: DaemonRecord) -> None:
        """Notes a daemon.

        Raises:
            OSError: the file cannot be written; the daemon must not work then. The same holds for all that follow.
        """
        self._save(_StoredState({**self.daemons, resource: daemon}, self.exclusive))

    def remove_daemon(self, resource: str) -> None:
        """Forgets a daemon."""
        self._save(
            _StoredState({name: each for name, each in self.daemons.items() if name != resource}, self.exclusive)
        )

    def add_card(self, card: str, resource: str) -> None:
        """Notes a card whose compute mode is about to change."""
        self._save(_StoredState(self.daemons, {**self.exclusive, card: resource}))

    def remove_card(self, card: str) -> None:
        """Forgets a card whose compute mode is the default one again."""
        self._save(_StoredState(self.daemons, {uuid: each for uuid, each in self.exclusive.items() if uuid != card}))

    def _save(self, record: _StoredState) -> None:
        if record != self._record:
            self._file.save(record)
            self._record = record


class ExclusiveCards:
    """The cards that are in the mode ``EXCLUSIVE_PROCESS`` for MPS.

    Args:
        hardware: the node's cards.
        record: tells, over restarts, which cards were taken.
        occupied: what speaks against taking a card besides processes that compute on it; empty if nothing does.
    """

    def __init__(self, hardware: AsyncNvml, record: MpsState, occupied: Callable[[str], str]) -> None:
        self._hardware = hardware
        self._occupied = occupied
        self._record = record

    def cards_of(self, resource: str) -> frozenset[str]:
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
