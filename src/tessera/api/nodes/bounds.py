"""Bounded numbers and texts of the page ``/usage``.

A node may be hostile, and readers draw a tile for each slot and each share, sum all values, and send all texts to each
browser. So a page beyond these bounds does not decode, and its node is shown as one whose page cannot be read.
"""

from typing import Annotated

import msgspec

from tessera.limits import CARD_SLOTS, NAMES, NODE_INDEXES, SHARING_REPLICAS

#: Most units: a measured value or a time on the page `/usage` of an agent, in base units. A million times the memory of
#: the largest card in bytes; sums of all cards stay finite.
USAGE_VALUES = 10**18
#: Most characters: a text for people on the page `/usage` of an agent. The longest of an agent has some hundred.
USAGE_TEXT = 2_000

#: A memory slot, or a number of them.
Slots = Annotated[int, msgspec.Meta(ge=0, le=int(CARD_SLOTS))]
#: A part of a card.
Part = Annotated[float, msgspec.Meta(ge=0, le=1)]
#: A measured value, or a time.
Value = Annotated[float, msgspec.Meta(ge=-int(USAGE_VALUES), le=int(USAGE_VALUES))]
Index = Annotated[int, msgspec.Meta(ge=0, le=int(NODE_INDEXES))]
Replicas = Annotated[int, msgspec.Meta(ge=1, le=int(SHARING_REPLICAS))]
#: A name or an identifier.
Name = Annotated[str, msgspec.Meta(max_length=int(NAMES))]
#: A text for people.
Words = Annotated[str, msgspec.Meta(max_length=int(USAGE_TEXT))]
