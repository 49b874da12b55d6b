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
        preferences: the most that :data:`PreferencesMet` says of it; 0 if it prefers no place.
    """

    key: str
    profiles: tuple[str, ...]
    priority: int = 0
    arrival: float = 0.0
    nodes: frozenset[str] | None = None
    spread: CardSpread = ()
    again: bool = False
    preferences: int = 0

    @property
    def shape(self) -> tuple[CardSpread, tuple[str, ...]]:
        """What demands have in common that fit on the same cards."""
        return self.spread, self.profiles if self.spread else tuple(sorted(self.profiles))


#: Tells if a node takes a demand, slices left aside: ``None``, or the rule by which it does not.
NodeAllows = Callable[[Demand, str], NodeRule | None]


class PreferencesMet(Protocol):
    """Tells how much of what a demand prefers a place has."""

    def __call__(self, demand: Demand, node: str, gpu: str = "") -> int:
        """Returns the more the more is met, as the node is now; without a card, the most for any card of the node."""
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
