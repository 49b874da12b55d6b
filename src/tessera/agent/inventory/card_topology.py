"""Reads how the node's cards are joined, with each other and with the network cards.

NVML reports for each NVLink if it is up and which PCI device is at its other end: another card, or an NVSwitch. For two
cards it reports how far up the PCIe tree they meet. The links of a card that cannot be read are known from the cards at
their other ends. How far a network card is from a card follows from their folders in ``/sys``, by NVIDIA's levels.
"""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from enum import IntEnum
from itertools import combinations

import msgspec

from tessera.agent.inventory.gpu_inventory import GpuState
from tessera.api.nodes.usage import NETWORK_CARDS, UNKNOWN, JoinedCard, NodeTopology
from tessera.limits import NAMES, NODE_CARDS
from tessera.nvml.asynchronous import AsyncNvml
from tessera.nvml.errors import NvmlError
from tessera.nvml.interface import GpuInfo, GpuUuid, NvLink, PciPlace
from tessera.placement.topology import NVLINK_POINTS, CardLink, PciPath, Topology


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


class TopologyReader:
    """Reads the matrix of the node again when a card, its links or its fabric may have changed.

    Args:
        hardware: the node's cards.
    """

    def __init__(self, hardware: AsyncNvml) -> None:
        self._hardware = hardware
        self._read_of: object = None
        self._last = NodeTopology()

    async def read(self, cards: Sequence[GpuState]) -> NodeTopology:
        """Returns the matrix; connections that cannot be read are unknown in it."""
        seen = [(each.uuid, each.info.index, each.info.readable, each.links, each.attributes) for each in cards]
        if seen != self._read_of:
            self._last = await self._read([each for each in cards if each.info.pci_bus_id][: int(NODE_CARDS)])
            self._read_of = seen
        return self._last

    async def _read(self, cards: Sequence[GpuState]) -> NodeTopology:
        ordered = sorted(cards, key=lambda each: each.info.index)
        topology = await read_topology(self._hardware, [each.info for each in ordered])
        places = {each.uuid: await self._place(each.info) for each in ordered}
        try:
            network = await self._hardware.network_cards()
        except NvmlError:
            network = {}
        fabrics = {each.attributes.fabric for each in ordered if each.attributes is not None and each.attributes.fabric}
        return matrix_of(topology, places, network, [each.info for each in ordered], fabrics)

    async def _place(self, card: GpuInfo) -> PciPlace:
        try:
            return await self._hardware.place(card.uuid) if card.readable else PciPlace()
        except NvmlError:
            return PciPlace()


def matrix_of(
    topology: Topology,
    places: Mapping[str, PciPlace],
    network: Mapping[str, PciPlace],
    cards: Sequence[GpuInfo],
    fabrics: Collection[tuple[str, str]] = (),
) -> NodeTopology:
    """Returns the matrix of a node.

    Args:
        topology: how the cards are joined.
        places: of the cards, by UUID.
        network: the places of the network cards, by name.
        cards: the cards, by index.
        fabrics: cluster and clique of each NVLink fabric that a card has joined.
    """
    names = [name for name in network if len(name) <= NAMES][:NETWORK_CARDS]
    everything = [*(places[card.uuid] for card in cards), *(network[name] for name in names)]

    def cell(one: int, other: int) -> str:
        if other < len(cards):
            return _cell(topology.score(cards[one].uuid, cards[other].uuid))
        return _cell(int(path_between(everything[one], everything[other])))

    count = len(everything)
    return NodeTopology(
        cards=tuple(_joined(card, places[card.uuid]) for card in cards),
        network=tuple(names),
        rows=tuple(" ".join(cell(one, other) for other in range(one + 1, count)) for one in range(count)),
        clique=".".join(next(iter(fabrics))) if len(set(fabrics)) == 1 else "",
    )


def _joined(card: GpuInfo, place: PciPlace) -> JoinedCard:
    cpus = place.cpus if len(place.cpus) <= NAMES else ""
    return JoinedCard(index=card.index, uuid=card.uuid, cpus=cpus, numa=place.numa_node, memory_node=place.memory_node)


def _cell(points: int) -> str:
    """A connection in NVIDIA's words, from its points in a topology."""
    nvlinks, path = divmod(points, NVLINK_POINTS)
    if nvlinks:
        return f"NV{nvlinks}"
    return {PciPath.UNKNOWN: UNKNOWN, PciPath.BOARD: "PIX"}.get(PciPath(path), PciPath(path).name)


def path_between(one: PciPlace, other: PciPlace) -> PciPath:
    """The way through PCIe between two devices, from their folders; by the levels of ``nvidia-smi topo -m``."""
    if not one.folders or not other.folders:
        return PciPath.UNKNOWN
    shared = next(
        (at for at, pair in enumerate(zip(one.folders, other.folders, strict=False)) if pair[0] != pair[1]),
        min(len(one.folders), len(other.folders)),
    )
    if shared == 0:
        near = one.numa_node is not None and one.numa_node == other.numa_node
        return PciPath.NODE if near else PciPath.SYS
    if shared == 1:
        return PciPath.PHB
    # Below one switch, each device has its own port, and the card itself, beyond what both share.
    return PciPath.PIX if max(len(one.folders), len(other.folders)) - shared <= 2 else PciPath.PXB
