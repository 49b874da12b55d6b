"""``tessera kueue``: writes Kueue's configuration and queues for GPU memory.

``config`` writes the part of Kueue's Configuration by which it charges slices their GPU memory; ``queues`` writes
flavors, ClusterQueues and LocalQueues with GPU memory as quota.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from tessera.cli.base.command_group import LazyCommands, Table
from tessera.cli.base.connection import CommandError, cluster_options, connect, report_errors
from tessera.cli.base.console import say, say_document
from tessera.cli.base.inputs import display_name, read_text
from tessera.cli.base.process import run_command
from tessera.kueue.objects import VERSIONS, Version
from tessera.text import list_alternatives, list_names, one_line

if TYPE_CHECKING:
    from tessera.kube.resources import Node
    from tessera.kueue.configuration import CardPool, TeamQuota
    from tessera.mig.geometry import GpuModel

F = TypeVar("F", bound=Callable[..., Any])

#: Stands for every model that Tessera knows.
ALL = "all"
_COUNTED = re.compile(r"([0-9]{1,6})x(.+)", re.ASCII)
_TEAM = re.compile(r"([a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?)=(.+)", re.ASCII)
_PART = re.compile(r"(?:([^:]+):)?([0-9]{1,9})Gi", re.ASCII)

COMMANDS: Table = {
    "config": ("tessera.cli.kueue:config", "Write the part of Kueue's Configuration that charges slices."),
    "queues": ("tessera.cli.kueue:queues", "Write flavors and queues with GPU memory as quota."),
}


@click.command(cls=LazyCommands, table=COMMANDS, no_args_is_help=True)
def command() -> None:
    """Write Kueue's configuration and queues, so that slices are charged their GPU memory.

    \b
    Examples:
      tessera kueue config
      tessera kueue queues
    """


def api_version_option(kind: str) -> Callable[[F], F]:
    """Adds the option; the function gets ``version``.

    Args:
        kind: names in the help what has the version.
    """
    return click.option(
        "--api-version",
        "version",
        type=click.Choice(VERSIONS),
        default="v1beta2",
        show_default=True,
        help=f"Version of {kind}; v1beta1 for Kueue 0.14 and older.",
    )


def parse_models(text: str) -> Mapping[str, int]:
    """Reads ``4xA100-40GB,H100-80GB``: short names of models with the number of cards, 1 if none is given.

    Raises:
        ValueError: a part names no model, or one without MIG.
    """
    from tessera.mig.geometry import MigUnsupported
    from tessera.mig.models import MODELS, model_by_short_name

    if text == ALL:
        return {model.short_name: 1 for model in MODELS}
    counts: dict[str, int] = {}
    for part in text.split(","):
        counted = _COUNTED.fullmatch(part.strip())
        model = model_by_short_name(counted[2] if counted else part.strip())
        if not model.mig_capable:
            raise MigUnsupported(f"{one_line(model.short_name)}: the card has no MIG, so Kueue has no slices to charge")
        counts[model.short_name] = counts.get(model.short_name, 0) + (int(counted[1]) if counted else 1)
    return counts


def profiles_of(models: "Sequence[GpuModel]") -> list[str]:
    """Returns the profiles of the models, each once, in the order of their tables."""
    return list(dict.fromkeys(profile for model in models for profile in model.profile_names))


@click.command()
@click.option(
    "--models",
    metavar="MODEL,...",
    help="Charge the profiles of these models, without a cluster; all for every model that Tessera knows.",
)
@click.option(
    "--extend",
    "extended",
    type=click.Path(path_type=Path, dir_okay=False, allow_dash=True),
    metavar="FILE",
    help="Add the charges to this Configuration, and print the whole; - for standard input.",
)
@click.option(
    "--count-slices",
    is_flag=True,
    help="For queues over nvidia.com/mig-*: charge no memory, and only hide Tessera's memory quota from Kueue.",
)
@api_version_option("the Configuration")
@cluster_options
@report_errors
def config(
    models: str | None,
    extended: Path | None,
    version: Version,
    kubeconfig: Path | None,
    context: str | None,
    *,
    count_slices: bool,
) -> None:
    """Write the part of Kueue's Configuration by which it charges slices their GPU memory.

    Kueue replaces each MIG resource of a workload by its memory in tessera.dev/gpu-memory, whatever kind of workload
    asks: Pod, Job, JobSet, Ray, Kubeflow. Without --models, the profiles are those of the cluster's cards and nodes.

    Kueue reads its Configuration when it starts, from the ConfigMap kueue-manager-config. Add the charges to it with
    --extend: a Configuration that has only this part turns the integrations of other kinds off.

    Queues that count slices by their own names, nvidia.com/mig-1g.10gb for example, stay as they are with
    --count-slices. Without it Kueue admits nothing to them once one node makes slices on demand: their pods ask for the
    memory quota too, which such a queue does not cover.

    \b
    Examples:
      tessera kueue config --models all
      kubectl get configmap -n kueue-system kueue-manager-config \\
        -o jsonpath='{.data.controller_manager_config\\.yaml}' | tessera kueue config --extend -
    """
    from tessera.api.documents import load_document
    from tessera.kueue.configuration import extend_configuration, make_configuration, write_configuration
    from tessera.mig.models import model_by_short_name

    if count_slices and models is not None:
        raise click.UsageError("--count-slices charges no memory, so it takes no --models")
    if count_slices:
        profiles: list[str] = []
    elif models is not None:
        profiles = profiles_of([model_by_short_name(name) for name in parse_models(models)])
    else:
        profiles = run_command(_cluster_profiles(kubeconfig, context))
    if extended is None:
        say_document(write_configuration(make_configuration(profiles, version)))
        return
    try:
        document, notes = extend_configuration(load_document(read_text(extended)), profiles)
    except ValueError as error:
        raise CommandError(f"error: {display_name(extended)}: {error}") from error
    for note in notes:
        say(f"note: {note}", err=True)
    say_document(write_configuration(document))


async def _cluster_profiles(kubeconfig: Path | None, context: str | None) -> list[str]:
    from tessera.api.instaslice import INSTASLICES
    from tessera.api.names import INSTASLICE_NAMESPACE
    from tessera.kube.errors import NotFound
    from tessera.kube.resources import NODES
    from tessera.kueue.configuration import profiles_in_cluster

    async with connect("tessera-kueue", kubeconfig, context) as client:
        try:
            instaslices = (await client.list(INSTASLICES, INSTASLICE_NAMESPACE)).items
        except NotFound:
            instaslices = ()
        found = profiles_in_cluster(instaslices, (await client.list(NODES)).items)
    if not found:
        raise CommandError(
            "error: no node of this cluster has slices, so Kueue has nothing to charge; give a node cards for slices"
            " (kubectl label node NODE nvidia.com/mig.config=dynamic), or name the models: --models A100-40GB"
        )
    return found


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
def queues(
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
        pools = pools_of(run_command(_nodes(kubeconfig, context)), by_model=by_model)
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
