"""``tessera kueue queues``: flavors, ClusterQueues and LocalQueues with GPU memory as quota."""

import asyncio
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tessera.cli.base.connection import CommandError, cluster_options, connect, report_errors
from tessera.cli.base.console import say, say_document
from tessera.cli.kueue.options import api_version_option
from tessera.kueue.names import Version
from tessera.text import list_alternatives, list_names, one_line

if TYPE_CHECKING:
    from tessera.kube.resources import Node
    from tessera.kueue.configuration import CardPool, TeamQuota

_TEAM = re.compile(r"([a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?)=(.+)", re.ASCII)
_PART = re.compile(r"(?:([^:]+):)?([0-9]{1,9})Gi", re.ASCII)


@click.command()
@click.option(
    "--team",
    "teams",
    multiple=True,
    required=True,
    metavar="NAMESPACE=QUOTA",
    help="A team's namespace and its GPU memory: team-a=80Gi; with --by-model team-a=FLAVOR:80Gi,FLAVOR:40Gi.",
)
@click.option("--models", metavar="4xMODEL,...", help="The cards, without a cluster.")
@click.option("--by-model", is_flag=True, help="A flavor for each model, by the nodes' label nvidia.com/gpu.product.")
@click.option(
    "--cpu", default="", metavar="QUANTITY", help="CPU of each team.  [default: that of the nodes with cards]"
)
@click.option(
    "--memory", default="", metavar="QUANTITY", help="Memory of each team.  [default: that of the nodes with cards]"
)
@click.option("--queue", default="slices", show_default=True, metavar="NAME", help="Name of each team's LocalQueue.")
@click.option(
    "--check/--no-check",
    "checked",
    default=True,
    show_default=True,
    help="Admit a workload only while its slices can be placed (the admission check packable).",
)
@api_version_option("Kueue's API")
@cluster_options
@report_errors
def command(
    *,
    teams: Sequence[str],
    models: str | None,
    by_model: bool,
    cpu: str,
    memory: str,
    queue: str,
    checked: bool,
    version: Version,
    kubeconfig: Path | None,
    context: str | None,
) -> None:
    """Write Kueue's flavors and queues, with each team's quota in Gi of GPU memory.

    Each team gets a ClusterQueue with the name of its namespace, and a LocalQueue in it. Kueue refuses a workload that
    asks for a resource which its ClusterQueue does not cover, so the queues also cover CPU and memory.

    \b
    Examples:
      tessera kueue queues --team team-a=80Gi --team team-b=40Gi | kubectl apply -f -
      tessera kueue queues --models 4xA100-40GB --cpu 64 --memory 256Gi --team team-a=80Gi
    """
    import yaml

    from tessera.kube.quantity import format_quantity, parse_quantity
    from tessera.kueue.configuration import SideQuota, find_excess, make_queues, pools_of

    for text in filter(None, (cpu, memory)):
        parse_quantity(text)
    if models is not None:
        pools = _model_pools(models, by_model=by_model)
        if not cpu or not memory:
            raise CommandError(
                "error: --models says nothing about CPU and memory: add --cpu and --memory, of each team"
            )
    else:
        pools = pools_of(asyncio.run(_nodes(kubeconfig, context)), by_model=by_model)
    if not pools:
        raise CommandError(
            "error: no node of this cluster has cards for slices on demand; label one: kubectl label node NODE"
            " nvidia.com/mig.config=dynamic, or name the cards: --models 4xA100-40GB"
        )
    quotas = [_team(text, pools) for text in teams]
    names = [quota.namespace for quota in quotas]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise CommandError(f"error: --team names {list_names(twice)} twice; give the quota of a team once")
    side = SideQuota(
        cpu=cpu or str(max(pool.cpu for pool in pools)),
        memory=memory or format_quantity(max(pool.memory for pool in pools), binary=True),
    )
    for excess in find_excess(pools, quotas):
        say(f"note: {excess}", err=True)
    objects = make_queues(
        pools,
        quotas,
        version=version,
        side=side,
        local_queue=queue,
        checked=checked,
    )
    say_document(yaml.safe_dump_all(objects, sort_keys=False))


async def _nodes(kubeconfig: Path | None, context: str | None) -> Sequence["Node"]:
    from tessera.kube.resources import NODES

    async with connect("tessera-kueue", kubeconfig, context) as client:
        return (await client.list(NODES)).items


def _model_pools(models: str, *, by_model: bool) -> list["CardPool"]:
    from tessera.api.nodes.node_cards import product_label
    from tessera.cli.kueue.options import parse_models
    from tessera.kueue.configuration import ALL_CARDS, PRODUCT_LABEL, CardPool, charged_gigabytes, flavor_name
    from tessera.mig.models import model_by_short_name

    pools = []
    for name, cards in parse_models(models).items():
        model = model_by_short_name(name)
        gigabytes = cards * max(map(charged_gigabytes, model.profile_names))
        label = product_label(model.product_name)
        pools.append(CardPool(flavor=flavor_name(label), node_labels={PRODUCT_LABEL: label}, gigabytes=gigabytes))
    if by_model:
        return pools
    return [CardPool(flavor=ALL_CARDS, gigabytes=sum(pool.gigabytes for pool in pools))]


def _team(text: str, pools: Sequence["CardPool"]) -> "TeamQuota":
    """Reads ``team-a=80Gi`` or ``team-a=FLAVOR:80Gi,FLAVOR:40Gi``."""
    from tessera.kueue.configuration import TeamQuota

    form = f'--team "{one_line(text)}": write NAMESPACE=80Gi, or with --by-model NAMESPACE=FLAVOR:80Gi,FLAVOR:40Gi'
    found = _TEAM.fullmatch(text)
    if found is None:
        raise CommandError(f"error: {form}")
    flavors = [pool.flavor for pool in pools]
    quotas: dict[str, int] = {}
    for part in found[2].split(","):
        named = _PART.fullmatch(part.strip())
        if named is None or (named[1] is None and len(flavors) > 1):
            raise CommandError(f"error: {form}; the flavors are {list_alternatives(flavors)}")
        flavor = named[1] or flavors[0]
        if flavor not in flavors:
            raise CommandError(
                f'error: --team "{one_line(text)}": there is no flavor {one_line(flavor)}; the flavors are'
                f" {list_alternatives(flavors)}"
            )
        quotas[flavor] = int(named[2])
    return TeamQuota(namespace=found[1], gigabytes=quotas)
