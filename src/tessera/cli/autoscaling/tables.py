"""Advice as text: for each group what was measured, the timers, what the present ones do, and what is to be done."""

import math
from collections.abc import Iterator, Sequence

import msgspec

from tessera.provisioning.advise.findings import Finding, Labels, span
from tessera.provisioning.advise.loop import ReplaceLoop, empty_loop, provision_loop
from tessera.provisioning.advise.samples import GroupTimes
from tessera.provisioning.advise.timers import Advice, Bound, Timers

SIMULATED = "simulated: these times come from the lab"


class GroupAdvice(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that is said of one group.

    Attributes:
        group: its name.
        labels: what is known of the accelerator label.
        simulated: times are the lab's.
        advice: bounds and timers.
        current: the timers in force.
        loop: what the present maxNodeProvisionTime does; None where it or the times are not known.
        advised_loop: the same for the advised one.
        empty_loop: what the present unneededTime does to nodes without the label; None where they have it.
        karpenter: its nodes are Karpenter's, which knows of these timers only ``unneeded``, as consolidateAfter.
        findings: worst first.
    """

    group: str
    labels: Labels
    simulated: bool
    advice: Advice
    current: Timers
    loop: ReplaceLoop | None
    advised_loop: ReplaceLoop | None
    empty_loop: ReplaceLoop | None
    findings: tuple[Finding, ...]
    karpenter: bool = False


def joined(
    times: GroupTimes, advice: Advice, current: Timers, labels: Labels, found: tuple[Finding, ...], *, karpenter: bool
) -> GroupAdvice:
    """The parts as one value; Karpenter has no timers that loop."""
    return GroupAdvice(
        group=times.group,
        labels=labels,
        simulated=times.simulated,
        advice=advice,
        current=current,
        loop=None if karpenter else provision_loop(times, current),
        advised_loop=None if karpenter else provision_loop(times, advice.timers),
        empty_loop=None if karpenter or labels.there else empty_loop(times, current),
        findings=found,
        karpenter=karpenter,
    )


def lines(told: Sequence[GroupAdvice], cluster: Sequence[Finding] = ()) -> Iterator[str]:
    """The report.

    Args:
        told: each group's.
        cluster: what concerns all groups.
    """
    for place, each in enumerate(told):
        if place:
            yield ""
        yield f"node group {each.group or '(no name)'}" + (f"   ({SIMULATED})" if each.simulated else "")
        yield from _measured(each.advice)
        yield from _timers(each)
        yield from _loops(each)
        yield from _findings(each.findings)
    if cluster:
        yield ""
        yield "all node groups"
        yield from _findings(cluster)


def _measured(advice: Advice) -> Iterator[str]:
    yield f"  {'measured':<34}{'n':>5}{'p50':>9}{'p99':>9}   at most, with 95 % confidence"
    named = (
        ("request to usable card", advice.provision),
        ("registration to usable card", advice.startup),
        ("Ready to usable card", advice.ready),
    )
    for name, bound in named:
        yield f"  {name:<34}" + (
            _bound(bound) if bound is not None else f"{0:>5}{'unknown':>9}{'unknown':>9}   unknown"
        )


def _bound(bound: Bound) -> str:
    share = f"p{bound.share * 100:.0f}"
    least = "" if bound.supported else " (too few for p99)"
    return f"{bound.n:>5}{span(bound.median):>9}{span(bound.p99):>9}   {span(bound.seconds)}, {share}{least}"


def _timers(each: GroupAdvice) -> Iterator[str]:
    now, then = each.current, each.advice.timers
    yield f"  {'timer':<34}{'now':>14}{'advised':>9}"
    rows = [
        ("maxNodeProvisionTime", now.max_node_provision, then.max_node_provision),
        ("maxNodeStartupTime", now.max_node_startup, then.max_node_startup),
        ("unneededTime", now.unneeded, then.unneeded),
        ("delayAfterAdd", now.delay_after_add, then.delay_after_add),
    ]
    if each.karpenter:
        rows = [("consolidateAfter", now.unneeded, then.unneeded)]
    for name, current, advised in rows:
        yield f"  {name:<34}{_known(current):>14}{_known(advised):>9}"


def _known(seconds: float | None) -> str:
    return "unknown" if seconds is None else span(seconds)


def _loops(each: GroupAdvice) -> Iterator[str]:
    told = (
        ("maxNodeProvisionTime", "now", each.loop),
        ("maxNodeProvisionTime", "advised", each.advised_loop),
        ("no label, empty nodes kept", "now", each.empty_loop),
    )
    for timer, name, loop in told:
        if loop is not None:
            yield (
                f"  with {timer} {span(loop.timer)} ({name}): {loop.late:.0%} of nodes replaced "
                f"({loop.late_low:.0%} to {loop.late_high:.0%}), {_cost(loop)}"
            )


def _cost(loop: ReplaceLoop) -> str:
    if math.isinf(loop.attempts):
        return "without end"
    return f"{loop.attempts:.1f} attempts, {loop.wasted_node_hours:.2f} wasted node hours per node"


def _findings(found: Sequence[Finding]) -> Iterator[str]:
    for number, each in enumerate(found, start=1):
        yield f"  {number}. {each.text}"
        if each.remedy:
            yield f"     -> {each.remedy}"
