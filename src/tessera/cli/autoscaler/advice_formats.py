"""Advice in an autoscaler's own words on standard output, and on the other one what its reader has to know first.

What is printed is piped into a cluster, so nobody reads the table: why a timer is not shorter, and the findings, worst
first, go to standard error.
"""

from collections.abc import Iterator, Sequence

import yaml

from tessera.cli.autoscaler.advice_text import OPTIONS, SIMULATED, TIMERS, GroupAdvice, kept, lines_of_findings
from tessera.cli.autoscaler.cluster_facts import ClusterFacts
from tessera.cli.base.console import say, say_document
from tessera.provisioning.advise import emit
from tessera.provisioning.advise.findings import Finding
from tessera.provisioning.options import STARTUP_TAINT


def told(groups: Sequence[GroupAdvice], cluster: Sequence[Finding], facts: ClusterFacts, form: str) -> None:
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
        said = [*_kept(each), *lines_of_findings(each.findings)]
        if said:
            yield f"node group {each.group or '(no name)'}"
            yield from said
    if cluster:
        yield "all node groups"
        yield from lines_of_findings(cluster)


def _kept(each: GroupAdvice) -> Iterator[str]:
    for timer, why in kept(each):
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
