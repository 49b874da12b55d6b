"""Samples of an experiment by scenario, and the means that Red Hat published for the same experiments.

The first sample of a scenario can be kept apart: on a fresh node it pulls images that later samples find there. It is
shown and not counted, as in Red Hat's article.

Source of the published means: Red Hat, "How precompiled drivers improve NVIDIA GPU autoscaling on Red Hat OpenShift":
OpenShift 4.13, AWS g4dn.xlarge, Tesla T4. Number of samples and spread were not published.
"""

from collections.abc import Mapping, Sequence
from typing import Annotated

import msgspec

from tessera.api.documents import FileRefused, Problem
from tessera.provisioning.statistics import Comparison, Summary, compare, summary

POLICY_RESET = "policy-reset"
AUTOSCALE = "autoscale"
#: Whose order of steps a live cluster shows: that of whoever manages its drivers, which a measurement does not know.
AS_INSTALLED = "as installed"


#: A time as files may hold one; with more than a thousand years nothing can be reckoned.
Seconds = Annotated[float, msgspec.Meta(ge=0, le=3e10)]


class Samples(msgspec.Struct, frozen=True, kw_only=True):
    """What one scenario took, seconds.

    Attributes:
        experiment: :data:`POLICY_RESET` or :data:`AUTOSCALE`.
        scenario: what was tried: built, precompiled from a public registry …
        operator: whose order of steps: in the lab tessera or the reference, else :data:`AS_INSTALLED`.
        first: the sample that is shown and not counted; None where all count.
        samples: those that count.
        simulated: it happened in a lab.
    """

    experiment: str
    scenario: str
    operator: str = AS_INSTALLED
    first: Seconds | None = None
    samples: tuple[Seconds, ...] = ()
    simulated: bool = False

    @property
    def summary(self) -> Summary:
        """Mean, median, interval and n of what counts; the interval ends at 0, since no duration is less."""
        told = summary(self.samples)
        return told if told.low is None else msgspec.structs.replace(told, low=max(0.0, told.low))


class Contrast(msgspec.Struct, frozen=True, kw_only=True):
    """One scenario against another.

    Attributes:
        slower: name of the first.
        faster: name of the second.
        comparison: how much less the second is.
    """

    slower: str
    faster: str
    comparison: Comparison


def contrast(first: Samples, second: Samples) -> Contrast:
    """How two scenarios differ."""
    return Contrast(
        slower=f"{first.scenario} ({first.operator})",
        faster=f"{second.scenario} ({second.operator})",
        comparison=compare(first.samples, second.samples),
    )


def read_results(text: str) -> tuple[Samples, ...]:
    """Results as a file holds them: the JSON that ``tessera bench … --json FILE`` writes.

    Raises:
        FileRefused: it is none.
    """
    try:
        return tuple(msgspec.json.decode(text, type=_File).results)
    except (msgspec.DecodeError, RecursionError) as error:
        raise FileRefused([Problem("", f"is no file of results: {error}")]) from None


def write_results(results: Sequence[Samples]) -> bytes:
    """Results as a file holds them."""
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
    """Red Hat's mean of a scenario that the lab played; None for others and for what was measured on a cluster."""
    return RED_HAT.get((samples.experiment, samples.scenario)) if samples.simulated else None
