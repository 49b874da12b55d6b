"""Costs of slices on cards of one geometry, from a rating of the card's states.

A *loss* rates an occupancy: the less it is, the more the free slots of such a card are worth. A placement's cost is the
growth of the loss. Which loss is used is the placement policy's choice; see ``CardTable.fragmentation`` for the usual
one.

A card that gets instances in the batch being planned has a *pending* multiset. Its starts are open until the batch
ends, so its cost is that of the best arrangement, and an arrangement must exist: the test is exact.

All results are remembered. They are values of pure functions of (occupancy, pending multiset); both range over a few
hundred values on any known card, whatever the size of the fleet.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cached_property, partial
from itertools import islice
from typing import Any, ClassVar, Protocol, TypeVar

from tessera.mig.geometry import Geometry, Placement, free_slots

#: Most states of a card for which the value of the free slots is cached, for one table of profiles. Real cards have a
#: few hundred; profile names that pods and records invent must not fill the memory.
CARD_STATES = 65536

#: Profile names with repetitions, sorted: the slices that this batch gave to a card, with open starts.
Pending = tuple[str, ...]

#: Cards that could take a profile, best first when sorted: cost, free slots, table's number, occupancy, pending.
Candidate = tuple[float, int, int, int, Pending]

K = TypeVar("K")
V = TypeVar("V")

#: Rates an occupancy of a card of a table; less is better.
Rating = Callable[[Any, int], float]


class RatedCards(Protocol):
    """The cards of one geometry, as costs need them."""

    geometry: Geometry
    number: int

    def fragmentation(self, occupancy: int) -> float:
        """The usual loss of an occupancy."""
        ...

    def ends(self, profile: str) -> Sequence[tuple[int, int, tuple[int, ...]]]:
        """Every state seen so far with room for a profile: free slots, occupancy, and occupancies with one more."""
        ...

    def packings(self, occupancy: int, pending: Pending) -> Mapping[int, tuple[Placement, ...]]:
        """Every occupancy to which pending instances can lead, each with an arrangement."""
        ...


class Memo(dict[K, V]):
    """Results of a function of one argument, computed when first asked for.

    A record of a state does not have it, so its owner makes it when it is first needed.

    Args:
        compute: the function.
    """

    def __init__(self, compute: Callable[[K], V]) -> None:
        super().__init__()
        self._compute = compute

    def __missing__(self, key: K) -> V:
        limit_size(self)
        found = self[key] = self._compute(key)
        return found


class Ranking:
    """The states of cards that have room for a profile, best first, and those of them that cards may have.

    Attributes:
        candidates: the states, best first.
        states: their occupancies.
        bits: occupancy -> the bit of its place in this order.
        placed: occupancy -> the instance of the profile that leaves the least loss.
        filled: bits of the places that may have cards, as far as ``log`` was read.
        log: occupancies of which a first card has come, in this order; see :class:`CardGroups`.
        taken: entries of the log that were read.
    """

    __slots__ = ("bits", "candidates", "filled", "log", "placed", "states", "taken")

    def __init__(self, candidates: list[Candidate], place: Callable[[int], Placement]) -> None:
        self.candidates = candidates
        self.states = [occupancy for _, _, _, occupancy, _ in candidates]
        self.bits = {occupancy: 1 << place for place, occupancy in enumerate(self.states)}
        self.placed = Memo(place)
        self.filled = 0
        self.log: Sequence[int] | None = None
        self.taken = 0

    def read(self, log: Sequence[int]) -> None:
        """Takes in the occupancies of which a first card has come. After another list, all may have cards."""
        if log is not self.log:
            self.log, self.filled = log, (1 << len(self.states)) - 1
        else:
            bits, filled = self.bits, self.filled
            for occupancy in log[self.taken :]:
                filled |= bits.get(occupancy, 0)
            self.filled = filled
        self.taken = len(log)


class StateCosts:
    """Costs and arrangements by one loss.

    Args:
        table: the cards.
        states: the occupancies that rankings cover; it may grow.
        rating: rates an occupancy; None for its fragmentation.
    """

    #: Computed again for a state that was read from a record.
    TRANSIENT: ClassVar[tuple[str, ...]] = ("_losses", "_rankings")

    def __init__(self, table: RatedCards, states: Collection[int], rating: Rating | None = None) -> None:
        self._table = table
        self._states = states
        self._rating = rating
        self._sizes = {row.name: row.size for row in (*table.geometry.profiles, *table.geometry.choices)}
        self._best: dict[tuple[int, Pending], tuple[float, tuple[Placement, ...]] | None] = {}
        self._costs: dict[str, dict[tuple[int, Pending], float | None]] = {}
        #: The number of states that the remembered rankings cover.
        self._covered = 0

    @cached_property
    def _losses(self) -> Memo[int, float]:
        return Memo(self._table.fragmentation if self._rating is None else partial(self._rating, self._table))

    @cached_property
    def _rankings(self) -> dict[str, Ranking]:
        """Remembered rankings by profile."""
        return {}

    def loss(self, occupancy: int) -> float:
        """The loss of an occupancy."""
        return self._losses[occupancy]

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

    def rank_states(self, profile: str) -> Ranking:
        """Every occupancy seen so far that has room for a profile, best first, without pending instances."""
        if self._covered != len(self._states):
            self._rank_new_states()
        found = self._rankings.get(profile)
        if found is None:
            found = self._rankings[profile] = self._rank_all(profile)
        return found

    def _rank_all(self, profile: str) -> Ranking:
        """Ranks all states, which is done whenever the mix of requests changes."""
        number, of = self._table.number, self._losses.__getitem__
        rows = self._table.ends(profile)
        costs = [round(min(map(of, ends)) - of(occupancy), 9) for _, occupancy, ends in rows]
        order = sorted(range(len(rows)), key=costs.__getitem__)
        return self._ranking(profile, [(costs[each], rows[each][0], number, rows[each][1], ()) for each in order])

    def _ranking(self, profile: str, candidates: list[Candidate]) -> Ranking:
        return Ranking(candidates, partial(self._place, (profile,)))

    def _place(self, pending: Pending, occupancy: int) -> Placement:
        (placed,) = self.arrangement(occupancy, pending) or ()
        return placed

    def _rank_new_states(self) -> None:
        """Puts states that are new since the last look into the remembered rankings."""
        new = list(islice(self._states, self._covered, None))
        self._covered += len(new)
        for profile, ranking in self._rankings.items():
            able = [one for occupancy in new if (one := self.candidate(occupancy, (), profile)) is not None]
            if able:
                self._rankings[profile] = self._ranking(profile, sorted((*ranking.candidates, *able)))

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
