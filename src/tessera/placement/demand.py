"""A demand for slices, and who says which nodes may take it."""

from collections.abc import Callable, Iterator
from typing import Protocol

import msgspec

from tessera.placement.step_budget import StepBudget
from tessera.reasons.node_rules import NodeRule


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
