"""``tessera why``: the first thing in the way of a pod or of a node's cards, and what would remove it."""

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tessera.cli.base.connection import CommandError, cluster_options, connect, report_errors
from tessera.cli.base.console import say, say_json

if TYPE_CHECKING:
    from tessera.explain.explanation import ExplanationReport


@click.command()
@click.argument("what", metavar="POD|KIND/NAME")
@click.option("-n", "--namespace", metavar="NAME", help="Where it is.  [default: the kubeconfig context's, or default]")
@click.option("-o", "--output", type=click.Choice(["text", "json"]), default="text", help="How to answer.")
@cluster_options
@report_errors
def command(what: str, namespace: str | None, output: str, kubeconfig: Path | None, context: str | None) -> None:
    """Say why a pod waits or a node's cards are not as asked, and what would help.

    The first line is the answer; below it stand the facts, and what would help. KIND is pod, deployment, replicaset,
    statefulset, job or node; of a workload every reason is told for which its pods do not run, also that they cannot
    be created; of a node, whether its sharing profile and its MIG layout are in force, what it offers, and which cards
    are unhealthy. Nothing is written; it needs the rights to list pods, nodes and Instaslice objects, and says less
    with fewer.

    \b
    Examples:
      tessera why my-pod
      tessera why deployment/web -n team
      tessera why node/gpu-1
      tessera why job/train -o json | jq -r '.answers[].case'
    """
    from tessera.explain.explanation import report_lines

    found = asyncio.run(_report(what, namespace, kubeconfig, context))
    if output == "json":
        say_json(found)
    else:
        say(*report_lines(found))


async def _report(
    what: str, namespace: str | None, kubeconfig: Path | None, context: str | None
) -> "ExplanationReport":
    from tessera.clock import SystemClock
    from tessera.explain.query import explain, parse_query
    from tessera.kube.client.errors import NotFound
    from tessera.kube.transport.kubeconfig import load_config

    wanted, clock = parse_query(what), SystemClock()
    if namespace is None:
        path = None if kubeconfig is None else str(kubeconfig)
        namespace = load_config(clock=clock, kubeconfig=path, context=context).namespace
    async with connect("tessera-why", kubeconfig, context) as client:
        try:
            return await explain(client, clock, wanted, namespace)
        except NotFound as error:
            raise CommandError(str(error), *getattr(error, "__notes__", ())) from error
