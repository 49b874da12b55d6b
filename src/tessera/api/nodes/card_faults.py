"""Two annotations of a Node, by which agents and the controller keep one rule from taking too many cards away.

``tessera.dev/cards``, by the agent: the number of the node's cards, and each fault that takes one away.
``tessera.dev/spared-faults``, by the controller: the faults of this node that take no card away for now. The agent
reads it from the watch of its own Node that it has anyway. See docs/decisions/health-breaker.md.

Both are bounded. A reader takes a value that cannot be read for none: then no fault is spared, which is the safe side.
"""

import re
from collections.abc import Iterable
from typing import Annotated, TypeVar

import msgspec

from tessera.limits.nodes import CARD_FAULTS, CARD_FAULTS_TEXT, NODE_CARDS

_T = TypeVar("_T")

CARDS_ANNOTATION = "tessera.dev/cards"
SPARED_ANNOTATION = "tessera.dev/spared-faults"

#: ``GPU-`` with NVML's UUID.
_UUID = re.compile(r"^GPU-[0-9a-zA-Z-]{1,64}\Z")
#: ``XID 48``, ``driver``, ``probe``, ``double-bit-ecc``.
_RULE = re.compile(r"^(XID [0-9]{1,5}|[a-z][a-z-]{0,31})\Z")
_Uuid = Annotated[str, msgspec.Meta(pattern=_UUID.pattern)]
_Rule = Annotated[str, msgspec.Meta(pattern=_RULE.pattern)]


class CardRule(msgspec.Struct, frozen=True, order=True):
    """A fault by its card and its rule: the source of the error."""

    gpu: _Uuid
    rule: _Rule


class CardFault(msgspec.Struct, frozen=True, order=True):
    """A fault that takes a card away, unless it is spared.

    Attributes:
        gpu: UUID of the card.
        rule: the source of the error.
        since: Unix time of the first error, whole seconds.
    """

    gpu: _Uuid
    rule: _Rule
    since: Annotated[int, msgspec.Meta(ge=0, le=2**40)] = 0

    @property
    def key(self) -> CardRule:
        """The fault without its time."""
        return CardRule(self.gpu, self.rule)


class NodeCards(msgspec.Struct, frozen=True):
    """The cards of a node, as far as the breaker needs them.

    Attributes:
        count: number of cards.
        faults: the faults that take cards away, sorted.
    """

    count: Annotated[int, msgspec.Meta(ge=0, le=int(NODE_CARDS))] = 0
    faults: Annotated[tuple[CardFault, ...], msgspec.Meta(max_length=int(CARD_FAULTS))] = ()


_CARDS = msgspec.json.Decoder(NodeCards)
_SPARED = msgspec.json.Decoder(Annotated[tuple[CardRule, ...], msgspec.Meta(max_length=int(CARD_FAULTS))])


def encode_cards(count: int, faults: Iterable[CardFault]) -> str:
    """The value of ``tessera.dev/cards``; faults that no reader accepts are left out, so they take their cards away."""
    listed = [fault for fault in sorted(faults) if _UUID.fullmatch(fault.gpu) and _RULE.fullmatch(fault.rule)]
    return msgspec.json.encode(NodeCards(min(count, int(NODE_CARDS)), tuple(listed[:CARD_FAULTS]))).decode()


def decode_cards(text: str) -> NodeCards:
    """The content of ``tessera.dev/cards``; no cards if it cannot be read."""
    return _decode(_CARDS, text) or NodeCards()


def encode_spared(faults: Iterable[CardRule]) -> str:
    """The value of ``tessera.dev/spared-faults``."""
    return msgspec.json.encode(tuple(sorted(faults))).decode()


def decode_spared(text: str) -> frozenset[CardRule]:
    """The content of ``tessera.dev/spared-faults``; nothing if it cannot be read."""
    return frozenset(_decode(_SPARED, text) or ())


def _decode(decoder: msgspec.json.Decoder[_T], text: str) -> _T | None:
    if not text or len(text) > CARD_FAULTS_TEXT:
        return None
    try:
        return decoder.decode(text)
    except (msgspec.MsgspecError, UnicodeEncodeError, RecursionError):
        return None
