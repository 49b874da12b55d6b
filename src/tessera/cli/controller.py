"""``tessera controller``: the cluster process."""

import socket
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from tessera.cli.connect import cluster_options, connected, reported
from tessera.cli.process import log_option, run_process, start_log


@click.command()
@click.option(
    "--identity", envvar="POD_NAME", help="This replica in the Lease.  [env: POD_NAME; default: the host name]"
)
@click.option(
    "--namespace",
    envvar="POD_NAMESPACE",
    default="tessera-system",
    show_default=True,
    help="Where the Lease lives.  [env: POD_NAMESPACE]",
)
@click.option("--leader-election/--no-leader-election", default=True, help="Without it, run a single replica only.")
@click.option("--http-port", type=click.IntRange(0, 65535), help="Serve /metrics, /healthz and /readyz here.")
@log_option
@cluster_options
@reported
def command(kubeconfig: Path | None, context: str | None, log_level: str, **options: Any) -> None:
    """Run the cluster process: places slices and ungates pods.

    Runs as a Deployment (deploy/controller.yaml), or by hand against any cluster that your kubeconfig names. Several
    replicas may run; a Lease decides which one acts.
    """
    start_log(log_level)
    run_process(_run(options_from(options), kubeconfig, context))


def options_from(values: Mapping[str, Any]) -> Any:
    """The controller's options from the command line's."""
    from tessera.controller.options import ControllerOptions

    return ControllerOptions(**{**values, "identity": values["identity"] or socket.gethostname()})


def parsed(arguments: Sequence[str], environment: Mapping[str, str]) -> Any:
    """The controller's options from a container's arguments and environment, as the command would read them."""
    given = [("--identity", "POD_NAME"), ("--namespace", "POD_NAMESPACE")]
    extra = [part for flag, name in given if name in environment for part in (flag, environment[name])]
    values = dict(command.make_context("controller", [*arguments, *extra]).params)
    for name in ("kubeconfig", "context", "log_level"):
        values.pop(name)
    return options_from(values)


async def _run(options: Any, kubeconfig: Path | None, context: str | None) -> None:
    from tessera.clock import SystemClock
    from tessera.controller.run import run

    async with connected("tessera-controller", kubeconfig, context) as client:
        await run(options, client, SystemClock())
