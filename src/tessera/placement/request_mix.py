"""The mix of requests for cards of one geometry, learnt from the slices that were placed.

Counts are decayed: a placement that is some hundreds of placements old counts half. Placements are counted, not
requests, since a waiting demand is asked for again and again. So the mix is a function of the order of placements: it
can be replayed, and a controller that starts anew learns from the slices that it finds on the cards.

What is computed from the shares is computed anew only when they changed enough: they never stand still.
"""

import math
from collections import Counter

#: Placements after which the shares are computed anew, and the weight that older ones then keep.
FOLD = 64
KEPT = 0.9
#: Sum of the squared changes of the roots of all shares (Hellinger distance) from which on they are other shares. With
#: six equally frequent profiles, 12,000 requests changed the shares six times.
CHANGED = 0.005
#: A profile with fewer placements, old ones counted in part, is forgotten.
FORGOTTEN = 0.1


class RequestMix:
    """Decayed counts of profiles.

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
