"""A demand for slices, how these lie on the cards of a node, who says which nodes may take it, and what planning costs.

:class:`StepBudget` bounds the cost of a batch in steps instead of time, so that the same batch always ends at the same
demand. A long computation is made in parts: between two of them a process can do other work. Pure.
"""

from collections import Counter
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Protocol, TypeVar, cast

import msgspec

from tessera.reasons.node_rules import NodeRule

Result = TypeVar("Result")
#: A computation that yields between two parts, and returns a result.
Parts = Generator[None, None, Result]


class StepBudget:
    """A number of steps to spend. One step is the cost of asking one node about one demand, some microseconds.

    A spender checks :attr:`is_spent` before it begins something new; begun work may overdraw a little.
    """

    def __init__(self, steps: int) -> None:
        self._left = steps

    @property
    def remaining(self) -> int:
        """Returns the steps that are left; negative if overdrawn."""
        return self._left

    def spend(self, steps: int = 1) -> None:
        """Counts steps that were taken."""
        self._left -= steps

    @property
    def is_spent(self) -> bool:
        """True if no steps are left."""
        return self.remaining <= 0

    def part(self, share: float) -> "StepBudget":
        """Returns a budget with a part of the remaining steps. Its steps count on this budget too."""
        return _PartialBudget(self, int(self.remaining * share))


class _PartialBudget(StepBudget):
    def __init__(self, whole: StepBudget, steps: int) -> None:
        super().__init__(steps)
        self._whole = whole
        self._rest = whole.remaining - steps

    @property
    def remaining(self) -> int:
        return self._whole.remaining - self._rest

    def spend(self, steps: int = 1) -> None:
        self._whole.spend(steps)


def complete(parts: Parts[Result]) -> Result:
    """Runs a computation to its end, without other work in between."""
    while True:
        try:
            next(parts)
        except StopIteration as end:
            return cast("Result", end.value)


class CardRule(msgspec.Struct, frozen=True):
    """Compares the cards of some slices of a demand.

    Attributes:
        slices: their places in the demand's profiles.
        distinct: each lies on a card with another value; else all on cards with one value.
        attribute: what is compared, a key of :attr:`.FleetNode.values`; empty for the card itself.
    """

    slices: tuple[int, ...]
    distinct: bool = False
    attribute: str = ""


#: How the slices of a demand lie on the cards of their node; empty for anyhow.
CardSpread = tuple[CardRule, ...]


class Demand(msgspec.Struct, frozen=True, gc=False):
    """Slices that a pod, usually one, waits for.

    Attributes:
        key: names the demand; unique in a batch.
        profiles: one entry per slice, as after ``nvidia.com/mig-`` (``1g.5gb.me``) or as NVIDIA writes it.
        priority: higher goes first.
        arrival: among equals, lower goes first: a time, or a place in an order.
        nodes: the only nodes that may take it, or are worth asking; None for all. Other nodes refuse it when asked.
        spread: how they lie on the cards of the node.
        again: True if it was refused before and ``nodes`` changed since; the planner then need not explain a new
            refusal.
        preferences: the most that :meth:`Preferences.met` says of it; None if it prefers no place.
    """

    key: str
    profiles: tuple[str, ...]
    priority: int = 0
    arrival: float = 0.0
    nodes: frozenset[str] | None = None
    spread: CardSpread = ()
    again: bool = False
    preferences: tuple[int, int] | None = None

    @property
    def shape(self) -> tuple[CardSpread, tuple[str, ...]]:
        """What demands have in common that fit on the same cards."""
        return self.spread, self.profiles if self.spread else tuple(sorted(self.profiles))


#: Tells if a node takes a demand, slices left aside: ``None``, or the rule by which it does not.
NodeAllows = Callable[[Demand, str], NodeRule | None]


class Preferences(Protocol):
    """What demands prefer of their places, and what that may cost.

    Attributes:
        price: what a preference of weight 100 may cost the cards, in the unit of the policy's costs, and others by
            their weights. With 0 preferences decide among places of equal cost only; with ``inf`` they go first.
    """

    price: float

    def met(self, demand: Demand, node: str, gpu: str = "") -> tuple[int, int]:
        """Returns the weight of what is met there, and more for fewer replicas of the same owner, as things are now.

        The second decides among places of equal cost only. Without a card it is the most for any card of the node.
        """
        ...

    def preferred_nodes(self, demand: Demand) -> Iterator[str]:
        """Yields nodes that meet something and may take the demand, those that meet most first, as far as asked."""
        ...


#: Yields nodes with room for a demand of whole cards or shares, best first, as they are now, each with a value that is
#: equal for equally good nodes; it may leave out some. The budget pays for it.
NodeRanking = Callable[[Demand, StepBudget], Iterator[tuple[str, object]]]


class Reservations(Protocol):
    """Counts what planning gives to demands besides slices (CPU, memory), so that :data:`NodeAllows` can count it."""

    def reserve(self, demand: Demand, node: str) -> None:
        """Takes in that planning gave the demand a place on the node."""
        ...

    def unreserve(self, demand: Demand, node: str) -> None:
        """Takes in that planning took this place back."""
        ...


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
