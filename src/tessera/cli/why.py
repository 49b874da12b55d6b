"""``tessera why``: the first obstacle for a pod or for a node's cards, and the ways to remove it."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from tessera.cli.base.connection import CommandError, cluster_config, cluster_options, report_errors
from tessera.cli.base.console import say
from tessera.cli.base.grammar import Output, output_option, watch_option
from tessera.cli.base.live_picture import read_or_watch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tessera.explain.explanation import Explanation, ExplanationReport
    from tessera.explain.query import Query
    from tessera.kube.client.client import Client
    from tessera.kube.client.errors import Forbidden


@click.command()
@click.argument("what", nargs=-1, required=True, metavar="POD|KIND/NAME|KIND NAME")
@click.option("-n", "--namespace", metavar="NAME", help="Its namespace.  [default: the context's, or default]")
@watch_option
@output_option("text")
@cluster_options
@report_errors
def command(
    *,
    what: tuple[str, ...],
    namespace: str | None,
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
      tessera why node/gpu-1
      tessera why claim/training-slice -n team
      tessera why job/train -o json | jq -r '.answers[].case'
    """
    from tessera.explain.explanation import report_lines
    from tessera.explain.query import parse_query

    if len(what) > 2:
        raise click.UsageError(f"one object is explained, and {len(what)} words are given: write KIND/NAME")
    wanted = parse_query("/".join(what))
    home = cluster_config(kubeconfig, context).namespace if namespace is None else namespace
    found = read_or_watch(
        "tessera-why",
        lambda client: report(client, wanted, home),
        lambda found, _: report_lines(found),
        watches=watches,
        kubeconfig=kubeconfig,
        context=context,
    )
    output.show(found, report_lines(found), [f"{found.kind}/{found.name}"])


async def report(client: "Client", wanted: "Query", namespace: str) -> "ExplanationReport":
    """Explains an object as far as the user may see it.

    Args:
        client: the user's client.
        wanted: the object.
        namespace: its namespace.

    Raises:
        CommandError: there is no such object, or the user may not read it.
    """
    from tessera.clock import SystemClock
    from tessera.explain.explanation import OWNED_BY
    from tessera.explain.query import explain
    from tessera.kube.client.errors import Forbidden, NotFound
    from tessera.observe.queue_reading import read_queue

    if wanted.kind == "pod":
        found = await _explain_as_tenant(client, namespace, wanted.name)
        if found is not None:
            return await _with_queue(client, found)

    async def ask(owner: str) -> "Sequence[Explanation]":
        told = await _explain_as_tenant(client, namespace, OWNED_BY + owner)
        return told.answers if told is not None else ()

    try:
        return await explain(client, SystemClock(), wanted, namespace, read_queue, ask)
    except NotFound as error:
        raise CommandError(str(error), *getattr(error, "__notes__", ())) from error
    except Forbidden as error:
        if wanted.kind not in {"node", "claim"}:
            raise
        raise CommandError(*await _rights(client, wanted.kind, error)) from error


async def _with_queue(client: "Client", found: "ExplanationReport") -> "ExplanationReport":
    """A tenant's report of a pod that Kueue holds, with what Kueue tells that tenant."""
    import msgspec

    from tessera.clock import SystemClock
    from tessera.explain.query import explain_queue
    from tessera.kube.client.errors import ApiError
    from tessera.kube.resources import PODS

    if [each.case for each in found.answers] != ["other-gate"]:
        return found
    try:
        pod = await client.get(PODS, found.name, found.namespace)
        answer = await explain_queue(client, SystemClock(), pod)
    except ApiError:
        return found
    return found if answer is None else msgspec.structs.replace(found, answers=(answer,))


async def _rights(client: "Client", kind: str, refused: "Forbidden") -> list[str]:
    """The lines of an error: the refusal, and the role to bind; the API for tenants explains only pods."""
    from tessera.cli.base.tenant_view import READ_CLUSTER, describe_role

    return [
        " ".join(str(refused).split()),
        f"To explain a {kind}, you need {await describe_role(client, READ_CLUSTER)}",
        "For your own pods, tessera why POD needs less",
    ]


async def _explain_as_tenant(client: "Client", namespace: str, name: str) -> "ExplanationReport | None":
    """What the API for tenants says to a user who may not list nodes; None for others, and if it says nothing.

    A right that is missing is named on standard error in one line: the answer is then made from what the pod was told.

    Args:
        client: the user's client.
        namespace: of the pod.
        name: of the pod, or of several, as :data:`~tessera.explain.explanation.OWNED_BY` says.
    """
    from tessera.cli.base.tenant_view import missing_right
    from tessera.dashboard.view.objects import EXPLANATIONS, read_view
    from tessera.kube.client.errors import ApiError, Forbidden, NotFound
    from tessera.kube.resources import NODES

    try:
        await client.page(NODES, limit=1)
    except Forbidden:
        try:
            return (await read_view(client, EXPLANATIONS, namespace, name)).report
        except ApiError as error:
            if isinstance(error, NotFound) and f'"{name}"' in error.status.message:
                return None  # there is no such pod; the direct way suggests another name
            say(f"note: this is what the pod was told: {await missing_right(client, namespace, error)}", err=True)
    return None
