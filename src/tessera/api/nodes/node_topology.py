"""How a node's cards are joined, on the agent's page ``/usage``.

The agent reads it when cards come, go or change their mode, and writes nothing to the API server for it. A page may
come from a hostile node: texts are bounded, and a matrix that does not fit its cards counts as none.
"""

import re
from collections.abc import Collection, Mapping
from typing import Annotated

import msgspec

from tessera.api.nodes.bounds import Index, Name
from tessera.limits import NODE_CARDS

#: Most network cards of a node in the matrix of its cards; more are left out. HGX machines with 36 are known.
NETWORK_CARDS = 64
#: Stands for a connection or a value that could not be read.
UNKNOWN = "N/A"

NVLINK = re.compile(r"NV([1-9]\d?)")
#: What each way through PCIe is, in the words of NVIDIA's legend; the slowest first.
LEGEND: Mapping[str, str] = {
    "SYS": "Connection traversing PCIe as well as the SMP interconnect between NUMA nodes (e.g., QPI/UPI)",
    "NODE": "Connection traversing PCIe as well as the interconnect between PCIe Host Bridges within a NUMA node",
    "PHB": "Connection traversing PCIe as well as a PCIe Host Bridge (typically the CPU)",
    "PXB": "Connection traversing multiple PCIe bridges (without traversing the PCIe Host Bridge)",
    "PIX": "Connection traversing at most a single PCIe bridge",
}


class JoinedCard(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A card of the matrix.

    Attributes:
        index: of the driver.
        uuid: ``GPU-…``.
        cpus: the CPUs near it, ``0-55,112-167``; empty if not known.
        numa: the NUMA node near it.
        memory_node: the NUMA node that its own memory is, as on GH200; None elsewhere.
    """

    index: Index
    uuid: Name
    cpus: Name = ""
    numa: Index | None = None
    memory_node: Index | None = None


class NodeTopology(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """The matrix of a node.

    Attributes:
        cards: the cards, by index.
        network: names of the RDMA network cards, ``mlx5_0``.
        rows: for each card, then each network card, its connections with those after it: ``NV18 PIX SYS``.
        clique: cluster and clique of the NVLink fabric that the cards have joined, as in ``nvidia.com/gpu.clique``.
    """

    cards: Annotated[tuple[JoinedCard, ...], msgspec.Meta(max_length=int(NODE_CARDS))] = ()
    network: Annotated[tuple[Name, ...], msgspec.Meta(max_length=NETWORK_CARDS)] = ()
    rows: Annotated[
        tuple[Annotated[str, msgspec.Meta(max_length=8 * (int(NODE_CARDS) + NETWORK_CARDS))], ...],
        msgspec.Meta(max_length=int(NODE_CARDS) + NETWORK_CARDS),
    ] = ()
    clique: Name = ""

    @property
    def size(self) -> int:
        """The number of cards and network cards."""
        return len(self.cards) + len(self.network)

    def cells(self) -> list[list[str]]:
        """The connection of each two, in both directions; empty if the rows do not fit the cards."""
        rows = [row.split() for row in self.rows]
        count = self.size
        if [len(row) for row in rows] != list(range(count - 1, -1, -1)):
            return []
        found = [[" X "] * count for _ in range(count)]
        for one, row in enumerate(rows):
            for other, text in enumerate(row, one + 1):
                known = text if text in LEGEND or NVLINK.fullmatch(text) else UNKNOWN
                found[one][other] = found[other][one] = known
        return found

    def of_cards(self, uuids: Collection[str]) -> "NodeTopology":
        """The matrix of these cards with the network cards."""
        cells, count = self.cells(), len(self.cards)
        if not cells:
            return NodeTopology()
        kept = [*(n for n, card in enumerate(self.cards) if card.uuid in uuids), *range(count, self.size)]
        return msgspec.structs.replace(
            self,
            cards=tuple(card for card in self.cards if card.uuid in uuids),
            rows=tuple(" ".join(cells[one][other] for other in kept[at + 1 :]) for at, one in enumerate(kept)),
        )
