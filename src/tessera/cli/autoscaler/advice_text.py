"""Advice as text: for each group what was measured, the timers, what the present ones do, and what is to be done."""

import math
from collections.abc import Iterator, Sequence

import msgspec
import yaml

from tessera.cli.autoscaler.cluster_facts import ClusterFacts
from tessera.cli.base.console import say, say_document
from tessera.provisioning.advise import emit
from tessera.provisioning.advise.findings import Finding, Labels, span
from tessera.provisioning.advise.loop import ReplaceLoop, empty_loop, provision_loop
from tessera.provisioning.advise.samples import GroupTimes
from tessera.provisioning.advise.timers import Advice, Bound, Timers
from tessera.provisioning.options import STARTUP_TAINT

SIMULATED = "simulated: these times come from the lab"
#: What people call each timer, and the option that says which one is in force.
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


def build_group_advice(
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


def advice_lines(told: Sequence[GroupAdvice], cluster: Sequence[Finding] = ()) -> Iterator[str]:
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
        yield from finding_lines(each.findings)
    if cluster:
        yield from [""] if told else []
        yield "all node groups"
        yield from finding_lines(cluster)


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
    yield f"  {'timer':<34}{'now':>14}{'advised':>9}"
    reasons = dict(kept_timers(each))
    for field, name in {"unneeded": "consolidateAfter"}.items() if each.karpenter else TIMERS.items():
        now, then = getattr(each.current, field), getattr(each.advice.timers, field)
        why = f"   {reasons[field]}" if field in reasons else ""
        yield f"  {name:<34}{_known(now):>14}{_known(then):>9}{why}"


def kept_timers(each: GroupAdvice) -> Iterator[tuple[str, str]]:
    """The timers that are not as short as what was measured, with what keeps them: ``kept at 15m: too few samples``."""
    for field, why in each.advice.kept.items():
        now, then = getattr(each.current, field), getattr(each.advice.timers, field)
        if each.karpenter and field != "unneeded":
            continue
        if then is None:
            yield field, f"left as it is: {why}"
        else:
            how = "kept at" if now is not None and now >= then else "not below the default of"
            yield field, f"{how} {span(then)}: {why}"


def _known(seconds: float | None) -> str:
    return "unknown" if seconds is None else span(seconds)


def _loops(each: GroupAdvice) -> Iterator[str]:
    told = (
        ("maxNodeProvisionTime", "now", each.loop),
        ("maxNodeProvisionTime", "advised", each.advised_loop if each.advised_loop != each.loop else None),
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


def finding_lines(found: Sequence[Finding]) -> Iterator[str]:
    """Numbered, each with what to do about it."""
    for number, each in enumerate(found, start=1):
        yield f"  {number}. {each.text}"
        if each.remedy:
            yield f"     -> {each.remedy}"


def print_for_autoscaler(
    groups: Sequence[GroupAdvice], cluster: Sequence[Finding], facts: ClusterFacts, form: str
) -> None:
    """Prints it.

    Args:
        groups: each group's advice.
        cluster: what concerns all groups.
        facts: of the cluster's autoscaler.
        form: one of :data:`tessera.provisioning.advise.emit.FORMATS`.
    """
    advices = [each.advice for each in groups]
    longest = emit.longest(advices)
    for line in (*_first(groups, cluster), *_notes(form, longest.max_node_startup)):
        say(line, err=True)
    match form:
        case "openshift":
            made = emit.openshift(longest, scale_down=facts.settings.scale_down is not False)
            say_document(yaml.safe_dump(made, sort_keys=False))
        case "flags":
            say(*emit.flags(longest))
        case "capi":
            for each in advices:
                say(f"# node group {each.group or '(no name)'}: annotations of its MachineSet or MachineDeployment")
                annotations = emit.capi(each, facts.annotation_group(each.group))
                say_document(yaml.safe_dump(annotations, sort_keys=False))
        case _:
            pools = [emit.karpenter(each, STARTUP_TAINT) for each in advices]
            say_document(yaml.safe_dump_all(pools, sort_keys=False))


def _first(groups: Sequence[GroupAdvice], cluster: Sequence[Finding]) -> Iterator[str]:
    """What stands in the table and not in what is printed."""
    if any(each.simulated for each in groups):
        yield f"warning: {SIMULATED}; set no real timer by them"
    for each in groups:
        said = [*_kept(each), *finding_lines(each.findings)]
        if said:
            yield f"node group {each.group or '(no name)'}"
            yield from said
    if cluster:
        yield "all node groups"
        yield from finding_lines(cluster)


def _kept(each: GroupAdvice) -> Iterator[str]:
    for timer, why in kept_timers(each):
        ask = ""
        if getattr(each.current, timer) is None and getattr(each.advice.timers, timer) is not None:
            ask = f"; the present one is not known: if it is longer, give {OPTIONS[timer]}"
        name = "consolidateAfter" if each.karpenter else TIMERS[timer]
        yield f"  {name} {why}{ask}"


def _notes(form: str, startup: float | None) -> Iterator[str]:
    """What the form cannot say, or does beside what it says."""
    if form in {"openshift", "flags"}:
        yield "note: these timers hold for all node groups, also for those that were not measured; -o capi is for one"
    if form == "openshift" and startup is not None:
        yield "note: it has no field for maxNodeStartupTime; annotate the MachineSets: -o capi"
    if form == "flags" and startup is not None:
        yield "note: a cluster autoscaler before 1.35 has no --max-node-startup-time and does not start with it"
    if form == "karpenter":
        yield "note: startupTaints is one list: add what the NodePool has in it already"
