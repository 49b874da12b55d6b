"""Reads from the cards the values that containers get with them: device nodes, and the links between the cards.

A value is read again only when it may have changed: when a card or MIG device comes, goes or gets another number. If a
read fails, the reason is kept for each device concerned, and the read is tried again after a while; other devices do
not wait.

NVML reports for each NVLink if it is up and which PCI device is at its other end: another card, or an NVSwitch. For two
cards it reports how far up the PCIe tree they meet. The topology from both decides which whole cards are allocated
together. The links of a card that cannot be read are known from the cards at their other ends.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from enum import IntEnum
from itertools import combinations

import msgspec

from tessera.agent.inventory.gpu_inventory import GpuState
from tessera.clock import Clock
from tessera.nvml.asynchronous.async_nvml import AsyncNvml
from tessera.nvml.attributes import NvLink
from tessera.nvml.errors import NvmlError
from tessera.nvml.interface import DeviceFile, GpuInfo, GpuUuid
from tessera.placement.topology import CardLink, PciPath, Topology

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


class PcieLevel(IntEnum):
    """The level of the PCIe tree at which two cards meet (``nvmlGpuTopologyLevel_t``)."""

    INTERNAL = 0
    SINGLE = 10
    MULTIPLE = 20
    HOSTBRIDGE = 30
    NODE = 40
    SYSTEM = 50


_PATHS: Mapping[PcieLevel, PciPath] = {
    PcieLevel.INTERNAL: PciPath.BOARD,
    PcieLevel.SINGLE: PciPath.PIX,
    PcieLevel.MULTIPLE: PciPath.PXB,
    PcieLevel.HOSTBRIDGE: PciPath.PHB,
    PcieLevel.NODE: PciPath.NODE,
    PcieLevel.SYSTEM: PciPath.SYS,
}


class CardLinks(msgspec.Struct, frozen=True, kw_only=True):
    """The links that one card reports.

    Attributes:
        uuid: the card's UUID.
        pci_bus_id: its PCI address, ``00000000:07:00.0``.
        links: its NVLinks that are up; empty for a card that cannot be read.
    """

    uuid: GpuUuid
    pci_bus_id: str
    links: tuple[NvLink, ...] = ()


def topology_of(cards: Sequence[CardLinks], meetings: Mapping[tuple[GpuUuid, GpuUuid], PcieLevel]) -> Topology:
    """Returns the topology of a node.

    Args:
        cards: every card, by index.
        meetings: the level at which two cards meet, in either order; missing if unknown.

    Raises:
        ValueError: a card is listed twice.
    """
    by_address = {pci_address(card.pci_bus_id): card.uuid for card in cards}
    direct: Counter[tuple[GpuUuid, GpuUuid]] = Counter()
    for card in cards:
        for link in card.links:
            other = by_address.get(pci_address(link.remote_pci))
            if other is not None and not link.switch:
                direct[card.uuid, other] += 1
    pairs: dict[tuple[str, str], CardLink] = {}
    for pair in {*direct, *meetings}:
        path = _PATHS[meetings[pair]] if pair in meetings else PciPath.UNKNOWN
        pairs[pair] = CardLink(path, direct[pair])
    switched = {str(card.uuid): sum(link.switch for link in card.links) for card in cards}
    return Topology([card.uuid for card in cards], pairs, switch_links=switched)


async def read_topology(hardware: AsyncNvml, cards: Sequence[GpuInfo]) -> Topology:
    """Reads how the cards are joined; a link that a card does not report counts as none.

    Args:
        hardware: the node's cards.
        cards: the cards of the topology.
    """
    card_links = [
        CardLinks(uuid=card.uuid, pci_bus_id=card.pci_bus_id, links=await _links(hardware, card))
        for card in sorted(cards, key=lambda each: each.index)
    ]
    meetings: dict[tuple[GpuUuid, GpuUuid], PcieLevel] = {}
    for one, other in combinations([card.uuid for card in cards if card.readable], 2):
        try:
            meetings[one, other] = PcieLevel(await hardware.common_ancestor(one, other))
        except (NvmlError, ValueError):
            continue  # the pair then counts by its NVLinks alone
    return topology_of(card_links, meetings)


async def _links(hardware: AsyncNvml, card: GpuInfo) -> tuple[NvLink, ...]:
    if not card.readable:
        return ()
    try:
        return tuple(await hardware.nvlinks(card.uuid))
    except NvmlError:
        return ()  # the links that other cards report still count


def pci_address(text: str) -> str:
    """A PCI address in one form: NVML writes the domain with four digits or with eight, and letters in either case."""
    domain, _, rest = text.lower().partition(":")
    return f"{domain.lstrip('0') or '0'}:{rest}"
