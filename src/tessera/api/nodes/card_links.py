"""The annotation ``tessera.dev/card-links`` of a node: how its whole cards are joined, and which of them are free.

The node's agent writes it, since kubelet's counts say neither. The controller reads it to choose the node of a pod with
several whole cards in a managed namespace. The points of two cards are those of
:class:`tessera.placement.topology.Topology`. Where all pairs have the same points, the text has them once and no free
cards: any cards are as good. So only a node where it matters is written when a pod comes or goes.

The text is bounded. A value that cannot be read counts as none: the node is then one of unjoined cards, and no other
node suffers.
"""

from collections.abc import Collection
from typing import Annotated

import msgspec

#: Most cards in a node's annotation tessera.dev/card-links. No machine has more in one host; the controller searches
#: the best of their sets.
LINKED_CARDS = 16
#: Most points of two cards in that annotation. 50 times those of 18 NVLinks, the most that a card has.
LINK_POINTS = 100_000
#: Most characters: a node's annotation tessera.dev/card-links. 16 cards with the largest points have 900.
CARD_LINKS_TEXT = 2 * 1024


LINKS_ANNOTATION = "tessera.dev/card-links"

_Number = Annotated[int, msgspec.Meta(ge=0, lt=int(LINKED_CARDS))]
_Points = Annotated[int, msgspec.Meta(ge=0, le=int(LINK_POINTS))]
_PAIRS = LINKED_CARDS * (LINKED_CARDS - 1) // 2


class CardLinks(msgspec.Struct, frozen=True, omit_defaults=True):
    """The whole cards of a node, by number.

    Attributes:
        cards: their number.
        points: of each pair: 0 with 1, 0 with 2, ..., 1 with 2, ...; one value if all pairs have it.
        free: the cards that no container has, ascending; None if that is not known, or does not matter.
    """

    cards: Annotated[int, msgspec.Meta(ge=2, le=int(LINKED_CARDS))]
    points: Annotated[tuple[_Points, ...], msgspec.Meta(min_length=1, max_length=_PAIRS)]
    free: Annotated[tuple[_Number, ...], msgspec.Meta(max_length=int(LINKED_CARDS))] | None = None

    @property
    def alike(self) -> bool:
        """True if all pairs have the same points."""
        return len(self.points) == 1


_DECODER = msgspec.json.Decoder(CardLinks)


def make_links(cards: int, points: tuple[int, ...], free: Collection[int] | None) -> CardLinks | None:
    """Returns the links of a node in the shortest form; None for a number of cards that has none or is not listed.

    Args:
        cards: the number of whole cards.
        points: of each pair, in the order of :attr:`CardLinks.points`.
        free: the cards that no container has; None if not known.
    """
    if not 2 <= cards <= LINKED_CARDS:
        return None
    bounded = tuple(min(each, int(LINK_POINTS)) for each in points)
    if len(set(bounded)) == 1:
        return CardLinks(cards, bounded[:1])
    return CardLinks(cards, bounded, None if free is None else tuple(sorted(free)))


def encode_links(links: CardLinks) -> str:
    """Returns the annotation's value."""
    return msgspec.json.encode(links).decode()


def decode_links(text: str) -> CardLinks | None:
    """Returns the content of an annotation's value; None if it cannot be read."""
    if not text or len(text) > CARD_LINKS_TEXT:
        return None
    try:
        found = _DECODER.decode(text)
    except (msgspec.MsgspecError, UnicodeEncodeError, RecursionError):
        return None
    free = found.free or ()
    if len(found.points) not in {1, found.cards * (found.cards - 1) // 2}:
        return None
    if list(free) != sorted(set(free)) or any(each >= found.cards for each in free):
        return None
    return found
