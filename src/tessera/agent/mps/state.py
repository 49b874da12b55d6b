"""Records on disk the MPS daemons that this node's agent started, and the cards whose compute mode it changed.

The agent writes each entry before it acts. So an agent that is killed at any moment leaves nothing unknown to the next
one. A crash of the machine may lose the file; its reboot ends the daemons and resets the compute modes too.

In the compute mode ``EXCLUSIVE_PROCESS`` only the MPS server may compute on a card. A container without a way to the
daemon cannot compute beside the MPS clients, and this keeps the limits (NVIDIA MPS documentation, on compute modes). A
card is taken for one resource, and can be taken for another only after it was released. A card is not taken while
another process computes on it: the pod of that process, with a whole card or a time slice, could start no second one. A
card in the mode without a record was taken before the record was lost: the processes on it are MPS clients. The agent
sets back only modes that it has set; after a restart the record names them.
"""

import contextlib
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path

import msgspec

from tessera.agent.base.node_files import StateFile
from tessera.agent.mps.interfaces import DaemonId
from tessera.clock import Clock
from tessera.nvml.asynchronous import AsyncNvml
from tessera.nvml.errors import GpuLost, NotSupported, NvmlError, NvmlNotFound
from tessera.nvml.interface import ComputeMode, GpuUuid


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
        """The cards whose compute mode was changed or about to be, by UUID, with the resource that took them."""
        return self._record.exclusive

    def add_daemon(self, resource: str, daemon: DaemonRecord) -> None:
        """Records a daemon.

        Raises:
            OSError: the file cannot be written; then the daemon must not work. The methods below raise it too.
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


#: Seconds for which a card that has refused the mode is left out.
REFUSED_PAUSE = 60.0


class ExclusiveCards:
    """The cards that are in the mode ``EXCLUSIVE_PROCESS`` for MPS. A card that refuses a call hinders no other.

    Args:
        hardware: the node's cards.
        record: the cards that were taken, over restarts.
        clock: the time.
        describe_occupant: returns why a card cannot be taken, besides processes that compute on it; empty if it can.
    """

    def __init__(
        self, hardware: AsyncNvml, record: MpsState, clock: Clock, describe_occupant: Callable[[str], str]
    ) -> None:
        self._hardware = hardware
        self._clock = clock
        #: The cards that have refused the mode: the text, and monotonic seconds until which they are left out.
        self._refused: dict[str, tuple[str, float]] = {}
        self._describe_occupant = describe_occupant
        self._record = record

    def cards_of(self, resource: str) -> frozenset[str]:
        """UUIDs of the cards taken for a resource."""
        return frozenset(card for card, owner in self._record.exclusive.items() if owner == resource)

    async def obstacles(self, resource: str, cards: Collection[str]) -> dict[str, str]:
        """The cards that cannot be taken for a resource now, and why. The resource's own cards can be taken."""
        found = {card: await self._obstacle(resource, card) for card in cards}
        return {card: why for card, why in found.items() if why}

    async def _obstacle(self, resource: str, card: str) -> str:
        text, until = self._refused.get(card, ("", 0.0))
        if text and self._clock.monotonic() < until:
            return text
        if (owner := self._record.exclusive.get(card)) is not None:
            return "" if owner == resource else f"card {card} is still served by the MPS daemon of {owner}"
        try:
            ours = await self._hardware.compute_mode(GpuUuid(card)) is ComputeMode.EXCLUSIVE_PROCESS
            if not ours and (why := self._describe_occupant(card)):
                return f"card {card}: {why}"
            processes = await self._hardware.processes(GpuUuid(card))
        except GpuLost:
            return f"card {card} is lost"
        except NvmlError as error:
            return f"card {card} cannot be read: {error}"
        return f"card {card} still computes for others than MPS" if processes else ""

    async def take(self, resource: str, cards: Iterable[str]) -> tuple[str, ...]:
        """Sets the mode of cards that are not in it yet; returns the cards that are in it now.

        Raises:
            OSError: the record cannot be written.
        """
        taken = []
        for card in cards:
            self._record.add_card(card, resource)
            try:
                if await self._hardware.compute_mode(GpuUuid(card)) is not ComputeMode.EXCLUSIVE_PROCESS:
                    await self._hardware.set_compute_mode(GpuUuid(card), ComputeMode.EXCLUSIVE_PROCESS)
            except NvmlError as error:
                text = f"card {card} does not serve MPS alone: {error}"
                self._refused[card] = text, self._clock.monotonic() + REFUSED_PAUSE
            else:
                self._refused.pop(card, None)
                taken.append(card)
        return tuple(taken)

    async def release(self, cards: Collection[str]) -> None:
        """Sets cards back to the default mode.

        A card in MIG mode is in the default mode already. A card that is lost or was removed comes back in it: the
        mode ends when the driver loses the card (NVML, on ``nvmlDeviceSetComputeMode``).

        Raises:
            NvmlError: a card refuses; it stays taken, the others are released.
            OSError: the record cannot be written.
        """
        refusal: NvmlError | None = None
        for card in sorted(cards):
            try:
                with contextlib.suppress(GpuLost, NvmlNotFound, NotSupported):
                    await self._hardware.set_compute_mode(GpuUuid(card), ComputeMode.DEFAULT)
            except NvmlError as error:
                refusal = error
            else:
                self._record.remove_card(card)
        if refusal is not None:
            raise refusal
