"""How scenarios of an experiment differ: of two that differ in one thing, by how much, and how sure that is. Pure."""

from collections.abc import Iterator, Sequence

import msgspec

from tessera.provisioning.experiments.results import Samples, contrast
from tessera.provisioning.report.table import seconds


class Difference(msgspec.Struct, frozen=True, kw_only=True):
    """Two scenarios, as texts.

    Attributes:
        what: from which to which.
        change: of the mean, seconds; below zero where the second is faster.
        share: the same in parts of the first.
        interval: of the change, at 95 % confidence.
        effect: Hedges' g.
        simulated: one of both is.
    """

    what: str
    change: str
    share: str
    interval: str
    effect: str
    simulated: bool


def differences(results: Sequence[Samples]) -> Iterator[Difference]:
    """Of each two scenarios of an experiment that have the same order of steps, or the same name."""
    counted = [each for each in results if each.samples]
    for place, first in enumerate(counted):
        for second in counted[place + 1 :]:
            alike = first.operator == second.operator or first.scenario == second.scenario
            if first.experiment == second.experiment and alike:
                yield _difference(first, second)


def _difference(first: Samples, second: Samples) -> Difference:
    told = contrast(first, second)
    found = told.comparison
    known = found.low is not None and found.high is not None
    return Difference(
        what=f"{told.slower} → {told.faster}",
        change=_signed(-found.difference),
        share="-" if found.ratio is None else f"{found.ratio - 1:+.0%}",
        interval=f"{_signed(-(found.high or 0.0))} to {_signed(-(found.low or 0.0))}" if known else "-",
        effect="-" if found.effect is None else f"{found.effect:.1f}",
        simulated=first.simulated or second.simulated,
    )


def _signed(value: float) -> str:
    sign = "-" if value < 0 else "+"
    return f"{sign}{seconds(abs(value))}"
