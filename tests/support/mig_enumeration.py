"""Every layout of a card: for tests against published counts, for tables in documents, for planners that compare.

A *layout* is a set of placed instances, the empty one included. It is *maximal* when no further instance fits. A
*multiset* forgets the starts; it is maximal when no other feasible multiset contains it.
"""

from collections import Counter
from collections.abc import Iterable

from tessera.mig.geometry import Geometry, Placement, free_placements, occupancy_of

Multiset = tuple[tuple[str, int], ...]
"""Profile names with counts above zero, sorted by name."""


def layouts(geometry: Geometry) -> list[tuple[Placement, ...]]:
    """Every layout of an empty card, the empty layout included, placements sorted by start."""
    found: list[tuple[Placement, ...]] = []
    claims = sorted(
        (start, profile.name, profile.size, geometry.claim(profile, start))
        for profile in geometry.profiles
        for start in profile.starts
    )

    def extend(placed: tuple[Placement, ...], occupancy: int, next_start: int) -> None:
        found.append(placed)
        for start, name, size, claim in claims:
            if start >= next_start and not claim & occupancy:
                extend((*placed, Placement(name, start, size)), occupancy | claim, start + size)

    extend((), 0, 0)
    return found


def maximal_layouts(geometry: Geometry) -> list[tuple[Placement, ...]]:
    """The layouts that no further instance fits into."""
    return [placed for placed in layouts(geometry) if not free_placements(geometry, occupancy_of(geometry, placed))]


def multisets(geometry: Geometry) -> list[Multiset]:
    """The feasible multisets, the empty one left out, sorted."""
    return sorted({_multiset(placed) for placed in layouts(geometry) if placed})


def maximal_multisets(geometry: Geometry) -> list[Multiset]:
    """The feasible multisets that no other feasible one contains."""
    every = multisets(geometry)
    known = set(every)
    return [one for one in every if not any(_with(one, name) in known for name in geometry.names)]


def filling_multisets(geometry: Geometry) -> list[Multiset]:
    """The feasible multisets that leave no memory slot free."""
    full = {_multiset(placed) for placed in layouts(geometry) if sum(one.size for one in placed) == geometry.slots}
    return sorted(full)


def _multiset(placed: Iterable[Placement]) -> Multiset:
    return tuple(sorted(Counter(one.profile for one in placed).items()))


def _with(one: Multiset, name: str) -> Multiset:
    return tuple(sorted((Counter(dict(one)) + Counter([name])).items()))
