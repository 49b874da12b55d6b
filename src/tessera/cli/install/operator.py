"""``tessera operator``: keeps an installation as the settings in a ConfigMap describe it."""

import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from tessera.cli.base.connection import connect, report_errors, server_options
from tessera.cli.base.process import log_option, run_process, start_log


@click.command()
@click.option(
    "--namespace",
    envvar="POD_NAMESPACE",
    default="tessera-operator",
    show_default=True,
    help="Namespace of the settings.  [env: POD_NAMESPACE]",
)
@click.option(
    "--config-map", metavar="NAME", default="tessera-install", show_default=True, help="ConfigMap with the settings."
)
@click.option(
    "--image",
    metavar="IMAGE",
    envvar="RELATED_IMAGE_TESSERA",
    default="",
    help="Image of Tessera's pods.  [env: RELATED_IMAGE_TESSERA; default: the image of the manifests]",
)
@click.option("--http-port", type=click.IntRange(0, 65535), help="Serve /healthz and /readyz here.")
@log_option
@server_options
@report_errors
def command(kubeconfig: Path | None, context: str | None, log_level: str, **options: Any) -> None:
    """Run the operator of the OLM bundle.

    The operator applies the objects of tessera install, each minute and whenever its settings change. The settings are
    a ConfigMap with the keys options (options of tessera install, one a line), values.yaml (settings of NVIDIA's
    gpu-operator, as for --values), ca.crt (certificate authorities, as for --registry-ca), groups.yaml (groups of new
    nodes, as for --node-groups) and repairs.yaml (what is done about faulty cards, as for --repairs). Without the
    ConfigMap, everything has its default.

    \b
    Example:
      tessera operator --namespace tessera-system
    """
    start_log(log_level)
    run_process(_run(options_from(options), kubeconfig, context))


def options_from(values: Mapping[str, Any]) -> Any:
    """The operator's options for values of the command line."""
    from tessera.cli.install.operator_process import OperatorOptions

    return OperatorOptions(**values)


def parse_options(arguments: Sequence[str], environment: Mapping[str, str]) -> Any:
    """The operator's options for a container's arguments and environment."""
    given = [("--namespace", "POD_NAMESPACE"), ("--image", "RELATED_IMAGE_TESSERA")]
    extra = [part for flag, name in given if name in environment for part in (flag, environment[name])]
    values = dict(command.make_context("operator", [*arguments, *extra]).params)
    for name in ("kubeconfig", "context", "log_level"):
        values.pop(name)
    return options_from(values)


async def _run(options: Any, kubeconfig: Path | None, context: str | None) -> None:
    from tessera.cli.install.apply import FIELD_MANAGER
    from tessera.cli.install.operator_process import Operator
    from tessera.clock import SystemClock

    async with connect(FIELD_MANAGER, kubeconfig, context) as client:
        await Operator(options, client, SystemClock(), random.Random()).run()
