"""Costs of slices on cards of one geometry, from a rating of the card's states.

A *loss* rates an occupancy: the less it is, the more the free slots of such a card are worth. A placement's cost is the
growth of the loss. Which loss is used is the placement policy's choice; see ``CardTable.fragmentation`` for the usual
one.

A card that gets instances in the batch being planned has a *pending* multiset. Its starts are open until the batch
ends, so its cost is that of the best arrangement, and an arrangement must exist: the test is exact.

All results are remembered. They are values of pure functions of (occupancy, pending multiset); both range over a few
hundred values on any known card, whatever the size of the fleet.
"""

from bisect import bisect_left
from collections.abc import Callable, Collection, Mapping
from itertools import islice
from typing import Any, Protocol

from tessera.limits.planning import CARD_STATES
from tessera.mig.geometry import Geometry, Placement
from tessera.mig.occupancy import free_slots

#: Profile names with repetitions, sorted: the slices that this batch gave to a card, with open starts.
Pending = tuple[str, ...]

#: Cards that could take a profile, best first when sorted: cost, free slots, table's number, occupancy, pending.
Candidate = tuple[float, int, int, int, Pending]

#: Rates an occupancy of a card of a table; less is better.
Rating = Callable[[Any, int], float]


class RatedCards(Protocol):
    """The cards of one geometry, as costs need them."""

    geometry: Geometry
    number: int

    def fragmentation(self, occupancy: int) -> float:
        """The usual loss of an occupancy."""
        ...

    def packings(self, occupancy: int, pending: Pending) -> Mapping[int, tuple[Placement, ...]]:
        """Every occupancy to which pending instances can lead, each with an arrangement."""
        ...


class StateCosts:
    """Costs and arrangements by one loss.

    Args:
        table: the cards.
        states: the occupancies that rankings cover; it may grow.
        rating: rates an occupancy; None for its fragmentation.
    """

    def __init__(self, table: RatedCards, states: Collection[int], rating: Rating | None = None) -> None:
        self._table = table
        self._states = states
        self._rating = rating
        self._sizes = {row.name: row.size for row in table.geometry.profiles}
        self._best: dict[tuple[int, Pending], tuple[float, tuple[Placement, ...]] | None] = {}
        self._costs: dict[str, dict[tuple[int, Pending], float | None]] = {}
        #: Remembered rankings by profile, and the number of states that they cover.
        self._rankings: dict[str, list[Candidate]] = {}
        self._ranked_states: dict[str, list[int]] = {}
        self._covered = 0

    def loss(self, occupancy: int) -> float:
        """The loss of an occupancy."""
        return self._table.fragmentation(occupancy) if self._rating is None else self._rating(self._table, occupancy)

    def room(self, occupancy: int, pending: Pending) -> int:
        """Free slots after the pending instances took theirs."""
        return free_slots(self._table.geometry, occupancy) - sum(self._sizes[name] for name in pending)

    def arrangement(self, occupancy: int, pending: Pending) -> tuple[Placement, ...] | None:
        """The starts of a pending multiset that leave the card with the least loss; ``None`` when it does not fit."""
        best = self._arrange(occupancy, pending)
        return None if best is None else best[1]

    def cost(self, occupancy: int, pending: Pending, profile: str) -> float | None:
        """Growth of the card's loss when it takes one more instance; ``None`` when it cannot.

        Args:
            occupancy: the fixed instances on the card, as bits.
            pending: the profiles that the card was given in this batch.
            profile: one of the geometry's own names.
        """
        costs = self._costs.setdefault(profile, {})
        key = (occupancy, pending)
        if key not in costs:
            limit_size(costs)
            costs[key] = self._cost(occupancy, pending, profile)
        return costs[key]

    def candidate(self, occupancy: int, pending: Pending, profile: str) -> Candidate | None:
        """Returns the rank of cards of this state; ``None`` if they have no room.

        Least cost first, ties to the fullest card.
        """
        cost = self.cost(occupancy, pending, profile)
        return None if cost is None else (cost, self.room(occupancy, pending), self._table.number, occupancy, pending)

    def rank_candidates(self, profile: str) -> list[Candidate]:
        """Every occupancy seen so far that has room for a profile, best first, without pending instances."""
        self._rank_new_states()
        found = self._rankings.get(profile)
        if found is None:
            candidates = (self.candidate(occupancy, (), profile) for occupancy in self._states)
            found = self._rankings[profile] = sorted(one for one in candidates if one is not None)
        return found

    def rank_states(self, profile: str) -> list[int]:
        """The occupancies of the same ranking."""
        if self._covered == len(self._states) and (found := self._ranked_states.get(profile)) is not None:
            return found
        states = [occupancy for _, _, _, occupancy, _ in self.rank_candidates(profile)]
        self._ranked_states[profile] = states
        return states

    def _rank_new_states(self) -> None:
        """Puts states that are new since the last look into the remembered rankings."""
        new = list(islice(self._states, self._covered, None))
        self._covered += len(new)
        for profile, ranking in self._rankings.items():
            states = self._ranked_states.get(profile)
            for occupancy in new:
                one = self.candidate(occupancy, (), profile)
                if one is not None:
                    place = bisect_left(ranking, one)
                    ranking.insert(place, one)
                    if states is not None:
                        states.insert(place, occupancy)

    def _cost(self, occupancy: int, pending: Pending, profile: str) -> float | None:
        # Rounded, so that costs which are equal but for floating-point noise tie.
        before = self._arrange(occupancy, pending)
        after = self._arrange(occupancy, add_profile(pending, profile))
        return None if before is None or after is None else round(after[0] - before[0], 9)

    def _arrange(self, occupancy: int, pending: Pending) -> tuple[float, tuple[Placement, ...]] | None:
        key = (occupancy, pending)
        known = self._best.get(key)
        if known is None and key not in self._best:
            limit_size(self._best)
            found = self._table.packings(occupancy, pending)
            ranked = [(self.loss(state), state) for state in found]
            known = self._best[key] = (min(ranked)[0], found[min(ranked)[1]]) if ranked else None
        return known


def limit_size(memo: dict[Any, Any]) -> None:
    """Empties a memo that has grown beyond the states of real cards: users choose the requested profiles."""
    if len(memo) >= CARD_STATES:
        memo.clear()


def add_profile(pending: Pending, profile: str) -> Pending:
    """The multiset with one more instance."""
    return tuple(sorted((*pending, profile))) if pending else (profile,)
