"""How the node's cards are joined, from what each card reports of its links.

NVML tells of each NVLink whether it is up and which PCI device is at its other end: another card, or an NVSwitch. Of
two cards it tells how far up the PCIe tree they meet. Both become the topology that decides which whole cards are given
out together. A card that cannot be asked, because it is lost, still has the links that the others report.

This module does not ask NVML.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from enum import IntEnum

import msgspec

from tessera.nvml.interface import GpuUuid
from tessera.placement.topology import Pair, Path, Topology


class Meeting(IntEnum):
    """Where two cards meet in the PCIe tree (``nvmlGpuTopologyLevel_t``)."""

    INTERNAL = 0
    SINGLE = 10
    MULTIPLE = 20
    HOSTBRIDGE = 30
    NODE = 40
    SYSTEM = 50


_PATHS: Mapping[Meeting, Path] = {
    Meeting.INTERNAL: Path.BOARD,
    Meeting.SINGLE: Path.PIX,
    Meeting.MULTIPLE: Path.PXB,
    Meeting.HOSTBRIDGE: Path.PHB,
    Meeting.NODE: Path.NODE,
    Meeting.SYSTEM: Path.SYS,
}


class NvLink(msgspec.Struct, frozen=True):
    """One NVLink that is up: the PCI address at its other end, and whether an NVSwitch is there."""

    remote: str
    switch: bool = False


class CardLinks(msgspec.Struct, frozen=True, kw_only=True):
    """What one card reports.

    Attributes:
        uuid: the card's.
        pci_bus_id: its PCI address, ``00000000:07:00.0``.
        links: its NVLinks that are up; empty for a card that cannot be asked.
    """

    uuid: GpuUuid
    pci_bus_id: str
    links: tuple[NvLink, ...] = ()


def topology_of(cards: Sequence[CardLinks], meetings: Mapping[tuple[GpuUuid, GpuUuid], Meeting]) -> Topology:
    """The topology of a node.

    Args:
        cards: every card, by index.
        meetings: where two cards meet, in either order; missing where it cannot be told.

    Raises:
        ValueError: a card stands twice.
    """
    by_address = {pci_address(card.pci_bus_id): card.uuid for card in cards}
    direct: Counter[tuple[GpuUuid, GpuUuid]] = Counter()
    for card in cards:
        for link in card.links:
            other = by_address.get(pci_address(link.remote))
            if other is not None and not link.switch:
                direct[card.uuid, other] += 1
    pairs: dict[tuple[str, str], Pair] = {}
    for pair in {*direct, *meetings}:
        path = _PATHS[meetings[pair]] if pair in meetings else Path.UNKNOWN
        pairs[pair] = Pair(path, direct[pair])
    switched = {str(card.uuid): sum(link.switch for link in card.links) for card in cards}
    return Topology([card.uuid for card in cards], pairs, switch_links=switched)


def pci_address(text: str) -> str:
    """A PCI address in one form: NVML writes the domain with four digits or with eight, and letters in either case."""
    domain, _, rest = text.lower().partition(":")
    return f"{domain.lstrip('0') or '0'}:{rest}"
