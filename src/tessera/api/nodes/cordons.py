"""Cards that a person has taken out of service: one annotation of the Node for each.

``tessera.dev/cordon.GPU-…`` with the reason as its value. The key has the card's UUID, since an index may change. Each
card has an annotation of its own, so that two people who cordon two cards at once do not overwrite each other, and so
that ``kubectl annotate`` is enough. The node's agent reads it in the watch of its own Node, and writes none.
"""

import re
from collections.abc import Mapping
from itertools import islice

import msgspec

from tessera.limits.nodes import CORDON_REASON, NODE_CARDS
from tessera.text import one_line

#: Beginning of the key; the card's UUID follows.
CORDON_PREFIX = "tessera.dev/cordon."
#: ``GPU-`` with NVML's UUID. The name of an annotation has 63 characters at most, so these have 56.
_UUID = re.compile(r"GPU-(?:[0-9a-zA-Z-]{0,51}[0-9a-zA-Z])")


class Cordon(msgspec.Struct, frozen=True, order=True):
    """A card that a person has taken out of service: its UUID, and the reason in one line."""

    gpu: str
    reason: str


def cordon_key(gpu: str) -> str:
    """The key of the annotation that cordons a card."""
    return f"{CORDON_PREFIX}{gpu}"


def read_cordons(annotations: Mapping[str, str]) -> tuple[Cordon, ...]:
    """The cordons of a Node, sorted; the first ones, if there are more than a node may have cards."""
    found = sorted(key for key in annotations if key.startswith(CORDON_PREFIX))
    cards = ((key, key.removeprefix(CORDON_PREFIX)) for key in found)
    return tuple(
        Cordon(gpu, one_line(annotations[key].strip(), CORDON_REASON))
        for key, gpu in islice(((key, gpu) for key, gpu in cards if _UUID.fullmatch(gpu)), int(NODE_CARDS))
    )
