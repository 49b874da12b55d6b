"""Compares samples of experiments: means with Student's interval, which readers of benchmarks expect.

Hand-written: scipy 1.17 with numpy takes 216 MB on disk, and its import 0.8 s of CPU and 100 MiB of memory. This module
needs two of its functions.
"""

import math
from collections.abc import Sequence
from statistics import fmean, median, stdev

import msgspec

from tessera.provisioning.statistics import CONFIDENCE

#: A standard deviation below this (a microsecond, where values are seconds) is the rounding of clocks, not variation.
_ROUNDING = 1e-6


class SampleSummary(msgspec.Struct, frozen=True, kw_only=True):
    """A sample in five numbers, in the unit of the sample.

    Attributes:
        n: number of values.
        mean: arithmetic mean.
        median: the middle value.
        low: lower end of the mean's interval at :data:`CONFIDENCE`; None for fewer than two values.
        high: its upper end.
        deviation: standard deviation of the sample; None for fewer than two values.
    """

    n: int
    mean: float
    median: float
    low: float | None
    high: float | None
    deviation: float | None


class SampleComparison(msgspec.Struct, frozen=True, kw_only=True):
    """Two samples compared: the second against the first.

    Attributes:
        difference: mean of the first minus mean of the second.
        low: lower end of the difference's interval at :data:`CONFIDENCE` (Welch); None if a sample has one value, or if
            neither varies.
        high: its upper end.
        ratio: mean of the second divided by that of the first; None if the first is 0.
        effect: Hedges' g, the difference in standard deviations, corrected for small samples; None as for ``low``, and
            if one of both does not vary, since its standard deviation then says nothing.
    """

    difference: float
    low: float | None
    high: float | None
    ratio: float | None
    effect: float | None


def summary(values: Sequence[float]) -> SampleSummary:
    """Describes a sample.

    Raises:
        ValueError: the sample is empty.
    """
    if not values:
        raise ValueError("a sample of no values has no mean")
    n, mean = len(values), fmean(values)
    if n == 1:
        return SampleSummary(n=1, mean=mean, median=values[0], low=None, high=None, deviation=None)
    deviation = stdev(values)
    half = student(n - 1) * deviation / math.sqrt(n)
    return SampleSummary(n=n, mean=mean, median=median(values), low=mean - half, high=mean + half, deviation=deviation)


def compare(first: Sequence[float], second: Sequence[float]) -> SampleComparison:
    """By how much the second sample is smaller than the first."""
    difference = fmean(first) - fmean(second)
    ratio = fmean(second) / fmean(first) if fmean(first) else None
    if min(len(first), len(second)) < 2:
        return SampleComparison(difference=difference, low=None, high=None, ratio=ratio, effect=None)
    one, two = stdev(first) ** 2 / len(first), stdev(second) ** 2 / len(second)
    if not _varies(first) and not _varies(second):
        return SampleComparison(difference=difference, low=None, high=None, ratio=ratio, effect=None)
    # Welch's degrees of freedom, rounded down, which widens the interval.
    freedom = (one + two) ** 2 / (one**2 / (len(first) - 1) + two**2 / (len(second) - 1))
    half = student(max(1, int(freedom))) * math.sqrt(one + two)
    return SampleComparison(
        difference=difference,
        low=difference - half,
        high=difference + half,
        ratio=ratio,
        effect=_hedges(first, second, difference) if _varies(first) and _varies(second) else None,
    )


def _varies(values: Sequence[float]) -> bool:
    return stdev(values) > _ROUNDING


def _hedges(first: Sequence[float], second: Sequence[float], difference: float) -> float:
    freedom = len(first) + len(second) - 2
    pooled = ((len(first) - 1) * stdev(first) ** 2 + (len(second) - 1) * stdev(second) ** 2) / freedom
    return difference / math.sqrt(pooled) * (1 - 3 / (4 * freedom - 1))


def student(freedom: int, confidence: float = CONFIDENCE) -> float:
    """The factor of a two-sided interval: Student's t with this many degrees of freedom."""
    low, high = 0.0, 1.0
    while _within(high, freedom) < confidence:
        high *= 2
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if _within(middle, freedom) < confidence else (low, middle)
    return (low + high) / 2


def _within(t: float, freedom: int) -> float:
    """Probability that Student's t lies between -t and t: Abramowitz and Stegun, 26.7.3 and 26.7.4."""
    angle = math.atan(t / math.sqrt(freedom))
    cosine, sine = math.cos(angle), math.sin(angle)
    odd = freedom % 2
    if freedom == 1:
        return 2 * angle / math.pi
    term, total = (cosine, cosine) if odd else (1.0, 1.0)
    for i in range(2 + odd, freedom - 1, 2):
        term *= (i - 1) / i * cosine**2
        total += term
    return 2 / math.pi * (angle + sine * total) if odd else sine * total
