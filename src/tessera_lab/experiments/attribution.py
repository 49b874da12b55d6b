"""Attributes Tessera's savings to waits: removes the reference's waits one by one and simulates each step anew.

A step's saving is the difference of two means, so savings sum to the whole difference exactly. The cost of a wait
depends on its neighbours (a poll behind a longer wait costs nothing), so the order of the steps matters: polls are
removed first, from the last one on, since each poll rounds the steps before it.

For the same reason the steps are measured under a kubelet that publishes at once: rounded to its ten seconds, a step
would save nothing or ten. What the rounding makes of both means has a line of its own. It is no saving: both orders of
steps are rounded, and which one more is chance. The rest, which no step explains, is listed as left over.
"""

from collections.abc import Callable

import msgspec

from tessera_lab.experiments.results import AUTOSCALE, Samples
from tessera_lab.experiments.runs import OURS, UPSTREAM
from tessera_lab.reference_operator.waits import PUBLISHED_AT_ONCE, REFERENCE, ReferenceWaits, remove_wait

UNEXPLAINED = "left over: what no wait and no overlap explains"
PERIOD = "rounding: kubelet publishes every 10 s, which rounds both means up"


class WaitSaving(msgspec.Struct, frozen=True, kw_only=True):
    """One step.

    Attributes:
        wait: the wait that was removed, or the overlap that was added.
        seconds: how much the mean went down by it; negative if it went up.
    """

    wait: str
    seconds: float


class Attribution(msgspec.Struct, frozen=True, kw_only=True):
    """Every second between two means.

    Attributes:
        reference: samples of the reference operator's order of steps.
        ours: samples of Tessera's.
        savings: the steps between them, then :data:`UNEXPLAINED`, then :data:`PERIOD`.
    """

    reference: Samples
    ours: Samples
    savings: tuple[WaitSaving, ...]

    @property
    def total_saving(self) -> float:
        """Sum of all savings, seconds."""
        return self.reference.summary.mean - self.ours.summary.mean


def attribute(
    measure: Callable[[str, ReferenceWaits], Samples],
    *,
    built: bool,
    report: Callable[[str], None] = lambda _what: None,
) -> Attribution:
    """Measures the reference, the reference with fewer and fewer waits, and Tessera.

    Args:
        measure: samples of an order of steps, with the waits of the reference.
        built: the driver is built on the node.
        report: called with the name of the next measurement.
    """

    def mean(order: str, waits: ReferenceWaits, step: str) -> float:
        report(step)
        return measure(order, waits).summary.mean

    report("the reference operator")
    reference = measure(UPSTREAM, REFERENCE)
    began = before = mean(UPSTREAM, PUBLISHED_AT_ONCE, "the reference operator, published at once")
    savings = []
    for wait, waits in remove_wait(new_node=reference.experiment == AUTOSCALE, built=built):
        after = mean(UPSTREAM, waits, f"without {wait}")
        savings.append(WaitSaving(wait=wait, seconds=before - after))
        before = after
    after = mean(OURS, PUBLISHED_AT_ONCE, "Tessera, published at once")
    savings.append(WaitSaving(wait=UNEXPLAINED, seconds=before - after))
    report("Tessera")
    ours = measure(OURS, REFERENCE)
    rounding = (reference.summary.mean - ours.summary.mean) - (began - after)
    savings.append(WaitSaving(wait=PERIOD, seconds=rounding))
    return Attribution(reference=reference, ours=ours, savings=tuple(savings))
