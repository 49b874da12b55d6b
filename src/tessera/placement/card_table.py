"""Chooses the card that loses least when it takes an instance.

A card's *fragmentation* is the number of its free memory slots that a random request could not use, every profile being
equally likely. A placement's cost is the growth of that number: an instance goes where the growth is least, which is
rarely the first free place. The measure is FGD's (USENIX ATC '23) applied to MIG slots; with uniform weights it works
for every mix of requests, while weights learnt from request counts neglect the large profiles.

A card that gets instances in the batch being planned has a *pending* multiset. Its starts are open until the batch
ends, so its cost is that of the best arrangement, and an arrangement must exist: the test is exact.

One ``CardTable`` remembers all results for one geometry. They are values of pure functions of (occupancy, pending
multiset); both range over a few hundred values on any known card, whatever the size of the fleet.
"""

from typing import Any

from tessera.limits.planning import CARD_STATES
from tessera.mig.geometry import Geometry, Placement, Profile
from tessera.mig.layout_planning import list_packings
from tessera.mig.occupancy import free_slots, free_starts, placement_mask, usable_slots

#: Profile names with repetitions, sorted: the slices that this batch gave to a card, with open starts.
Pending = tuple[str, ...]

#: Cards that could take a profile, best first when sorted: cost, free slots, table's number, occupancy, pending.
Candidate = tuple[float, int, int, int, Pending]


class CardTable:
    """Costs and arrangements on cards of one geometry.

    Args:
        geometry: the table of profiles.
        number: the geometry's place in its fleet; orders cards of different geometries.
    """

    def __init__(self, geometry: Geometry, number: int) -> None:
        self.geometry = geometry
        self.number = number
        # Remembered results, by occupancy or by (occupancy, pending); see the properties and functions below.
        self._fragmentation: dict[int, float] = {}
        self._best: dict[tuple[int, Pending], tuple[float, tuple[Placement, ...]] | None] = {}
        self._costs: dict[str, dict[tuple[int, Pending], float | None]] = {}
        self._usable: dict[int, int] = {}
        #: Occupancies that :meth:`add_state` was called with, and their ranking by profile; a new one empties it.
        self._states: set[int] = set()
        self._rankings: dict[str, list[Candidate]] = {}
        self._bits: dict[Placement, int] = {}
        self._sizes = {row.name: row.size for row in geometry.profiles}
        self._names: dict[str, str | None] = {}

    def name_of(self, profile: str) -> str | None:
        """Returns the geometry's own name for a profile in any spelling; ``None`` if the cards do not have it."""
        if profile not in self._names:
            _limit_size(self._names)
            row = self.geometry.find(profile)
            self._names[profile] = row.name if row else None
        return self._names[profile]

    def mask_of(self, placement: Placement) -> int:
        """The bits that an existing instance takes, see ``tessera.mig.occupancy.placement_mask``.

        Raises:
            ValueError: the placement leaves the card.
        """
        found = self._bits.get(placement)
        if found is None:
            _limit_size(self._bits)
            found = self._bits[placement] = placement_mask(self.geometry, placement)
        return found

    def size_of(self, profile: str) -> int:
        """Memory slots of one of the geometry's own profiles."""
        return self._sizes[profile]

    def fragmentation(self, occupancy: int) -> float:
        """Free slots that a random request could not use, as a share of the card's slots."""
        found = self._fragmentation.get(occupancy)
        if found is None:
            geometry = self.geometry
            free = free_slots(geometry, occupancy)
            lost = sum(free - _reachable_slots(geometry, profile, occupancy) for profile in geometry.profiles)
            found = lost / (len(geometry.profiles) * geometry.slots)
            self._fragmentation[occupancy] = found
        return found

    def usable_slots(self, occupancy: int) -> int:
        """Free slots that some profile could still use."""
        if occupancy not in self._usable:
            self._usable[occupancy] = usable_slots(self.geometry, occupancy)
        return self._usable[occupancy]

    def room(self, occupancy: int, pending: Pending) -> int:
        """Free slots after the pending instances took theirs."""
        return free_slots(self.geometry, occupancy) - sum(self._sizes[name] for name in pending)

    def arrangement(self, occupancy: int, pending: Pending) -> tuple[Placement, ...] | None:
        """The starts of a pending multiset that leave the card least fragmented; ``None`` when it does not fit."""
        best = self._arrange(occupancy, pending)
        return None if best is None else best[1]

    def cost(self, occupancy: int, pending: Pending, profile: str) -> float | None:
        """Growth of the card's fragmentation when it takes one more instance; ``None`` when it cannot.

        Args:
            occupancy: the fixed instances on the card, as bits.
            pending: the profiles that the card was given in this batch.
            profile: one of the geometry's own names.
        """
        costs = self._costs.setdefault(profile, {})
        key = (occupancy, pending)
        if key not in costs:
            _limit_size(costs)
            costs[key] = self._cost(occupancy, pending, profile)
        return costs[key]

    def add_state(self, occupancy: int) -> None:
        """Adds an occupancy of a card, so that ``ranking`` covers it."""
        if occupancy not in self._states:
            self._states.add(occupancy)
            self._rankings.clear()

    def rank_candidates(self, profile: str) -> list[Candidate]:
        """Every occupancy seen so far that has room for a profile, best first, without pending instances."""
        found = self._rankings.get(profile)
        if found is None:
            candidates = (self.candidate(occupancy, (), profile) for occupancy in self._states)
            found = self._rankings[profile] = sorted(one for one in candidates if one is not None)
        return found

    def candidate(self, occupancy: int, pending: Pending, profile: str) -> Candidate | None:
        """Returns the rank of cards of this state; ``None`` if they have no room.

        Least cost first, ties to the fullest card.
        """
        cost = self.cost(occupancy, pending, profile)
        return None if cost is None else (cost, self.room(occupancy, pending), self.number, occupancy, pending)

    def _cost(self, occupancy: int, pending: Pending, profile: str) -> float | None:
        # Rounded, so that costs which are equal but for floating-point noise tie.
        before = self._arrange(occupancy, pending)
        after = self._arrange(occupancy, add_profile(pending, profile))
        return None if before is None or after is None else round(after[0] - before[0], 9)

    def _arrange(self, occupancy: int, pending: Pending) -> tuple[float, tuple[Placement, ...]] | None:
        key = (occupancy, pending)
        if key not in self._best:
            _limit_size(self._best)
            found = list_packings(self.geometry, [self.geometry.profile(name) for name in pending], occupancy)
            ranked = [(self.fragmentation(state), state) for state in found]
            self._best[key] = (min(ranked)[0], found[min(ranked)[1]]) if ranked else None
        return self._best[key]


def _limit_size(memo: dict[Any, Any]) -> None:
    """Empties a memo that has grown beyond the states of real cards: users choose the requested profiles."""
    if len(memo) >= CARD_STATES:
        memo.clear()


def add_profile(pending: Pending, profile: str) -> Pending:
    """The multiset with one more instance."""
    return tuple(sorted((*pending, profile)))


def _reachable_slots(geometry: Geometry, profile: Profile, occupancy: int) -> int:
    """Memory slots that instances of the profile could cover now."""
    covered = 0
    for start in free_starts(geometry, profile, occupancy):
        covered |= profile.mask(start)
    return covered.bit_count()
