"""``tessera driver apply``: the ClusterPolicy and the NVIDIADriver that settings of NVIDIA's operator ask for."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click
import msgspec

from tessera.cli.base.connection import CommandError, cluster_options, connect, report_errors
from tessera.cli.base.console import say
from tessera.cli.base.process import run_command

if TYPE_CHECKING:
    from tessera.clock import Clock
    from tessera.kube.client import Client

#: The key of the ConfigMap.
KEY = "values.yaml"


class DriverChoice(msgspec.Struct, frozen=True, kw_only=True):
    """The driver objects to apply.

    Attributes:
        values: a file; None for none.
        config_map: namespace and name of a ConfigMap with the same content; None for none.
        drivers: True for ``--drivers``, False for ``--no-drivers``, None without either.
        dry: change nothing.
    """

    values: Path | None = None
    config_map: tuple[str, str] | None = None
    drivers: bool | None = None
    dry: bool = False


def _place(_context: click.Context, _parameter: click.Parameter, text: str | None) -> tuple[str, str] | None:
    """Returns namespace and name.

    Raises:
        click.BadParameter: the text has another form.
    """
    if text is None:
        return None
    namespace, slash, name = text.partition("/")
    if not (namespace and slash and name) or "/" in name:
        raise click.BadParameter(f'"{text[:100]}" does not have the form NAMESPACE/NAME')
    return namespace, name


@click.command()
@click.option(
    "--values",
    type=click.Path(path_type=Path, dir_okay=False, exists=True, allow_dash=True),
    metavar="FILE",
    help="Values file or ClusterPolicy of NVIDIA's gpu-operator; - is standard input.",
)
@click.option(
    "--config-map",
    callback=_place,
    metavar="NAMESPACE/NAME",
    help="ConfigMap with such a file in its key values.yaml, instead of --values.",
)
@click.option(
    "--drivers/--no-drivers",
    default=None,
    help="Let Tessera install the drivers, or use the drivers of the hosts.  [default: --drivers if FILE names one]",
)
@click.option("--dry-run", is_flag=True, help="Show the change of each object; write nothing.")
@cluster_options
@report_errors
def command(
    *,
    values: Path | None,
    config_map: tuple[str, str] | None,
    drivers: bool | None,
    dry_run: bool,
    kubeconfig: Path | None,
    context: str | None,
) -> None:
    """Apply the driver settings of a file, as tessera install does, and nothing else.

    The command writes the ClusterPolicy, and the NVIDIADriver if the file asks for one. Objects that another operator
    manages stay as they are unless --drivers is given. With --no-drivers, Tessera's objects are deleted. A file
    without driver settings changes nothing. The Helm chart runs this command after each installation and upgrade.

    \b
    Examples:
      tessera driver apply --values values.yaml
      tessera driver apply --no-drivers
    """
    choice = _checked(DriverChoice(values=values, config_map=config_map, drivers=drivers, dry=dry_run))
    run_command(_connect_and_apply(choice, kubeconfig, context))


def parse_choice(arguments: Sequence[str]) -> DriverChoice:
    """Reads the arguments of a container that runs this command.

    Raises:
        click.UsageError: they are wrong.
    """
    found = command.make_context("tessera driver apply", list(arguments)).params
    return _checked(
        DriverChoice(
            values=found["values"], config_map=found["config_map"], drivers=found["drivers"], dry=found["dry_run"]
        )
    )


def _checked(choice: DriverChoice) -> DriverChoice:
    if choice.values is not None and choice.config_map is not None:
        raise click.UsageError("--values and --config-map name the same settings; leave one of them out")
    if choice.values is None and choice.config_map is None and choice.drivers is None:
        raise click.UsageError("give --values FILE, --config-map NAMESPACE/NAME, --drivers or --no-drivers")
    return choice


async def _connect_and_apply(choice: DriverChoice, kubeconfig: Path | None, context: str | None) -> None:
    from tessera.cli.install.apply import FIELD_MANAGER
    from tessera.clock import SystemClock

    async with connect(FIELD_MANAGER, kubeconfig, context) as client:
        await apply_choice(client, SystemClock(), choice, say, lambda notice: say(notice, err=True))


async def apply_choice(
    client: "Client",
    clock: "Clock",
    choice: DriverChoice,
    tell: Callable[[str], None],
    warn: Callable[[str], None],
) -> None:
    """Applies the driver objects.

    Args:
        client: the cluster.
        clock: the clock for waits.
        choice: what to apply.
        tell: gets a line for each change, and a summary.
        warn: gets a line for each setting without effect.

    Raises:
        CommandError: the settings have mistakes, or the ConfigMap lacks them.
        ApiError: the API server refused something.
        TimeoutError: the kinds are not served in time.
    """
    from tessera.cli.install.apply import apply_drivers, next_steps, result_line, summary_line
    from tessera.cli.install.manifests import drivers_in_charge
    from tessera.cli.install.settings import read_driver_objects

    text = None if choice.config_map is None else await _read_config_map(client, *choice.config_map)
    found, notices = read_driver_objects(choice.values, choice.drivers, text=text)
    for notice in notices:
        warn(f"note: {notice}")
    objects = drivers_in_charge(found) if choice.drivers else found
    all_done = []
    async for done in apply_drivers(client, clock, objects, dry=choice.dry, drivers=choice.drivers):
        all_done.append(done)
        if line := result_line(done, dry=choice.dry):
            tell(line)
    tell(summary_line(all_done, dry=choice.dry) if all_done else "no driver settings; nothing changed")
    for step in () if choice.dry else next_steps(all_done):
        tell(step)


async def _read_config_map(client: "Client", namespace: str, name: str) -> str:
    from tessera.kube.resources import CONFIGMAPS

    data = (await client.get(CONFIGMAPS.as_dicts(), name, namespace)).get("data") or {}
    if KEY not in data:
        raise CommandError(f'error: ConfigMap {namespace}/{name} has no key "{KEY}"')
    return str(data[KEY])
