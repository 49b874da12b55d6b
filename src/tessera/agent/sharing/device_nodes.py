"""Reads from the cards the values that containers get with them: device nodes, and the links between the cards.

A value is read again only when it may have changed: when a card or MIG device comes, goes or gets another number. If a
read fails, the reason is kept for each device concerned, and the read is tried again after a while; other devices do
not wait.

The topology decides which whole cards are allocated together.
"""

from collections.abc import Mapping, Sequence

from tessera.agent.inventory.card_topology import read_topology
from tessera.agent.inventory.gpu_inventory import GpuState
from tessera.clock import Clock
from tessera.nvml.asynchronous.async_nvml import AsyncNvml
from tessera.nvml.errors import NvmlError
from tessera.nvml.interface import DeviceFile
from tessera.placement.topology import Topology

#: Seconds before a failed read is tried again.
RETRY = 30.0


class DeviceNodes:
    """Reads device nodes and links when they may have changed.

    Args:
        hardware: the node's cards.
        clock: times the next try.

    Attributes:
        files: device nodes by UUID of card or MIG device; empty ones on simulated cards.
        failed: why a device's nodes are not known, by its UUID.
        topology: how the cards are joined.
    """

    def __init__(self, hardware: AsyncNvml, clock: Clock) -> None:
        self._hardware = hardware
        self._clock = clock
        self._files_of: object = None
        self._topology_of: object = None
        self._retry_at: float | None = None
        self.files: Mapping[str, tuple[DeviceFile, ...]] = {}
        self.failed: Mapping[str, str] = {}
        self.topology = Topology.without_links(())

    def retry_in(self) -> float | None:
        """Seconds until failed reads are tried again; ``None`` if every read succeeded."""
        return None if self._retry_at is None else max(0.0, self._retry_at - self._clock.monotonic())

    async def read(self, cards: Sequence[GpuState]) -> None:
        """Reads the values that may have changed."""
        joined = [(card.uuid, card.info.pci_bus_id, card.info.readable, card.info.mig_enabled) for card in cards]
        if joined != self._topology_of:
            self.topology = await read_topology(self._hardware, [card.info for card in cards])
            self._topology_of = joined
        numbered = [(card.uuid, card.info.minor, card.info.readable, card.instances) for card in cards]
        if numbered != self._files_of or self.retry_in() == 0:
            await self._read_files(cards)
            self._files_of = numbered

    async def _read_files(self, cards: Sequence[GpuState]) -> None:
        files: dict[str, tuple[DeviceFile, ...]] = {}
        failed: dict[str, str] = {}
        for card in cards:
            if not card.info.readable:
                files |= {uuid: each for uuid, each in self.files.items() if uuid in _uuids(card)}
                continue
            try:
                files[card.uuid] = tuple(await self._hardware.card_files(card.info.uuid))
            except NvmlError as error:
                failed[card.uuid] = f"device nodes of card {card.uuid} are not known: {error}"
            await self._read_mig_files(card, files, failed)
        self.files, self.failed = files, failed
        self._retry_at = self._clock.monotonic() + RETRY if failed else None

    async def _read_mig_files(
        self, card: GpuState, files: dict[str, tuple[DeviceFile, ...]], failed: dict[str, str]
    ) -> None:
        for instance in card.instances:
            for compute in instance.compute_instances:
                try:
                    found = await self._hardware.device_files(card.info.uuid, instance.gi_id, compute.ci_id)
                except NvmlError as error:
                    failed[compute.mig_uuid] = f"device nodes of {compute.mig_uuid} are not known: {error}"
                else:
                    files[compute.mig_uuid] = tuple(found)


def _uuids(card: GpuState) -> frozenset[str]:
    return frozenset({card.uuid} | {each.mig_uuid for one in card.instances for each in one.compute_instances})
