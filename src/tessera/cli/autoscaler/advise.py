"""``tessera autoscaler advise``: computes timers from measured times, and shows the effect of the present timers."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tessera.cli.autoscaler.measured_times import FILE, times_and_facts
from tessera.cli.base.connection import CommandError, cluster_options, report_errors
from tessera.cli.base.durations import Duration
from tessera.cli.base.grammar import Output, output_option

if TYPE_CHECKING:
    from tessera.cli.autoscaler.advice_text import GroupAdvice
    from tessera.cli.autoscaler.cluster_facts import ClusterFacts
    from tessera.provisioning.start_times import GroupTimes
    from tessera.provisioning.timer_advice import Labels
    from tessera.provisioning.timers import Timers

_DURATION = Duration()


@click.command()
@click.option(
    "--samples",
    type=FILE,
    metavar="FILE",
    help="Read times from this file, not the cluster: CSV or JSON with group, and provision, startup or ready (seconds"
    " from the request, the registration or Ready until the cards are usable); or the output of tessera provisioning"
    " report -o json; or results of tessera bench autoscale. - reads standard input.",
)
@click.option("--group", "groups", multiple=True, metavar="NAME", help="Only this node group; repeatable.")
@click.option(
    "--accelerator-label/--no-accelerator-label",
    "labelled",
    default=None,
    help="Assume that new nodes register with, or without, the cloud's accelerator label.  [default: read the cluster]",
)
@click.option("--karpenter", is_flag=True, help="Assume that Karpenter makes the nodes.  [default: read the cluster]")
@click.option("--max-node-provision-time", type=_DURATION, help="The present timer.  [default: the cluster's]")
@click.option("--max-node-startup-time", type=_DURATION, help="The present timer.  [default: the cluster's]")
@click.option("--unneeded-time", type=_DURATION, help="The present timer.  [default: the cluster's]")
@click.option("--delay-after-add", type=_DURATION, help="The present timer.  [default: the cluster's]")
@output_option(
    "table", "openshift", "capi", "flags", "karpenter", text="Output format, or the autoscaler to write settings for"
)
@cluster_options
@report_errors
def command(
    *,
    samples: Path | None,
    groups: Sequence[str],
    labelled: bool | None,
    karpenter: bool,
    output: Output,
    kubeconfig: Path | None,
    context: str | None,
    **timers: float | None,
) -> None:
    """Compute the timers that a node group needs, show the effect of the present ones, and find other mistakes.

    The bounds assume nothing about the distribution of times, and each names the quantile that the sample supports: p99
    needs 299 nodes. If there are fewer, or if nodes were lost, the command advises no timer that is shorter than the
    present one or the autoscaler's default. With settings for an autoscaler (-o), the findings go to standard error.
    Findings do not change the exit code.

    \b
    Examples:
      tessera autoscaler advise
      tessera autoscaler advise --samples times.csv --max-node-provision-time 5m --no-accelerator-label
      tessera autoscaler advise -o openshift |
        oc apply --server-side --force-conflicts --field-manager=tessera -f -
      tessera autoscaler advise -o capi
    """
    from tessera.cli.autoscaler.advice_text import advice_lines
    from tessera.provisioning.timer_advice import (
        expendable_pod_findings,
        unmanaged_node_findings,
        useless_node_findings,
    )

    times, facts = times_and_facts(samples, kubeconfig, context)
    cluster = (
        *unmanaged_node_findings(facts.unmanaged),
        *useless_node_findings(facts.paused),
        *expendable_pod_findings(facts.expendable, facts.settings.cutoff),
    )
    settings = output.form in {"openshift", "capi", "flags", "karpenter"}
    if not settings:
        times = _with_never_ready(times, facts)
    if groups:
        times = tuple(each for each in times if each.group in groups)
    if not times and (groups or not cluster):
        raise CommandError(
            "error: no times were measured"
            + (f" of node group {', '.join(groups)}" if groups else "")
            + "; the controller records each new node (tessera provisioning report), or give a file with --samples"
        )
    all_karpenter = karpenter or output.form == "karpenter"
    groups_advice = [
        _advise_group(each, facts, timers, labelled, all_karpenter or each.group in facts.karpenter) for each in times
    ]
    if settings:
        from tessera.cli.autoscaler.advice_text import print_for_autoscaler

        print_for_autoscaler(groups_advice, cluster, facts, output.form)
        return
    document = {"groups": groups_advice, "cluster": cluster}
    output.show(document, advice_lines(groups_advice, cluster), (f"group/{each.group}" for each in groups_advice))


def _advise_group(
    times: "GroupTimes",
    facts: "ClusterFacts",
    given: dict[str, float | None],
    labelled: bool | None,
    karpenter: bool,
) -> "GroupAdvice":
    from tessera.cli.autoscaler.advice_text import build_group_advice
    from tessera.provisioning.timer_advice import findings
    from tessera.provisioning.timers import DEFAULTS, Timers, advise

    labels = _labels(facts.label_facts(times.group), labelled)
    current = _current(facts.timers(times.group), given)
    advice = advise(
        times,
        labelled=True if karpenter else labels.starts,
        current=current,
        defaults=Timers() if karpenter else DEFAULTS,  # by default, Karpenter removes an empty node at once
    )
    found = findings(times, advice, current, labels=labels, karpenter=karpenter)
    return build_group_advice(times, advice, current, labels, found, karpenter=karpenter)


def _with_never_ready(times: "tuple[GroupTimes, ...]", facts: "ClusterFacts") -> "tuple[GroupTimes, ...]":
    """Adds the groups without measured times whose nodes the autoscaler never counts as ready."""
    from tessera.provisioning.start_times import GroupTimes

    measured = {each.group for each in times}
    return (*times, *(GroupTimes(group=name) for name in facts.never_ready() if name not in measured))


def _labels(found: "Labels", given: bool | None) -> "Labels":
    from tessera.provisioning.timer_advice import Labels

    return found if given in (None, found.present) else Labels(present=given, sliced=found.sliced)


def _current(found: "Timers", given: dict[str, float | None]) -> "Timers":
    import msgspec

    names = {
        "max_node_provision_time": "max_node_provision",
        "max_node_startup_time": "max_node_startup",
        "unneeded_time": "unneeded",
        "delay_after_add": "delay_after_add",
    }
    return msgspec.structs.replace(found, **{names[name]: value for name, value in given.items() if value is not None})
