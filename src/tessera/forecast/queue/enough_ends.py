"""Finds pods of one node whose end makes room for several slices, where the fewest are too many to search for.

:mod:`tessera.placement.explain` finds the fewest of up to three owners, by trying all sets. A pod of eight whole cards
waits for more. Here the largest owners end first until the slices fit, then each that need not end is left out: no
smaller part of the result would do, though another set may have fewer.
"""

from collections.abc import Collection, Iterable, Sequence

from tessera.placement.cards import OwnedPlacement
from tessera.placement.explain import EXPLAINED_STEPS
from tessera.placement.fleet import Fleet
from tessera.placement.node_fit import divide_over_cards
from tessera.placement.step_budget import StepBudget


def find_enough_ends(
    fleet: Fleet, profiles: Sequence[str], nodes: Iterable[str], work: StepBudget | None = None
) -> tuple[OwnedPlacement, ...]:
    """Returns the allocations of owners on the node where the fewest must end; empty if no node would have room.

    Args:
        fleet: the cards.
        profiles: the slices.
        nodes: the nodes; the search stops at a bound of its work, so the best come first.
        work: pays for it; by default ``EXPLAINED_STEPS``.
    """
    work = work or StepBudget(EXPLAINED_STEPS)
    best: tuple[int, tuple[OwnedPlacement, ...]] | None = None
    for node in nodes:
        if work.is_spent:
            break
        found = _Node(fleet, node, profiles, work).owners()
        if found is not None and (best is None or len(found) < best[0]):
            held = (one for card in fleet.cards(node) for one in card.allocations.values())
            best = (len(found), tuple(one for one in held if one.owner in found))
    return best[1] if best is not None else ()


class _Node:
    """The search on one node."""

    def __init__(self, fleet: Fleet, node: str, profiles: Sequence[str], work: StepBudget) -> None:
        self._profiles = profiles
        self._work = work
        #: Of each card, its table and what each owner has of it.
        self._cards = [(card.table, _by_owner(card.allocations, card.claims)) for card in fleet.cards(node)]

    def owners(self) -> frozenset[str] | None:
        """Returns owners whose end makes room, none of them in vain; None if all are not enough."""
        sizes: dict[str, int] = {}
        for _, held in self._cards:
            for owner, bits in held.items():
                sizes[owner] = sizes.get(owner, 0) + bits.bit_count()
        order = sorted(sizes, key=lambda owner: (-sizes[owner], owner))
        if not self._fits(order):
            return None
        few, enough = 0, len(order)
        while few < enough:
            middle = (few + enough) // 2
            if self._fits(order[:middle]):
                enough = middle
            else:
                few = middle + 1
        ended = order[:enough]
        for owner in reversed(order[:enough]):
            rest = [each for each in ended if each != owner]
            if not self._work.is_spent and self._fits(rest):
                ended = rest
        return frozenset(ended)

    def _fits(self, ended: Collection[str]) -> bool:
        gone = frozenset(ended)
        states = [
            (table, _union(bits for owner, bits in held.items() if owner not in gone), ())
            for table, held in self._cards
        ]
        return divide_over_cards(states, self._profiles, self._work) is not None


def _by_owner(allocations: dict[int, OwnedPlacement], claims: dict[int, int]) -> dict[str, int]:
    bits: dict[str, int] = {}
    for start, one in allocations.items():
        bits[one.owner] = bits.get(one.owner, 0) | claims[start]
    return bits


def _union(masks: Iterable[int]) -> int:
    union = 0
    for mask in masks:
        union |= mask
    return union
