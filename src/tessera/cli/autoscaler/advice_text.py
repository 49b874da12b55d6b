"""Advice as text: each group's measured times, its timers, the effect of the present timers, and the remedies."""

import math
from collections.abc import Iterator, Sequence

import msgspec
import yaml

from tessera.cli.autoscaler.cluster_facts import ClusterFacts
from tessera.cli.base.console import say, say_document
from tessera.provisioning import timer_advice as findings
from tessera.provisioning.start_times import GroupTimes
from tessera.provisioning.startup_deadline import STARTUP_TAINT
from tessera.provisioning.timer_advice import Finding, Labels, span
from tessera.provisioning.timers import Advice, Bound, ReplaceLoop, Timers, empty_loop, provision_loop

SIMULATED = "simulated: these times come from the lab"
#: The name of each timer, and the option that gives its present value.
TIMERS = {
    "max_node_provision": "maxNodeProvisionTime",
    "max_node_startup": "maxNodeStartupTime",
    "unneeded": "unneededTime",
    "delay_after_add": "delayAfterAdd",
}
OPTIONS = {
    "max_node_provision": "--max-node-provision-time",
    "max_node_startup": "--max-node-startup-time",
    "unneeded": "--unneeded-time",
    "delay_after_add": "--delay-after-add",
}


class GroupAdvice(msgspec.Struct, frozen=True, kw_only=True):
    """The advice for one group.

    Attributes:
        group: its name.
        labels: its accelerator label.
        simulated: True for times of a lab.
        advice: bounds and advised timers.
        current: the present timers.
        loop: effect of the present maxNodeProvisionTime; None if the timer or the times are unknown.
        advised_loop: effect of the advised maxNodeProvisionTime.
        empty_loop: effect of the present unneededTime on nodes without the label; None if they have it.
        karpenter: True for nodes of Karpenter, which has only the timer ``unneeded``, as consolidateAfter.
        findings: mistakes, worst first.
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


def build_group_advice(
    times: GroupTimes, advice: Advice, current: Timers, labels: Labels, found: tuple[Finding, ...], *, karpenter: bool
) -> GroupAdvice:
    """The advice from its parts; Karpenter has no timers by which nodes are replaced again and again."""
    return GroupAdvice(
        group=times.group,
        labels=labels,
        simulated=times.simulated,
        advice=advice,
        current=current,
        loop=None if karpenter else provision_loop(times, current),
        advised_loop=None if karpenter else provision_loop(times, advice.timers),
        empty_loop=None if karpenter or labels.present else empty_loop(times, current),
        findings=found,
        karpenter=karpenter,
    )


def advice_lines(groups: Sequence[GroupAdvice], cluster: Sequence[Finding] = ()) -> Iterator[str]:
    """The report.

    Args:
        groups: the advice for each group.
        cluster: findings about all groups.
    """
    for place, each in enumerate(groups):
        if place:
            yield ""
        yield f"node group {each.group or '(no name)'}" + (f"   ({SIMULATED})" if each.simulated else "")
        yield from _describe_measurements(each.advice)
        yield from _timers(each)
        yield from _loops(each)
        yield from finding_lines(each.findings)
    if cluster:
        yield from [""] if groups else []
        yield "all node groups"
        yield from finding_lines(cluster)


def _describe_measurements(advice: Advice) -> Iterator[str]:
    yield f"  {'measured':<34}{'n':>5}{'p50':>9}{'p99':>9}   at most, with 95 % confidence"
    named = (
        ("request to usable card", advice.provision),
        ("registration to usable card", advice.startup),
        ("Ready to usable card", advice.ready),
    )
    for name, bound in named:
        yield f"  {name:<34}" + (
            _bound_text(bound) if bound is not None else f"{0:>5}{'unknown':>9}{'unknown':>9}   unknown"
        )


def _bound_text(bound: Bound) -> str:
    share = f"p{bound.share * 100:.0f}"
    least = "" if bound.supported else " (too few for p99)"
    return f"{bound.n:>5}{span(bound.median):>9}{span(bound.p99):>9}   {span(bound.seconds)}, {share}{least}"


def _timers(each: GroupAdvice) -> Iterator[str]:
    yield f"  {'timer':<34}{'now':>14}{'advised':>9}"
    reasons = dict(unshortened_timers(each))
    for field, name in {"unneeded": "consolidateAfter"}.items() if each.karpenter else TIMERS.items():
        now, then = getattr(each.current, field), getattr(each.advice.timers, field)
        why = f"   {reasons[field]}" if field in reasons else ""
        yield f"  {name:<34}{_time_text(now):>14}{_time_text(then):>9}{why}"


def unshortened_timers(each: GroupAdvice) -> Iterator[tuple[str, str]]:
    """The timers that stay longer than the measured times, with the reason: ``kept at 15m: too few samples``."""
    for field, why in each.advice.kept.items():
        now, then = getattr(each.current, field), getattr(each.advice.timers, field)
        if each.karpenter and field != "unneeded":
            continue
        if then is None:
            yield field, f"left as it is: {why}"
        else:
            how = "kept at" if now is not None and now >= then else "not below the default of"
            yield field, f"{how} {span(then)}: {why}"


def _time_text(seconds: float | None) -> str:
    return "unknown" if seconds is None else span(seconds)


def _loops(each: GroupAdvice) -> Iterator[str]:
    loops = (
        ("maxNodeProvisionTime", "now", each.loop),
        ("maxNodeProvisionTime", "advised", each.advised_loop if each.advised_loop != each.loop else None),
        ("no label, empty nodes kept", "now", each.empty_loop),
    )
    for timer, name, loop in loops:
        if loop is not None:
            yield (
                f"  with {timer} {span(loop.timer)} ({name}): {loop.late:.0%} of nodes replaced "
                f"({loop.late_low:.0%} to {loop.late_high:.0%}), {_cost(loop)}"
            )


def _cost(loop: ReplaceLoop) -> str:
    if math.isinf(loop.attempts):
        return "without end"
    return f"{loop.attempts:.1f} attempts, {loop.wasted_node_hours:.2f} wasted node hours per node"


def finding_lines(found: Sequence[Finding]) -> Iterator[str]:
    """The findings with numbers, each with its remedy."""
    for number, each in enumerate(found, start=1):
        yield f"  {number}. {each.text}"
        if each.remedy:
            yield f"     -> {each.remedy}"


def print_for_autoscaler(
    groups: Sequence[GroupAdvice], cluster: Sequence[Finding], facts: ClusterFacts, form: str
) -> None:
    """Prints advice as settings of an autoscaler, and findings and notes on standard error.

    Args:
        groups: the advice for each group.
        cluster: findings about all groups.
        facts: facts about the cluster's autoscaler.
        form: one of :data:`tessera.provisioning.timer_advice.FORMATS`.
    """
    advices = [each.advice for each in groups]
    longest = findings.longest(advices)
    for line in (*_warnings(groups, cluster), *_notes(form, longest.max_node_startup)):
        say(line, err=True)
    match form:
        case "openshift":
            made = findings.openshift(longest, scale_down=facts.settings.scale_down is not False)
            say_document(yaml.safe_dump(made, sort_keys=False))
        case "flags":
            say(*findings.flags(longest))
        case "capi":
            for each in advices:
                say(f"# node group {each.group or '(no name)'}: annotations of its MachineSet or MachineDeployment")
                annotations = findings.capi(each, facts.annotation_group(each.group))
                say_document(yaml.safe_dump(annotations, sort_keys=False))
        case _:
            pools = [findings.karpenter(each, STARTUP_TAINT) for each in advices]
            say_document(yaml.safe_dump_all(pools, sort_keys=False))


def _warnings(groups: Sequence[GroupAdvice], cluster: Sequence[Finding]) -> Iterator[str]:
    """The parts of the table that settings of an autoscaler do not contain."""
    if any(each.simulated for each in groups):
        yield f"warning: {SIMULATED}; do not set a real timer by them"
    for each in groups:
        lines = [*_unshortened_lines(each), *finding_lines(each.findings)]
        if lines:
            yield f"node group {each.group or '(no name)'}"
            yield from lines
    if cluster:
        yield "all node groups"
        yield from finding_lines(cluster)


def _unshortened_lines(each: GroupAdvice) -> Iterator[str]:
    for timer, why in unshortened_timers(each):
        hint = ""
        if getattr(each.current, timer) is None and getattr(each.advice.timers, timer) is not None:
            hint = f"; the present timer is unknown: if it is longer, give {OPTIONS[timer]}"
        name = "consolidateAfter" if each.karpenter else TIMERS[timer]
        yield f"  {name} {why}{hint}"


def _notes(form: str, startup: float | None) -> Iterator[str]:
    """Notes on settings that the form cannot express, and on its side effects."""
    if form in {"openshift", "flags"}:
        yield "note: these timers apply to all node groups, measured or not; -o capi prints them for each group"
    if form == "openshift" and startup is not None:
        yield "note: ClusterAutoscaler has no field for maxNodeStartupTime; annotate the MachineSets: -o capi"
    if form == "flags" and startup is not None:
        yield "note: a cluster autoscaler before 1.35 does not know --max-node-startup-time and does not start with it"
    if form == "karpenter":
        yield "note: startupTaints is one list: add the taints that the NodePool has already"
