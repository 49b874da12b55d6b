"""``tessera doctor``: examines a cluster before and after an installation."""

import asyncio
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tessera.cli.base.connection import cluster_options, connect, report_errors
from tessera.cli.base.console import say, say_json
from tessera.text import one_line

if TYPE_CHECKING:
    from tessera.doctor.findings import Finding


@click.command()
@click.option(
    "-n",
    "--namespace",
    default="default",
    show_default=True,
    metavar="NAME",
    help="Namespace of the trial pod, which the API server reviews and does not store.",
)
@click.option("--all", "shows_all", is_flag=True, help="Show also what is as it should be.")
@click.option("-o", "--output", type=click.Choice(["text", "json"]), default="text", help="Output format.")
@cluster_options
@report_errors
def command(*, namespace: str, shows_all: bool, output: str, kubeconfig: Path | None, context: str | None) -> int:
    """Check a cluster before and after the installation, and say what to do.

    The command looks at versions, feature gates, container runtimes, clocks, other software that manages cards,
    Tessera's processes, certificates, your rights, and whether the API server reaches the webhook. It changes nothing.
    The exit code is 1 if something does not work.

    \b
    Examples:
      tessera doctor
      tessera doctor --all
      tessera doctor -o json > doctor.json
    """
    from tessera.doctor.examination import worst
    from tessera.doctor.findings import Verdict

    findings = asyncio.run(_examine(namespace, kubeconfig, context))
    verdict = worst(findings)
    if output == "json":
        say_json({"verdict": verdict, "findings": findings})
    else:
        say(*_lines(findings, shows_all=shows_all))
    return int(verdict is Verdict.ERROR)


async def _examine(namespace: str, kubeconfig: Path | None, context: str | None) -> "Sequence[Finding]":
    from tessera.clock import SystemClock
    from tessera.doctor.examination import examine

    async with connect("tessera-doctor", kubeconfig, context) as client:
        return await examine(client, SystemClock(), namespace)


def _lines(findings: "Sequence[Finding]", *, shows_all: bool) -> Iterator[str]:
    from tessera.doctor.findings import Verdict

    for each in findings:
        if each.verdict is Verdict.OK and not shows_all:
            continue
        yield f"{each.verdict.value:<8} {each.check}: {one_line(each.text, 1000)}"
        if each.advice:
            yield f"         -> {one_line(each.advice, 1000)}"
    numbers = {verdict: sum(each.verdict is verdict for each in findings) for verdict in Verdict}
    counted = ", ".join(f"{number} {verdict.value}" for verdict, number in numbers.items() if number)
    yield f"{len(findings)} checks: {counted}"
