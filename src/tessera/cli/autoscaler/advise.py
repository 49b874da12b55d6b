"""``tessera autoscaler advise``: timers from measured times, and what the present ones do."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tessera.cli.autoscaler.measured_times import FILE, times_and_facts
from tessera.cli.base.connection import CommandError, cluster_options, report_errors
from tessera.cli.base.console import say, say_json
from tessera.cli.base.inputs import Duration

if TYPE_CHECKING:
    from tessera.cli.autoscaler.advice_text import GroupAdvice
    from tessera.cli.autoscaler.cluster_facts import ClusterFacts
    from tessera.provisioning.advise.findings import Labels
    from tessera.provisioning.advise.samples import GroupTimes
    from tessera.provisioning.advise.timers import Timers

_DURATION = Duration()


@click.command()
@click.option(
    "--samples",
    type=FILE,
    metavar="FILE",
    help="Times from a file instead of the cluster: CSV or JSON with group, and provision, startup or ready (seconds"
    " from request, registration or Ready until the cards are usable); or records, as tessera provisioning report"
    " -o json prints them; or results of tessera bench autoscale. - reads standard input.",
)
@click.option("--group", "groups", multiple=True, metavar="NAME", help="Only this node group; repeatable.")
@click.option(
    "--labelled/--unlabelled",
    default=None,
    help="Whether nodes carry the provider's accelerator label from registration on.  [default: as the cluster says]",
)
@click.option("--karpenter", is_flag=True, help="Karpenter makes the nodes.  [default: as the cluster says]")
@click.option("--max-node-provision-time", type=_DURATION, help="The timer in force.  [default: the cluster's]")
@click.option("--max-node-startup-time", type=_DURATION, help="The timer in force.  [default: the cluster's]")
@click.option("--unneeded-time", type=_DURATION, help="The timer in force.  [default: the cluster's]")
@click.option("--delay-after-add", type=_DURATION, help="The timer in force.  [default: the cluster's]")
@click.option(
    "-o",
    "--output",
    type=click.Choice(["table", "json", "openshift", "capi", "flags", "karpenter"]),
    default="table",
    help="How to show it: for people, for programs, or in an autoscaler's own words.",
)
@cluster_options
@report_errors
def command(
    *,
    samples: Path | None,
    groups: Sequence[str],
    labelled: bool | None,
    karpenter: bool,
    output: str,
    kubeconfig: Path | None,
    context: str | None,
    **timers: float | None,
) -> None:
    """Say which timers a node group needs, what the present ones do, and what else is wrong.

    Every bound is free of assumptions about the distribution, and says which quantile the sample supports: p99 needs
    299 nodes. With fewer, or where nodes were lost, no timer is advised that is shorter than the present one or the
    autoscaler's default. In an autoscaler's own words the findings go to standard error. The exit code is 0 whatever
    is found.

    \b
    Examples:
      tessera autoscaler advise
      tessera autoscaler advise --samples times.csv --max-node-provision-time 5m --unlabelled
      tessera autoscaler advise -o openshift |
        oc apply --server-side --force-conflicts --field-manager=tessera -f -
      tessera autoscaler advise -o capi
    """
    from tessera.cli.autoscaler.advice_text import advice_lines
    from tessera.provisioning.advise.findings import expendable, unmanaged

    times, facts = times_and_facts(samples, kubeconfig, context)
    cluster = (*unmanaged(facts.unmanaged), *expendable(facts.expendable, facts.settings.cutoff))
    if output in {"table", "json"}:
        times = _with_never_ready(times, facts)
    if groups:
        times = tuple(each for each in times if each.group in groups)
    if not times and (groups or not cluster):
        raise CommandError(
            "error: no times were measured"
            + (f" of node group {', '.join(groups)}" if groups else "")
            + "; records are made as nodes come (tessera provisioning report), or give a file with --samples"
        )
    of_karpenter = karpenter or output == "karpenter"
    told = [
        _advise_group(each, facts, timers, labelled, of_karpenter or each.group in facts.karpenter) for each in times
    ]
    match output:
        case "table":
            say(*advice_lines(told, cluster))
        case "json":
            say_json({"groups": told, "cluster": cluster})
        case _:
            from tessera.cli.autoscaler.advice_text import print_for_autoscaler

            print_for_autoscaler(told, cluster, facts, output)


def _advise_group(
    times: "GroupTimes",
    facts: "ClusterFacts",
    given: dict[str, float | None],
    labelled: bool | None,
    karpenter: bool,
) -> "GroupAdvice":
    from tessera.cli.autoscaler.advice_text import build_group_advice
    from tessera.provisioning.advise.findings import findings
    from tessera.provisioning.advise.timers import DEFAULTS, Timers, advise

    labels = _labels(facts.labelled(times.group), labelled)
    current = _current(facts.timers(times.group), given)
    advice = advise(
        times,
        labelled=True if karpenter else labels.starts,
        current=current,
        defaults=Timers() if karpenter else DEFAULTS,  # an empty node of Karpenter's goes at once by default
    )
    found = findings(times, advice, current, labels=labels, karpenter=karpenter)
    return build_group_advice(times, advice, current, labels, found, karpenter=karpenter)


def _with_never_ready(times: "tuple[GroupTimes, ...]", facts: "ClusterFacts") -> "tuple[GroupTimes, ...]":
    """Also the groups of which nothing is measured since the autoscaler makes no node of them."""
    from tessera.provisioning.advise.samples import GroupTimes

    measured = {each.group for each in times}
    return (*times, *(GroupTimes(group=name) for name in facts.never_ready() if name not in measured))


def _labels(seen: "Labels", given: bool | None) -> "Labels":
    from tessera.provisioning.advise.findings import Labels

    return seen if given in (None, seen.there) else Labels(there=given, sliced=seen.sliced)


def _current(seen: "Timers", given: dict[str, float | None]) -> "Timers":
    import msgspec

    names = {
        "max_node_provision_time": "max_node_provision",
        "max_node_startup_time": "max_node_startup",
        "unneeded_time": "unneeded",
        "delay_after_add": "delay_after_add",
    }
    return msgspec.structs.replace(seen, **{names[name]: value for name, value in given.items() if value is not None})
