"""How a node's cards are joined, on the agent's page ``/usage``; as the matrix of ``nvidia-smi topo -m``, and in words.

The agent reads it when cards come, go or change their mode, and writes nothing to the API server for it. A page may
come from a hostile node: texts are bounded, and a matrix that does not fit its cards counts as none.

The text is NVIDIA's, to the tab: a header, a row for each card and network card, and the legends. Drivers from branch
535 on underline the header; that escape sequence is left out here.
"""

import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from itertools import combinations
from typing import Annotated, TypeVar

import msgspec

from tessera.api.nodes.bounds import Index, Name
from tessera.limits.nodes import NODE_CARDS
from tessera.text import count_noun, one_line

K = TypeVar("K")

#: Most network cards of a node in the matrix of its cards; more are left out. HGX machines with 36 are known.
NETWORK_CARDS = 64
#: Stands for a connection or a value that could not be read.
UNKNOWN = "N/A"

_NVLINK = re.compile(r"NV([1-9]\d?)")
#: What each way through PCIe is, in the words of NVIDIA's legend; the slowest first.
LEGEND: Mapping[str, str] = {
    "SYS": "Connection traversing PCIe as well as the SMP interconnect between NUMA nodes (e.g., QPI/UPI)",
    "NODE": "Connection traversing PCIe as well as the interconnect between PCIe Host Bridges within a NUMA node",
    "PHB": "Connection traversing PCIe as well as a PCIe Host Bridge (typically the CPU)",
    "PXB": "Connection traversing multiple PCIe bridges (without traversing the PCIe Host Bridge)",
    "PIX": "Connection traversing at most a single PCIe bridge",
}
#: The same as the end of "its cards are joined ...".
_WORDS: Mapping[str, str] = {
    UNKNOWN: "in a way that could not be read",
    "SYS": "over PCIe and the link between the CPUs (SYS)",
    "NODE": "over PCIe and across the host bridges of one NUMA node (NODE)",
    "PHB": "over PCIe through one host bridge (PHB)",
    "PXB": "over PCIe through several bridges (PXB)",
    "PIX": "over PCIe through one bridge (PIX)",
}
_SLOWEST_FIRST = tuple(_WORDS)


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
                known = text if text in LEGEND or _NVLINK.fullmatch(text) else UNKNOWN
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


def matrix_text(topology: NodeTopology, *, visible: bool = False) -> str:
    """The output of ``nvidia-smi topo -m``.

    Args:
        topology: the matrix.
        visible: number the cards from 0, as in a container that sees only them.
    """
    names = [f"GPU{at if visible else card.index}" for at, card in enumerate(topology.cards)]
    network = [f"NIC{number}" for number in range(len(topology.network))]
    lines = ["\t".join(["", *names, *network, "CPU Affinity", "NUMA Affinity", "GPU NUMA ID"])]
    cells = topology.cells() or [[UNKNOWN] * topology.size for _ in range(topology.size)]
    for name, card, row in zip(names, topology.cards, cells, strict=False):
        near = (one_line(card.cpus) or UNKNOWN, _number(card.numa), "", _number(card.memory_node))
        lines.append("\t".join([name, *row, *near]))
    lines += ["\t".join([name, *row, "", "", "", ""]) for name, row in zip(network, cells[len(names) :], strict=True)]
    lines += ["", "Legend:", "", "  X    = Self"]
    lines += [f"  {name:<4} = {text}" for name, text in LEGEND.items()]
    lines += ["  NV#  = Connection traversing a bonded set of # NVLinks"]
    if network:
        legend = (f"  {nic}: {one_line(name)}" for nic, name in zip(network, topology.network, strict=True))
        lines += ["", "NIC Legend:", "", *legend, ""]
    return "\n".join(lines) + "\n"


def _number(value: int | None) -> str:
    return UNKNOWN if value is None else str(value)


def describe_joined(topology: NodeTopology, uuids: Collection[str]) -> str:
    """How a pod's cards are joined, as a sentence without an end; empty for fewer than two, or if nothing is known."""
    return next(iter(describe_each(topology, {"": uuids}).values()), "")


def describe_each(topology: NodeTopology, pods: Mapping[K, Collection[str]]) -> dict[K, str]:
    """The same for several pods, each with the UUIDs of its cards; without those of which there is nothing to say."""
    places = {card.uuid: at for at, card in enumerate(topology.cards)}
    cells = topology.cells()
    held = {pod: sorted(places[uuid] for uuid in uuids if uuid in places) for pod, uuids in pods.items()}
    return {pod: _sentence(cells, cards) for pod, cards in held.items() if cells and len(cards) > 1}


def _sentence(cells: Sequence[Sequence[str]], cards: Sequence[int]) -> str:
    count, kinds = len(cards), Counter(cells[one][other] for one, other in combinations(cards, 2))
    slowest = min(kinds, key=_rank)
    if len(kinds) == 1:
        return f"its {count} cards are {'' if count == 2 else 'all '}joined {_words(slowest)}"
    pairs = ", ".join(f"{count_noun(kinds[kind], 'pair')} {kind}" for kind in sorted(kinds, key=_rank, reverse=True))
    return f"its {count} cards are not joined alike: {pairs}; the slowest pair is joined {_words(slowest)}"


def _rank(kind: str) -> tuple[int, int]:
    """Orders connections from the slowest."""
    found = _NVLINK.fullmatch(kind)
    return (len(_SLOWEST_FIRST), int(found[1])) if found else (_SLOWEST_FIRST.index(kind), 0)


def _words(kind: str) -> str:
    found = _NVLINK.fullmatch(kind)
    return f"by {count_noun(int(found[1]), 'NVLink')} ({kind})" if found else _WORDS[kind]
