"""Statistics of few measurements: estimates and their uncertainty.

Times to a GPU are few (a node costs money) and skewed (one slow pull). So quantiles are bounded without assuming any
distribution, and a quantile that the sample cannot support is marked as such.

Hand-written: scipy 1.17 with numpy takes 216 MB on disk, and its import 0.8 s of CPU and 100 MiB of memory. This module
needs four of its functions.
"""

import math
from collections.abc import Sequence

#: Confidence of all intervals and bounds.
CONFIDENCE = 0.95


def quantile(values: Sequence[float], share: float) -> float:
    """The value below which ``share`` of the sample lies, interpolated between neighbours (R's type 7).

    Raises:
        ValueError: the sample is empty, or the share is not within 0 and 1.
    """
    if not values or not 0 <= share <= 1:
        raise ValueError(f"quantile {share} of {len(values)} values: needs a value, and a share from 0 to 1")
    ordered = sorted(values)
    place = share * (len(ordered) - 1)
    below = math.floor(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)


def upper_bound(values: Sequence[float], share: float, confidence: float = CONFIDENCE) -> float | None:
    """A value that is at least the true quantile, for any distribution, at this confidence.

    It is the smallest order statistic with that property: the k-th of n is below the quantile only if at least k
    values are, which has a binomial probability.

    Returns:
        None if even the greatest value does not suffice: ``n`` is less than :func:`needed_samples`.
    """
    ordered = sorted(values)
    n = len(ordered)
    best, above = None, 0.0
    for k in range(n, 0, -1):  # from the greatest on, since the wanted one is near it
        above += _exactly(k, n, share)
        if above > 1 - confidence + 1e-12:
            break
        best = ordered[k - 1]
    return best


def needed_samples(share: float, confidence: float = CONFIDENCE) -> int:
    """The fewest values with which :func:`upper_bound` exists: 59 for p95, 299 for p99, at 95 %."""
    return math.ceil(math.log(1 - confidence) / math.log(share) - 1e-9)


def supported_share(n: int, confidence: float = CONFIDENCE) -> float:
    """The highest quantile that ``n`` values can bound: 0.95 for 59; 0 for none."""
    return (1 - confidence) ** (1 / n) if n else 0.0


def at_most(k: int, n: int, share: float) -> float:
    """Probability of at most ``k`` successes in ``n`` trials, each with the chance ``share`` (not 0 and not 1)."""
    return math.fsum(_exactly(i, n, share) for i in range(k + 1))


def _exactly(k: int, n: int, share: float) -> float:
    ways = math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1)
    return math.exp(ways + k * math.log(share) + (n - k) * math.log1p(-share))
