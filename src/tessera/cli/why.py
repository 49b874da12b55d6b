"""``tessera why``: the first obstacle for a pod or for a node's cards, and the ways to remove it."""

from pathlib import Path

import click

from tessera.cli.base.connection import cluster_config, cluster_options, report_errors
from tessera.cli.base.console import say
from tessera.cli.base.explaining import explain_as_user, explain_selected
from tessera.cli.base.grammar import Output, output_option, watch_option
from tessera.cli.base.live_picture import read_or_watch


@click.command()
@click.argument("what", nargs=-1, metavar="POD|KIND/NAME|KIND NAME")
@click.option("-n", "--namespace", metavar="NAME", help="Its namespace.  [default: the context's, or default]")
@click.option("-l", "--selector", metavar="LABELS", help="Explain the pods with these labels: app=web.")
@watch_option
@output_option("text")
@cluster_options
@report_errors
def command(
    *,
    what: tuple[str, ...],
    namespace: str | None,
    selector: str | None,
    watches: bool,
    output: Output,
    kubeconfig: Path | None,
    context: str | None,
) -> None:
    """Explain why a pod waits or why a node's cards are not as configured, and how to help.

    The first line is the answer; the facts and the remedies follow. KIND is pod, deployment, replicaset, statefulset,
    daemonset, job, cronjob, node or claim (a ResourceClaim). For a workload, the command lists every reason why its
    pods do not run, and every reason why they cannot be created. For a node, it shows whether the sharing profile and
    the MIG layout are in force, the resources that the node offers, and the unhealthy cards.

    The command only reads. With Kubernetes' role view or edit in the namespace it explains all that is there; the names
    of other teams' pods stay hidden. For a node it needs the right to list nodes.

    \b
    Examples:
      tessera why my-pod
      tessera why my-pod --watch
      tessera why deployment/web -n team
      tessera why -l app=web -n team
      tessera why node/gpu-1
      tessera why claim/training-slice -n team
      tessera why job/train -o json | jq -r '.answers[].case'
    """
    from tessera.explain.explanation import parse_query, report_lines

    if len(what) > 2:
        raise click.UsageError(f"one object is explained, and {len(what)} words are given: write KIND/NAME")
    if bool(what) is (selector is not None):
        raise click.UsageError("name an object, or choose pods by -l")
    wanted = parse_query("/".join(what)) if selector is None else None
    home = cluster_config(kubeconfig, context).namespace if namespace is None else namespace
    found, notes = read_or_watch(
        "tessera-why",
        lambda client: (
            explain_as_user(client, wanted, home) if wanted else explain_selected(client, selector or "", home)
        ),
        lambda explained, _: report_lines(explained.report),
        notes=lambda explained: explained.notes,
        watches=watches,
        kubeconfig=kubeconfig,
        context=context,
    )
    if notes:
        say(*notes, err=True)
    pods = [f"pod/{name}" for each in found.answers for name in each.pods]
    names = [f"{found.kind}/{found.name}"] if wanted else pods
    output.show(found, report_lines(found), names)
