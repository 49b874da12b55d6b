"""Where Tessera's seconds come from: the reference's waits taken out one after the other, each step simulated anew.

A step's saving is the difference of two means, so savings sum to the whole difference exactly. What a wait costs
depends on what it is next to (a poll behind a longer wait costs nothing), so the order of the steps matters; it is the
order in which a node meets them. The last line is what is left: the parts that Tessera does not have at all.
"""

from collections.abc import Callable

import msgspec

from tessera.lab.experiments.measure import OURS, UPSTREAM
from tessera.lab.upstream.waits import REFERENCE, Waits, without
from tessera.provisioning.experiments.results import Samples

REST = "rest: one agent instead of a device plugin, a validator and their init containers"


class Saving(msgspec.Struct, frozen=True, kw_only=True):
    """One step.

    Attributes:
        what: the wait that was taken out, or the overlap that was made.
        seconds: how much the mean went down by it; negative if it went up.
        mean: the mean from there on.
    """

    what: str
    seconds: float
    mean: float


class Attribution(msgspec.Struct, frozen=True, kw_only=True):
    """Every second between two means.

    Attributes:
        reference: samples of the reference operator's order of steps.
        ours: samples of Tessera's.
        savings: the steps between them.
    """

    reference: Samples
    ours: Samples
    savings: tuple[Saving, ...]

    @property
    def saved(self) -> float:
        """All together, seconds."""
        return self.reference.summary.mean - self.ours.summary.mean


def attribute(
    measure: Callable[[str, Waits], Samples], *, told: Callable[[str], None] = lambda _what: None
) -> Attribution:
    """Measures the reference, the reference with fewer and fewer waits, and Tessera.

    Args:
        measure: samples of an order of steps, with the waits of the reference.
        told: what is measured next.
    """
    told("the reference operator")
    reference = measure(UPSTREAM, REFERENCE)
    savings, before = [], reference.summary.mean
    for what, waits in without():
        told(f"without {what}")
        mean = measure(UPSTREAM, waits).summary.mean
        savings.append(Saving(what=what, seconds=before - mean, mean=mean))
        before = mean
    told("tessera")
    ours = measure(OURS, REFERENCE)
    savings.append(Saving(what=REST, seconds=before - ours.summary.mean, mean=ours.summary.mean))
    return Attribution(reference=reference, ours=ours, savings=tuple(savings))
