"""How a node's cards are joined: as the matrix of ``nvidia-smi topo -m``, and in words.

The matrix is NVIDIA's, to the tab: a header, a row for each card and network card, and the legends. Drivers from branch
535 on underline the header; that escape sequence is left out here.
"""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from itertools import combinations
from typing import TypeVar

from tessera.api.nodes.usage import LEGEND, NVLINK, UNKNOWN, NodeTopology
from tessera.text import count_noun, one_line

K = TypeVar("K")

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
    found = NVLINK.fullmatch(kind)
    return (len(_SLOWEST_FIRST), int(found[1])) if found else (_SLOWEST_FIRST.index(kind), 0)


def _words(kind: str) -> str:
    found = NVLINK.fullmatch(kind)
    return f"by {count_noun(int(found[1]), 'NVLink')} ({kind})" if found else _WORDS[kind]
