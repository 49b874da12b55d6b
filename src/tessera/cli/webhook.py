"""``tessera webhook``: the admission process."""

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import click

from tessera.api.names import SYSTEM_NAMESPACE
from tessera.cli.base.connection import connect_transport, report_errors, server_options
from tessera.cli.base.controller_options import check_key
from tessera.cli.base.inputs import claim_driver_option
from tessera.cli.base.process import address_option, log_option, run_process, start_log


@click.command()
@click.option(
    "--namespace",
    envvar="POD_NAMESPACE",
    default=SYSTEM_NAMESPACE,
    show_default=True,
    help="Namespace of the Secret with the certificate.  [env: POD_NAMESPACE]",
)
@click.option("--service", default="tessera-webhook", show_default=True, help="Name of the webhook's Service.")
@click.option(
    "--certificate-secret",
    metavar="NAME",
    default="",
    help="Serve the certificate of this Secret, which cert-manager renews, instead of the webhook's own.",
)
@click.option(
    "--port", type=click.IntRange(0, 65535), default=9443, show_default=True, help="Serve admission reviews here."
)
@click.option("--http-port", type=click.IntRange(0, 65535), help="Serve /healthz and /readyz here.")
@click.option(
    "--extra-name",
    multiple=True,
    metavar="NAME",
    help="Another host name or address in the certificate, for a webhook outside of the cluster; repeatable.",
)
@click.option(
    "--new-nodes",
    type=click.Choice(("known", "any")),
    default="known",
    show_default=True,
    help="Cards of nodes that may come: known, those that present nodes have; any, which admits also what no present "
    "node could ever hold.",
)
@click.option(
    "--pod-key",
    "pod_keys",
    multiple=True,
    metavar="KEY",
    callback=lambda ctx, param, keys: tuple(check_key(ctx, param, each) for each in keys),
    help="A key of pods that tessera controller --usage-user or --usage-label names, so that no warning calls it"
    " unknown; repeatable.",
)
@claim_driver_option("Put the gate on pods with ResourceClaims for devices of this driver.  [default: none]")
@address_option
@log_option
@server_options
@report_errors
def command(kubeconfig: Path | None, context: str | None, log_level: str, **options: Any) -> None:
    """Run the admission webhook.

    The webhook puts a scheduling gate on pods that request slices; the controller removes the gate when it has reserved
    the slices. With --claim-driver it does so for pods with ResourceClaims too. The webhook also turns a pod's GPU
    requirements (annotations tessera.dev/...) into resource requests.

    It runs as a Deployment (deploy/webhook.yaml). It makes and renews its certificates itself, and writes the
    certificate authority into the MutatingWebhookConfiguration; with --certificate-secret, cert-manager does both. Any
    number of replicas may run.

    \b
    Example:
      tessera webhook --kubeconfig admin.conf
    """
    start_log(log_level)
    run_process(_run(options_from(options), kubeconfig, context), on_uvloop=False)


def options_from(values: Mapping[str, Any]) -> Any:
    """The webhook's options for values of the command line."""
    from tessera.webhook.base import WebhookOptions

    return WebhookOptions(
        namespace=values["namespace"],
        service=values["service"],
        given_secret=values["certificate_secret"],
        port=values["port"],
        health_port=values["http_port"],
        address=values["http_address"],
        extra_names=tuple(values["extra_name"]),
        claims=_pod_claims(values["claim_driver"]),
        any_new_nodes=values["new_nodes"] == "any",
        pod_keys=values["pod_keys"],
    )


def _pod_claims(driver: str | None) -> Any:
    """What makes the reader of claims of this driver; None without one."""
    if not driver:
        return None
    from tessera.claims.admission import ClaimReader

    return partial(ClaimReader, driver)


def parse_options(arguments: Sequence[str], environment: Mapping[str, str]) -> Any:
    """The webhook's options for a container's arguments and environment."""
    given = environment.get("POD_NAMESPACE")
    extra = ["--namespace", given] if given else []
    return options_from(command.make_context("webhook", [*arguments, *extra]).params)


async def _run(options: Any, kubeconfig: Path | None, context: str | None) -> None:
    from tessera.clock import SystemClock
    from tessera.webhook.main import run

    async with connect_transport("tessera-webhook", kubeconfig, context) as (client, _):
        await run(options, client, SystemClock())
