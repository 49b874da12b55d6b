"""``tessera controller``: the cluster process."""

import socket
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from tessera.cli.autoscaling.durations import Duration
from tessera.cli.building import build_options, taken
from tessera.cli.connect import cluster_options, connected, reported
from tessera.cli.process import log_option, run_process, start_log

DURATION = Duration()


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
@click.option("--image", metavar="IMAGE", help="Tessera's image in pods that it makes.  [default: this pod's own]")
@click.option(
    "--registry-ca",
    type=click.Path(path_type=Path, dir_okay=False, exists=True),
    help="Certificates (PEM) of authorities that registries of driver images are trusted by, beside the system's.",
)
@click.option(
    "--plain-http", multiple=True, metavar="HOST", help="Registry that is asked without TLS, host:port; repeatable."
)
@build_options
@click.option(
    "--startup-taint",
    "startup_taints",
    multiple=True,
    metavar="KEY",
    help="Taint that is taken off a node once its cards can be used; repeatable."
    "  [default: startup-taint.cluster-autoscaler.kubernetes.io/tessera-gpu]",
)
@click.option(
    "--startup-deadline",
    type=DURATION,
    default="15m",
    show_default=True,
    help="How long a node may take from its registration until its cards can be used.",
)
@click.option(
    "--replace-failed",
    type=click.IntRange(0, 100),
    default=0,
    show_default=True,
    help="Nodes of a group that are replaced in an hour at most when they miss the deadline; needs the rights of"
    " deploy/options/replace.yaml.",
)
@click.option("--http-port", type=click.IntRange(0, 65535), help="Serve /metrics, /healthz and /readyz here.")
@log_option
@cluster_options
@reported
def command(kubeconfig: Path | None, context: str | None, log_level: str, **options: Any) -> None:
    """Run the cluster process: places slices, brings drivers, and follows nodes on their way to usable cards.

    Runs as a Deployment (deploy/controller.yaml), or by hand against any cluster that your kubeconfig names. Several
    replicas may run; a Lease decides which one acts.
    """
    start_log(log_level)
    run_process(_run(options_from(options), kubeconfig, context))


def options_from(values: Mapping[str, Any]) -> Any:
    """The controller's options from the command line's."""
    from tessera.controller.options import ControllerOptions, RegistryOptions
    from tessera.driver.options import DriverOptions
    from tessera.provisioning.options import ProvisioningOptions
    from tessera.provisioning.startup import STARTUP_TAINT

    given = dict(values)
    identity = given.pop("identity") or socket.gethostname()
    return ControllerOptions(
        identity=identity,
        drivers=DriverOptions(identity=identity, image=given.pop("image") or "", builds=taken(given)),
        registries=RegistryOptions(ca=given.pop("registry_ca"), plain_http=given.pop("plain_http")),
        provisioning=ProvisioningOptions(
            namespace=given["namespace"],
            startup_taints=given.pop("startup_taints") or (STARTUP_TAINT,),
            deadline=given.pop("startup_deadline"),
            replace_failed=given.pop("replace_failed"),
        ),
        **given,
    )


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
