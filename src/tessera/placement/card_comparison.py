"""Which cards of a node a slice may have beside those of other slices, where a demand compares their cards. Pure."""

from collections import Counter
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet

import msgspec

from tessera.placement.demand import CardSpread


def keeps(spread: CardSpread, cards: Sequence[str], values: Mapping[str, Mapping[str, str]]) -> bool:
    """True if slices lie as a demand wants; by UUID the values of the cards, and the card of each slice."""
    for rule in spread:
        gpus = [cards[each] for each in rule.slices]
        found = [values.get(gpu, {}).get(rule.attribute, "") if rule.attribute else gpu for gpu in gpus]
        if "" in found or len(set(found)) != (len(found) if rule.distinct else 1):
            return False
    return True


class OrderedRule(msgspec.Struct, frozen=True):
    """A rule of a search that gives slices to cards one after the other.

    Attributes:
        distinct: each value is another; else all are the same.
        depths: the slices, by their places in the order of the search.
        values: by card what is compared; an empty text for a card without it, which takes none of the slices.
        cards: True if it compares cards, and no values of them.
    """

    distinct: bool
    depths: frozenset[int]
    values: Sequence[str]
    cards: bool

    def taken(self, chosen: Sequence[int]) -> AbstractSet[str]:
        """Returns the values of the cards that were chosen for the first ones of the slices."""
        return {self.values[each] for depth, each in enumerate(chosen) if depth in self.depths}

    def admits(self, card: int, taken: AbstractSet[str]) -> bool:
        """True if a card may take one more of the slices, after these values are taken."""
        value = self.values[card]
        return bool(value) and (value not in taken if self.distinct else not taken or value in taken)

    def mark(self, card: int) -> str:
        """Returns what tells a card from others that :meth:`admits` as much."""
        return "" if self.cards else self.values[card]


class Comparison:
    """How the slices of a demand lie on the cards of one node.

    Args:
        spread: the rules.
        values: by card its values, by attribute.
    """

    def __init__(self, spread: CardSpread, values: Sequence[Mapping[str, str]]) -> None:
        self._spread = spread
        self._values = values

    def count_compared(self) -> Counter[int]:
        """Returns with how many others rules compare each slice: those with most go first, to meet contradictions."""
        return Counter(each for rule in self._spread for each in rule.slices for _ in rule.slices[1:])

    def in_order(self, order: Sequence[int]) -> Sequence[OrderedRule]:
        """Returns the rules for a search that takes the slices in an order."""
        depths = {profile: depth for depth, profile in enumerate(order)}
        return [
            OrderedRule(
                rule.distinct,
                frozenset(depths[each] for each in rule.slices),
                [each.get(rule.attribute, "") if rule.attribute else str(n) for n, each in enumerate(self._values)],
                not rule.attribute,
            )
            for rule in self._spread
        ]
