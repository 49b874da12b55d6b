"""``tessera webhook``: admission."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from tessera.cli.base.connection import cluster_options, connect, report_errors
from tessera.cli.base.process import log_option, run_process, start_log


@click.command()
@click.option(
    "--namespace",
    envvar="POD_NAMESPACE",
    default="tessera-system",
    show_default=True,
    help="Where the certificate's Secret lives.  [env: POD_NAMESPACE]",
)
@click.option("--service", default="tessera-webhook", show_default=True, help="The Service in front of it.")
@click.option("--port", type=click.IntRange(0, 65535), default=9443, show_default=True, help="Serve reviews here.")
@click.option("--http-port", type=click.IntRange(0, 65535), help="Serve /healthz and /readyz here.")
@click.option(
    "--extra-name",
    multiple=True,
    metavar="NAME",
    help="Further host name or address of the certificate, for a webhook outside of the cluster.",
)
@log_option
@cluster_options
@report_errors
def command(kubeconfig: Path | None, context: str | None, log_level: str, **options: Any) -> None:
    """Run admission: gates pods that ask for a slice, and turns requirements into resources.

    Runs as a Deployment (deploy/webhook.yaml). It makes and rotates its certificates itself and writes the certificate
    authority into the MutatingWebhookConfiguration. Stateless: run as many replicas as you like.
    """
    start_log(log_level)
    # uvloop keeps what TLS connections had received until their clients go as well: 600 MiB for 150 unfinished bodies
    # of 3 MB, where asyncio's own loop takes 130 MiB.
    run_process(_run(options_from(options), kubeconfig, context), on_uvloop=False)


def options_from(values: Mapping[str, Any]) -> Any:
    """The webhook's options from the command line's."""
    from tessera.webhook.base.options import WebhookOptions

    return WebhookOptions(
        namespace=values["namespace"],
        service=values["service"],
        port=values["port"],
        health_port=values["http_port"],
        extra_names=tuple(values["extra_name"]),
    )


def parse_options(arguments: Sequence[str], environment: Mapping[str, str]) -> Any:
    """The webhook's options from a container's arguments and environment, as the command would read them."""
    given = environment.get("POD_NAMESPACE")
    extra = ["--namespace", given] if given else []
    return options_from(command.make_context("webhook", [*arguments, *extra]).params)


async def _run(options: Any, kubeconfig: Path | None, context: str | None) -> None:
    from tessera.clock import SystemClock
    from tessera.webhook.main.run import run

    async with connect("tessera-webhook", kubeconfig, context) as client:
        await run(options, client, SystemClock())
