"""What ``--nodes`` says: how many simulated nodes there are and which cards each has.

``4xA100-40GB,8xH100-80GB`` is two nodes, one of four A100s and one of eight H100s. ``2xA30+1xH200`` is one node with
cards of two models. ``100*8xA100-80GB`` is a hundred nodes alike. ``0`` is a node without cards. ``4xA30@rhcos4.15``
runs another operating system than the others, and ``4xA30@rhcos4.15:KERNEL`` another kernel as well.
"""

import re

import msgspec

from tessera.limits import ECHOED, LAB_CARDS, LAB_NODES
from tessera.nvml.machine import parse_spec
from tessera_lab.simulation.operating_systems import running

_NODES = re.compile(r"(?:(?P<times>\d+)\*)?(?P<cards>[^@]+)(?:@(?P<system>[^@:]+)(?::(?P<kernel>[^@:]+))?)?")


class NodeSpec(msgspec.Struct, frozen=True, kw_only=True):
    """One simulated node.

    Attributes:
        name: the node's name.
        cards: model (its short name) of each card, in the order of their indexes.
        kernel: ``uname -r``; empty for what the cluster's nodes have.
        os_image: ``PRETTY_NAME`` of its os-release, likewise.
        architecture: as registries say it.
    """

    name: str
    cards: tuple[str, ...]
    kernel: str = ""
    os_image: str = ""
    architecture: str = "amd64"

    @property
    def spec(self) -> str:
        """The cards as :class:`~tessera.nvml.simulated.SimulatedMachine` takes them; empty for none."""
        return ",".join(self.cards)


def parse_nodes(text: str) -> list[NodeSpec]:
    """The nodes that a specification names, called ``node-1``, ``node-2`` and so on.

    Raises:
        ValueError: a part is not of the form, names an unknown model or asks for too many; the text says which.
    """
    nodes: list[NodeSpec] = []
    for part in text.split(","):
        match = _NODES.fullmatch(part.strip())
        if match is None:
            raise ValueError(
                f"nodes {text[:ECHOED]!r}: {part.strip()[:ECHOED]!r} names no node; "
                "write for example 4xA30,8xH100-80GB@rhcos4.15"
            )
        cards, system = _cards(match["cards"].strip()), running(match["system"] or "", match["kernel"] or "")
        for _ in range(min(int(match["times"] or 1), LAB_NODES + 1)):
            name = f"node-{len(nodes) + 1}"
            nodes.append(NodeSpec(name=name, cards=cards, kernel=system.kernel, os_image=system.os_image))
        if len(nodes) > LAB_NODES:
            raise ValueError(f"nodes {text[:ECHOED]!r}: too many nodes: {LAB_NODES} are simulated")
    if not nodes:
        raise ValueError(f"nodes {text[:ECHOED]!r}: no node; write for example 4xA100-40GB")
    return nodes


def _cards(text: str) -> tuple[str, ...]:
    if text == "0":
        return ()
    cards = parse_spec(text.replace("+", ","))
    if len(cards) > LAB_CARDS:
        raise ValueError(f"cards {text[:ECHOED]!r}: {len(cards):,} cards in one node; {LAB_CARDS} are simulated")
    return tuple(cards)
