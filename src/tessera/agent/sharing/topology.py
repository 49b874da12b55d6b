"""Reads how the node's cards are joined, from the links that each card reports.

NVML reports for each NVLink if it is up and which PCI device is at its other end: another card, or an NVSwitch. For two
cards it reports how far up the PCIe tree they meet. From both comes the topology that decides which whole cards are
given out together. A card that cannot be read, because it is lost, still has the links that the others report.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from enum import IntEnum
from itertools import combinations

import msgspec

from tessera.nvml.asynchronous.async_nvml import AsyncNvml
from tessera.nvml.attributes import NvLink
from tessera.nvml.errors import NvmlError
from tessera.nvml.interface import GpuInfo, GpuUuid
from tessera.placement.topology import CardLink, PciPath, Topology


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
    for one, other in combinations([card.uuid for card in cards if not card.lost], 2):
        try:
            meetings[one, other] = PcieLevel(await hardware.common_ancestor(one, other))
        except (NvmlError, ValueError):
            continue  # the pair then counts by its NVLinks alone
    return topology_of(card_links, meetings)


async def _links(hardware: AsyncNvml, card: GpuInfo) -> tuple[NvLink, ...]:
    if card.lost:
        return ()
    try:
        return tuple(await hardware.nvlinks(card.uuid))
    except NvmlError:
        return ()  # the links that other cards report still count


def pci_address(text: str) -> str:
    """A PCI address in one form: NVML writes the domain with four digits or with eight, and letters in either case."""
    domain, _, rest = text.lower().partition(":")
    return f"{domain.lstrip('0') or '0'}:{rest}"
