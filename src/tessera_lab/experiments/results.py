"""Samples of an experiment by scenario, and the means that Red Hat published for the same experiments.

The first sample of a scenario can be kept apart: on a fresh node it pulls images that later samples find there. It is
shown but not counted, as in Red Hat's article.

Source of the published means: Red Hat, "How precompiled drivers improve NVIDIA GPU autoscaling on Red Hat OpenShift":
OpenShift 4.13, AWS g4dn.xlarge, Tesla T4. Number of samples and spread were not published.

Samples are compared by means with Student's interval, which readers of benchmarks expect.

Hand-written: scipy 1.17 with numpy takes 216 MB on disk, and its import 0.8 s of CPU and 100 MiB of memory. This module
needs two of its functions.
"""

import math
from collections.abc import Mapping, Sequence
from statistics import fmean, median, stdev
from typing import Annotated

import msgspec

from tessera.api.problems import FileRefused, Problem
from tessera.provisioning.start_times import CONFIDENCE

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


POLICY_RESET = "policy-reset"
AUTOSCALE = "autoscale"
#: The operator of samples from a live cluster: the one installed there, which the measurement does not know.
AS_INSTALLED = "as installed"


#: A time in a file; limited to a thousand years, since statistics on longer ones fail.
Seconds = Annotated[float, msgspec.Meta(ge=0, le=3e10)]


class Samples(msgspec.Struct, frozen=True, kw_only=True):
    """The times of one scenario, seconds.

    Attributes:
        experiment: :data:`POLICY_RESET` or :data:`AUTOSCALE`.
        scenario: the way to get drivers: built, precompiled from a public registry …
        operator: in the lab tessera or the reference; else :data:`AS_INSTALLED`.
        first: the sample that is shown but not counted; None if all count.
        samples: the samples that count.
        simulated: True for samples from a lab.
    """

    experiment: str
    scenario: str
    operator: str = AS_INSTALLED
    first: Seconds | None = None
    samples: tuple[Seconds, ...] = ()
    simulated: bool = False

    @property
    def summary(self) -> SampleSummary:
        """Mean, median, interval and n of the counted samples; the interval stops at 0, the shortest possible time."""
        found = summary(self.samples)
        return found if found.low is None else msgspec.structs.replace(found, low=max(0.0, found.low))


class Contrast(msgspec.Struct, frozen=True, kw_only=True):
    """The comparison of two scenarios.

    Attributes:
        slower: name of the first.
        faster: name of the second.
        comparison: by how much the second is shorter.
    """

    slower: str
    faster: str
    comparison: SampleComparison


def contrast(first: Samples, second: Samples) -> Contrast:
    """Compares two scenarios."""
    return Contrast(
        slower=f"{first.scenario} ({first.operator})",
        faster=f"{second.scenario} ({second.operator})",
        comparison=compare(first.samples, second.samples),
    )


def read_results(text: str) -> tuple[Samples, ...]:
    """Reads results from the JSON that ``tessera bench … --json FILE`` writes.

    Raises:
        FileRefused: the text is not such JSON.
    """
    try:
        return tuple(msgspec.json.decode(text, type=_File).results)
    except (msgspec.DecodeError, RecursionError) as error:
        raise FileRefused([Problem("", f"is no file of results: {error}")]) from None


def read_experiments(text: str, name: str) -> tuple[Samples, ...]:
    """The results of experiments in a file: the output of ``tessera bench``, or a list of such objects.

    Args:
        text: its content.
        name: its name in messages.

    Raises:
        ValueError: the file has none; the text names file and mistake.
    """
    try:
        if not text.lstrip().startswith("["):
            return read_results(text)
        return msgspec.json.decode(text, type=tuple[Samples, ...])
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise ValueError(f"{name}: holds no results of experiments: {error}") from None


def write_results(results: Sequence[Samples]) -> bytes:
    """The results as JSON for a file."""
    return msgspec.json.format(msgspec.json.encode(_File(results=list(results))), indent=2) + b"\n"


class _File(msgspec.Struct, kw_only=True):
    results: list[Samples]


#: Red Hat's means in seconds, by experiment and scenario.
RED_HAT: Mapping[tuple[str, str], float] = {
    (POLICY_RESET, "built"): 308.0,
    (POLICY_RESET, "precompiled-public"): 132.0,
    (AUTOSCALE, "built"): 369.0,
    (AUTOSCALE, "precompiled-public"): 217.0,
    (AUTOSCALE, "precompiled-internal"): 207.0,
}


def red_hats(samples: Samples) -> float | None:
    """Red Hat's mean of a simulated scenario; None for other scenarios and for measurements on a cluster."""
    return RED_HAT.get((samples.experiment, samples.scenario)) if samples.simulated else None
