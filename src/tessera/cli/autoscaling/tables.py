"""Advice as text: for each group what was measured, the timers, what the present ones do, and what is to be done."""

from collections.abc import Iterator, Sequence

import msgspec

from tessera.provisioning.advise.findings import Finding, loop_of, span
from tessera.provisioning.advise.loop import ReplaceLoop
from tessera.provisioning.advise.samples import GroupTimes
from tessera.provisioning.advise.timers import Advice, Bound, Timers

SIMULATED = "simulated: these times come from the lab"


class GroupAdvice(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that is said of one group.

    Attributes:
        group: its name.
        labelled: whether its nodes carry an accelerator label; None if not known.
        simulated: times are the lab's.
        advice: bounds and timers.
        current: the timers in force.
        loop: what the present maxNodeProvisionTime does; None where it or the times are not known.
        advised_loop: the same for the advised one.
        findings: worst first.
    """

    group: str
    labelled: bool | None
    simulated: bool
    advice: Advice
    current: Timers
    loop: ReplaceLoop | None
    advised_loop: ReplaceLoop | None
    findings: tuple[Finding, ...]


def joined(
    times: GroupTimes, advice: Advice, current: Timers, labelled: bool | None, found: tuple[Finding, ...]
) -> GroupAdvice:
    """The parts as one value."""
    return GroupAdvice(
        group=times.group,
        labelled=labelled,
        simulated=times.simulated,
        advice=advice,
        current=current,
        loop=loop_of(times, current.max_node_provision),
        advised_loop=loop_of(times, advice.timers.max_node_provision),
        findings=found,
    )


def lines(told: Sequence[GroupAdvice]) -> Iterator[str]:
    """The report."""
    for place, each in enumerate(told):
        if place:
            yield ""
        yield f"node group {each.group or '(no name)'}" + (f"   ({SIMULATED})" if each.simulated else "")
        yield from _measured(each.advice)
        yield from _timers(each)
        yield from _loops(each)
        yield from _findings(each.findings)


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
    for name, current, advised in (
        ("maxNodeProvisionTime", now.max_node_provision, then.max_node_provision),
        ("maxNodeStartupTime", now.max_node_startup, then.max_node_startup),
        ("unneededTime", now.unneeded, then.unneeded),
        ("delayAfterAdd", now.delay_after_add, then.delay_after_add),
    ):
        yield f"  {name:<34}{_known(current):>14}{_known(advised):>9}"


def _known(seconds: float | None) -> str:
    return "unknown" if seconds is None else span(seconds)


def _loops(each: GroupAdvice) -> Iterator[str]:
    for name, loop in (("now", each.loop), ("advised", each.advised_loop)):
        if loop is not None:
            yield (
                f"  with maxNodeProvisionTime {span(loop.timer)} ({name}): {loop.late:.0%} of nodes replaced "
                f"({loop.late_low:.0%} to {loop.late_high:.0%}), {loop.attempts:.1f} attempts, "
                f"{loop.wasted_node_hours:.2f} wasted node hours per node"
            )


def _findings(found: Sequence[Finding]) -> Iterator[str]:
    for number, each in enumerate(found, start=1):
        yield f"  {number}. {each.text}"
        if each.remedy:
            yield f"     -> {each.remedy}"
