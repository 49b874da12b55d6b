"""What nodes could hold if they were empty. Pure.

Admission asks this for pods that no node could ever hold, and the controller for nodes that do not exist yet. "No" is
proven by the exact packing test; a search that ends at its bound proves nothing.
"""

from collections import Counter
from collections.abc import Iterable, Sequence

from tessera.limits.planning import CARD_MODELS
from tessera.mig.geometry import Geometry
from tessera.placement.card_table import CardTable
from tessera.placement.node_fit import search_division
from tessera.placement.step_budget import StepBudget

#: The cards of an empty node; alike cards have the same table.
Shape = tuple[CardTable, ...]


class EmptyNodes:
    """Shapes of nodes, which share the tables of their cards."""

    def __init__(self) -> None:
        #: Emptied at the limit; shapes made before keep their tables.
        self._tables: dict[Geometry, CardTable] = {}

    def shape(self, cards: Iterable[Geometry]) -> Shape:
        """Returns the shape of a node with these cards."""
        return tuple(sorted(map(self._table, cards), key=lambda table: table.number))

    def _table(self, geometry: Geometry) -> CardTable:
        found = self._tables.get(geometry)
        if found is None:
            if len(self._tables) >= CARD_MODELS:
                self._tables.clear()
            found = self._tables[geometry] = CardTable(geometry, len(self._tables))
        return found


def none_could_hold(shapes: Iterable[Shape], profiles: Sequence[str], work: StepBudget) -> bool:
    """True if it is certain that no empty node of these shapes holds the slices.

    Args:
        shapes: the nodes.
        profiles: the slices of one pod, in any spelling.
        work: a step is one trial of a slice on a card; once they are spent, nothing is certain.
    """
    by_size = sorted(shapes, key=count_slots, reverse=True)
    return not any(_holds(shape, profiles, work) or work.is_spent for shape in by_size)


def largest_part(shape: Shape, profiles: Sequence[str], work: StepBudget) -> tuple[str, ...]:
    """Returns slices of the request that an empty node holds together, and to which no further one could be added.

    The largest slices are kept first, or the smallest, whichever keeps more memory slots. Once the work is spent, what
    was found until then is the result.
    """
    counts = Counter(profiles)
    order = sorted(counts, key=lambda profile: (-_size(shape, profile), profile))
    parts = [_fill(shape, counts, each, work) for each in (order, order[::-1])]
    return max(parts, key=lambda part: memory_slots(shape, part))


def memory_slots(shape: Shape, profiles: Iterable[str]) -> int:
    """Returns the memory slots that slices take on such a node."""
    return sum(_size(shape, profile) for profile in profiles)


def count_slots(shape: Shape) -> int:
    """Returns the memory slots of all cards of a node."""
    return sum(table.geometry.slots for table in shape)


def _fill(shape: Shape, counts: Counter[str], order: Sequence[str], work: StepBudget) -> tuple[str, ...]:
    kept: tuple[str, ...] = ()
    for profile in order:
        fits, fails = 0, counts[profile] + 1
        while fails - fits > 1:
            middle = (fits + fails) // 2
            if _holds(shape, kept + (profile,) * middle, work):
                fits = middle
            else:
                fails = middle
        kept += (profile,) * fits
    return kept


def _holds(shape: Shape, profiles: Sequence[str], work: StepBudget) -> bool:
    if work.is_spent:
        return False
    found = search_division([(table, 0, ()) for table in shape], profiles, steps=work.remaining)
    work.spend(1 + found.steps)
    return found.division is not None


def _size(shape: Shape, profile: str) -> int:
    return max((table.size_of(name) for table in shape if (name := table.name_of(profile))), default=0)
