"""``tessera kueue config``: the part of Kueue's Configuration by which it charges slices their GPU memory."""

import asyncio
from pathlib import Path

import click

from tessera.cli.base.connection import CommandError, cluster_options, connect, report_errors
from tessera.cli.base.console import say, say_document
from tessera.cli.base.inputs import display_name, read_text
from tessera.cli.kueue.options import api_version_option
from tessera.kueue.names import Version


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
def command(
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
    from tessera.cli.kueue.options import parse_models, profiles_of
    from tessera.kueue.configuration import extend_configuration, make_configuration, write_configuration
    from tessera.mig.models import model_by_short_name

    if count_slices and models is not None:
        raise click.UsageError("--count-slices charges no memory, so it takes no --models")
    if count_slices:
        profiles: list[str] = []
    elif models is not None:
        profiles = profiles_of([model_by_short_name(name) for name in parse_models(models)])
    else:
        profiles = asyncio.run(_cluster_profiles(kubeconfig, context))
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
    from tessera.kube.client.errors import NotFound
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
