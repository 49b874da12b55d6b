"""What one geometry's cards can hold, and what that costs.

A card's *fragmentation* is the number of its free memory slots that a random request could not use, every profile being
equally likely. A placement's usual cost is the growth of that number: an instance goes where the growth is least, which
is rarely the first free place. The measure is FGD's (USENIX ATC '23) applied to MIG slots; with uniform weights it
works for every mix of requests, while weights learnt from request counts neglect the large profiles.

Policies may rate the states of a card in another way, see :meth:`CardTable.rated_by`.

The mix of requests is learnt from the slices that were placed (:class:`RequestMix`). Counts are decayed: a placement
that is some hundreds of placements old counts half. Placements are counted, not requests, since a waiting demand is
asked for again and again. So the mix is a function of the order of placements: it can be replayed, and a controller
that starts anew learns from the slices that it finds on the cards.

What is computed from the shares is computed anew only when they changed enough: they never stand still.
"""

import math
from collections import Counter
from collections.abc import Callable
from functools import cached_property
from itertools import islice
from typing import ClassVar

from tessera.mig.geometry import Geometry, Placement, Profile, free_slots, free_starts, placement_mask, usable_slots
from tessera.mig.layout_planning import list_packings
from tessera.mig.names import is_device_profile
from tessera.placement.state_costs import Candidate, Memo, Pending, Ranking, StateCosts, add_profile, limit_size

#: Placements after which the shares are computed anew, and the weight that older ones then keep.
FOLD = 64
KEPT = 0.9
#: Sum of the squared changes of the roots of all shares (Hellinger distance) from which on they are other shares. With
#: six equally frequent profiles, 12,000 requests changed the shares six times.
CHANGED = 0.005
#: A profile with fewer placements, old ones counted in part, is forgotten.
FORGOTTEN = 0.1


class RequestMix:
    """The mix of requests for cards of one geometry: decayed counts of profiles.

    Attributes:
        shares: each profile's share of the requests, by count; empty before the first :data:`FOLD` placements. The same
            object until the shares change by :data:`CHANGED`.
    """

    def __init__(self) -> None:
        self.shares: dict[str, float] = {}
        self._counts: dict[str, float] = {}
        self._recent: list[str] = []

    def count(self, profile: str) -> None:
        """Takes in that a slice of this profile was placed."""
        self._recent.append(profile)
        if len(self._recent) == FOLD:
            self._fold()

    def _fold(self) -> None:
        recent = Counter(self._recent)
        names = sorted({*self._counts, *recent})
        counts = {name: KEPT * self._counts.get(name, 0.0) + recent[name] for name in names}
        self._counts = {name: count for name, count in counts.items() if count >= FORGOTTEN}
        total = sum(self._counts.values())
        shares = {name: count / total for name, count in self._counts.items()}
        if not self.shares or _difference(shares, self.shares) >= CHANGED:
            self.shares = shares
        self._recent.clear()


def _difference(one: dict[str, float], other: dict[str, float]) -> float:
    names = one.keys() | other.keys()
    return math.fsum((math.sqrt(one.get(name, 0.0)) - math.sqrt(other.get(name, 0.0))) ** 2 for name in names)


#: Most ratings of a card's states whose costs are cached, for one table of profiles. A changed mix of requests has its
#: own; beyond it the costs are computed again when needed.
CARD_LOSSES = 16

__all__ = [
    "Candidate",
    "CardTable",
    "GeometryLoss",
    "Pending",
    "Ranking",
    "StateCosts",
    "add_profile",
    "reachable_slots",
]

#: Rates an occupancy of a card of that table; less is better. Hashable, and equal for equal ratings.
GeometryLoss = Callable[["CardTable", int], float]


class CardTable:
    """Facts, costs and arrangements of cards of one geometry.

    Args:
        geometry: the table of profiles.
        number: the geometry's place in its fleet; orders cards of different geometries.
        mix: of the cards that differ in choices only; by default a new one.

    Attributes:
        mix: the mix of requests for these cards.
        is_device: True if the cards are whole cards or shares.
        chosen: what a policy chose for a mix, by policy: the mix's shares and the costs.
        costs: costs by fragmentation.
    """

    #: Computed again for a state that was read from a record.
    TRANSIENT: ClassVar[tuple[str, ...]] = ("bits", "names", "least_blockers")

    def __init__(self, geometry: Geometry, number: int, mix: RequestMix | None = None) -> None:
        self.geometry = geometry
        self.number = number
        #: The bit of an occupancy that marks an instance which starts at slot 0; above all tokens.
        self._first_mark = geometry.slots + 1 + len(geometry.profiles)
        # Remembered results, by occupancy; see the functions below.
        self._fragmentation: dict[int, float] = {}
        self._usable: dict[int, int] = {}
        self._free: dict[int, int] = {}
        self._packings: dict[tuple[int, Pending], dict[int, tuple[Placement, ...]]] = {}
        self._sizes = {row.name: row.size for row in (*geometry.profiles, *geometry.choices)}
        #: Occupancies that :meth:`add_state` was called with.
        self._states: dict[int, None] = {}
        self._rated: dict[GeometryLoss, StateCosts] = {}
        #: See :meth:`ends`; by profile, with the number of states that are covered.
        self._ends: dict[str, tuple[int, list[tuple[int, int, tuple[int, ...]]]]] = {}
        self.costs = StateCosts(self, self._states)
        self.mix = RequestMix() if mix is None else mix
        self.is_device = is_device_profile(geometry.profiles[0].name)
        self.chosen: dict[object, tuple[object, StateCosts]] = {}

    @cached_property
    def names(self) -> Memo[str, str | None]:
        """A profile's name in any spelling -> the geometry's own, None if the cards do not have it."""
        return Memo(self._name_of)

    @cached_property
    def bits(self) -> Memo[tuple[str, int, int], int]:
        """Profile, start and size of an existing instance -> the bits that it takes; ValueError if it leaves the card.

        See ``tessera.mig.geometry.placement_mask``.
        """
        return Memo(self._bits_of)

    @cached_property
    def least_blockers(self) -> Memo[tuple[str, int], tuple[int, int, int] | None]:
        """A profile of the cards and the instances on one -> the fewest instances on a place for one more.

        Of these, the least slots: their number, their slots, and the bits of the place. None for profiles that need
        more than slots: the bits do not tell which instance holds a media engine.
        """
        return Memo(self._least_blockers)

    def name_of(self, profile: str) -> str | None:
        """Returns the geometry's own name for a profile in any spelling; ``None`` if the cards do not have it."""
        return self.names[profile]

    def _name_of(self, profile: str) -> str | None:
        row = self.geometry.find(profile)
        return row.name if row else None

    def mask_of(self, placement: Placement) -> int:
        """The bits that an existing instance takes, see ``tessera.mig.geometry.placement_mask``.

        Raises:
            ValueError: the placement leaves the card.
        """
        return self.bits[placement.profile, placement.start, placement.size]

    def _bits_of(self, key: tuple[str, int, int]) -> int:
        placement = Placement(*key)
        return placement_mask(self.geometry, placement) | self._start_mark(placement.start)

    def _least_blockers(self, key: tuple[str, int]) -> tuple[int, int, int] | None:
        profile, instances = key
        geometry = self.geometry
        claims = [geometry.claim(geometry.profile(profile), start) for start in geometry.profile(profile).starts]
        if any(claim & ~geometry.full for claim in claims):
            return None
        spans = _spans(instances & geometry.full, self.starts(instances))
        found = []
        for claim in claims:
            blockers = [span.bit_count() for span in spans if span & claim]
            found.append((len(blockers), sum(blockers), claim))
        return min(found, key=lambda one: one[:2])

    def _start_mark(self, start: int) -> int:
        return 1 << (self._first_mark + start)

    def starts(self, occupancy: int) -> int:
        """The slots at which instances start, as bits."""
        return occupancy >> self._first_mark

    def size_of(self, profile: str) -> int:
        """Memory slots of one of the geometry's own profiles."""
        return self._sizes[profile]

    def fragmentation(self, occupancy: int) -> float:
        """Free slots that a random request could not use, as a share of the card's slots."""
        found = self._fragmentation.get(occupancy)
        if found is None:
            geometry = self.geometry
            free = free_slots(geometry, occupancy)
            lost = sum(free - reachable_slots(geometry, profile, occupancy) for profile in geometry.profiles)
            found = lost / (len(geometry.profiles) * geometry.slots)
            self._fragmentation[occupancy] = found
        return found

    def usable_slots(self, occupancy: int) -> int:
        """Free slots that some profile could still use."""
        found = self._usable.get(occupancy)
        if found is None:
            found = self._usable[occupancy] = usable_slots(self.geometry, occupancy)
        return found

    def free_slots(self, occupancy: int) -> int:
        """Memory slots that no instance covers."""
        found = self._free.get(occupancy)
        if found is None:
            found = self._free[occupancy] = free_slots(self.geometry, occupancy)
        return found

    def add_state(self, occupancy: int) -> None:
        """Adds an occupancy of a card, so that rankings cover it."""
        self._states[occupancy] = None

    def ends(self, profile: str) -> list[tuple[int, int, tuple[int, ...]]]:
        """Every state added so far with room for a profile, fullest first.

        Each as its free slots, its occupancy, and the occupancies that one more instance can lead to.
        """
        covered, found = self._ends.get(profile, (0, []))
        if covered != len(self._states):
            for occupancy in islice(self._states, covered, None):
                after = self.packings(occupancy, (profile,))
                if after:
                    found.append((self.free_slots(occupancy), occupancy, tuple(after)))
            found.sort()
            self._ends[profile] = (len(self._states), found)
        return found

    def rated_by(self, loss: GeometryLoss) -> StateCosts:
        """Returns the costs by another rating of occupancies. Equal ratings share what was computed."""
        found = self._rated.get(loss)
        if found is None:
            if len(self._rated) >= CARD_LOSSES:
                self._rated.clear()
            found = self._rated[loss] = StateCosts(self, self._states, loss)
        return found

    def packings(self, occupancy: int, pending: Pending) -> dict[int, tuple[Placement, ...]]:
        """Every occupancy to which the pending instances can lead, each with one arrangement that leads there."""
        key = (occupancy, pending)
        found = self._packings.get(key)
        if found is None:
            limit_size(self._packings)
            rows = [self.geometry.profile(name) for name in pending]
            found = self._packings[key] = {
                sum((self._start_mark(one.start) for one in placed), state): placed
                for state, placed in list_packings(self.geometry, rows, occupancy).items()
            }
        return found

    # By fragmentation

    def room(self, occupancy: int, pending: Pending) -> int:
        """Free slots after the pending instances took theirs."""
        return self.costs.room(occupancy, pending)

    def arrangement(self, occupancy: int, pending: Pending) -> tuple[Placement, ...] | None:
        """See :meth:`StateCosts.arrangement`."""
        return self.costs.arrangement(occupancy, pending)

    def cost(self, occupancy: int, pending: Pending, profile: str) -> float | None:
        """See :meth:`StateCosts.cost`."""
        return self.costs.cost(occupancy, pending, profile)


def _spans(slots: int, starts: int) -> list[int]:
    """Returns the slots of each instance, as bits: from its start to the next start or free slot."""
    found: list[int] = []
    for slot in range(slots.bit_length()):
        bit = 1 << slot
        if starts & bit:
            found.append(bit)
        elif slots & bit and found:
            found[-1] |= bit
    return found


def reachable_slots(geometry: Geometry, profile: Profile, occupancy: int) -> int:
    """Memory slots that instances of the profile could cover now."""
    covered = 0
    for start in free_starts(geometry, profile, occupancy):
        covered |= profile.mask(start)
    return covered.bit_count()
