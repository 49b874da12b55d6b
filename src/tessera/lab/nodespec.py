"""What ``--nodes`` says: how many simulated nodes there are and which cards each has.

``4xA100-40GB,8xH100-80GB`` is two nodes, one of four A100s and one of eight H100s. ``2xA30+1xH200`` is one node with
cards of two models. ``100*8xA100-80GB`` is a hundred nodes alike. ``0`` is a node without cards.
"""

import re

import msgspec

from tessera.nvml.machine import parse_spec

_NODES = re.compile(r"(?:(?P<times>\d+)\*)?(?P<cards>.+)")

#: More nodes than this are refused: each runs a simulated kubelet.
MAX_NODES = 1000
#: More cards than this in one node are refused; today's largest boards have 16.
MAX_CARDS = 64


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
    cards: list[tuple[str, ...]] = []
    for part in text.split(","):
        match = _NODES.fullmatch(part.strip())
        if match is None:
            raise ValueError(f"nodes {text!r}: empty part; write for example 4xA100-40GB,8xH100-80GB")
        cards += [_cards(match["cards"].strip())] * int(match["times"] or 1)
        if len(cards) > MAX_NODES:
            raise ValueError(f"nodes {text!r}: more than {MAX_NODES} nodes")
    if not cards:
        raise ValueError(f"nodes {text!r}: no node; write for example 4xA100-40GB")
    return [NodeSpec(name=f"node-{number}", cards=each) for number, each in enumerate(cards, start=1)]


def _cards(text: str) -> tuple[str, ...]:
    if text == "0":
        return ()
    cards = parse_spec(text.replace("+", ","))
    if len(cards) > MAX_CARDS:
        raise ValueError(f"cards {text!r}: more than {MAX_CARDS} cards in one node")
    return tuple(cards)
