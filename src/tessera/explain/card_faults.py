"""Reads the faults of cards from a Node's condition ``GpuHealthy``. Pure.

The agents' pages tell more, but who asks ``tessera why`` may not read them. The condition's message is text for people
(:mod:`tessera.agent.health.messages`), so a part that is not understood, or was cut off, is passed over. A node may be
hostile: the number of faults is bounded, and who shows a text escapes it.
"""

import re
from collections.abc import Iterator
from itertools import islice

import msgspec

from tessera.agent.base.node_conditions import HEALTH
from tessera.api.nodes.health import UNTIL_BOOT, WITHHELD
from tessera.kube.resources import Node
from tessera.limits.nodes import NODE_CARDS

#: ``GPU 0 (GPU-…): XID 79; not allocated until the node is rebooted``, to the next card or the end.
_FAULT = re.compile(r"GPU ([0-9]{1,3}) \(([^\s()]{1,253})\): (.*?)(?=; GPU [0-9]{1,3} \(|$)", re.DOTALL)


class CardFaultText(msgspec.Struct, frozen=True, kw_only=True):
    """The fault of a card in words.

    Attributes:
        gpu: UUID of the card.
        index: of the driver.
        text: the fault and its consequence.
    """

    gpu: str
    index: int
    text: str

    @property
    def withheld(self) -> bool:
        """True if the card is not allocated."""
        return WITHHELD in self.text

    @property
    def needs_boot(self) -> bool:
        """True if the fault ends only with a reboot of the node."""
        return UNTIL_BOOT in self.text


def read_card_faults(node: Node) -> Iterator[CardFaultText]:
    """Yields the faults that concern a whole card."""
    message = next((each.message for each in node.status.conditions if each.type == HEALTH), "")
    for found in islice(_FAULT.finditer(message or ""), int(NODE_CARDS)):
        yield CardFaultText(gpu=found[2], index=int(found[1]), text=found[3])
