"""Samples of an experiment by scenario, and the means that Red Hat published for the same experiments.

The first sample of a scenario can be kept apart: on a fresh node it pulls images that later samples find there. It is
shown but not counted, as in Red Hat's article.

Source of the published means: Red Hat, "How precompiled drivers improve NVIDIA GPU autoscaling on Red Hat OpenShift":
OpenShift 4.13, AWS g4dn.xlarge, Tesla T4. Number of samples and spread were not published.
"""

from collections.abc import Mapping, Sequence
from typing import Annotated

import msgspec

from tessera.api.problems import FileRefused, Problem
from tessera_lab.experiments.comparison import SampleComparison, SampleSummary, compare, summary

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
