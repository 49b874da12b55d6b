"""``tessera provisioning``: the time that new nodes took until their cards could be used, phase by phase."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tessera.api.names import SYSTEM_NAMESPACE
from tessera.cli.base.command_group import LAB_INSTALL, LAB_PACKAGE, added_module
from tessera.cli.base.connection import CommandError, cluster_options, connect, report_errors
from tessera.cli.base.console import say, say_document
from tessera.cli.base.grammar import Output, output_option
from tessera.cli.base.process import run_command

if TYPE_CHECKING:
    from tessera.provisioning.milestones import ProvisioningRecord, WorkloadRecord
    from tessera.provisioning.report import ProvisioningSummary, WorkloadSummary

_FILE = click.Path(path_type=Path, dir_okay=False, exists=True, allow_dash=True)
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


@click.group()
def command() -> None:
    """Show how long new nodes took until their cards could be used, and which phase took the time.

    \b
    Example:
      tessera provisioning report --since 1w
    """


@command.command()
@output_option(
    "table",
    "html",
    "svg",
    text="Output format (svg is the chart of the phases, or the experiment's with --experiment alone; svg and html need"
    " the package tessera-gpu-lab)",
)
@click.option(
    "--file", "files", type=_FILE, multiple=True, help="Read records from this file, not the cluster; repeatable."
)
@click.option(
    "--experiment", "experiments", type=_FILE, multiple=True, help="Add the results that tessera bench wrote here."
)
@click.option(
    "--since",
    metavar="AGE|DATE",
    help="Only records with an event since then: 90m, 24h, 7d, or 2026-01-31[T12:00:00Z].",
)
@click.option("--group", "groups", multiple=True, metavar="NAME", help="Only this node group; repeatable.")
@click.option(
    "--by",
    type=click.Choice(["strategy", "pool", "image", "group"]),
    multiple=True,
    default=("strategy",),
    show_default=True,
    help="Give each value of this property its own table; repeatable.",
)
@click.option("-n", "--namespace", default=SYSTEM_NAMESPACE, show_default=True, help="Tessera's namespace.")
@cluster_options
@report_errors
def report(
    *,
    output: Output,
    files: Sequence[Path],
    experiments: Sequence[Path],
    since: str | None,
    groups: Sequence[str],
    by: Sequence[str],
    namespace: str,
    kubeconfig: Path | None,
    context: str | None,
) -> None:
    """Show how long the phases of a start took: count, mean and quantiles, for nodes and for pods.

    A node starts when it registers and is ready when its cards can be used. The controller keeps a record of each
    start in the ConfigMap provisioning-records. A --file has that ConfigMap as kubectl prints it, its lines of JSON, or
    the output of -o json; - reads standard input. With --experiment and without --file, the command contacts no
    cluster.

    \b
    Examples:
      tessera provisioning report
      tessera provisioning report --since 7d --by strategy --by group
      tessera provisioning report -o html --experiment results.json > report.html
      kubectl get cm -n tessera-system provisioning-records -o yaml | tessera provisioning report --file -
    """
    from tessera.clock import SystemClock
    from tessera.provisioning.report import By, summaries, workload_summaries

    now = SystemClock().now()
    results = [each for path in experiments for each in _experiments(path)]
    from_cluster = not files and not experiments
    every = run_command(_read_records(kubeconfig, context, namespace)) if from_cluster else _from_files(files)
    records, workloads = _select(every, None if since is None else parse_moment(since, now), groups)
    found = summaries(records, [By(each) for each in by])
    pods = workload_summaries(workloads)
    if output.for_programs:
        whole = {"summaries": found, "pods": pods, "experiments": results, "records": records, "workloads": workloads}
        output.show(whole, (), (f"node/{each.node}" for each in records))
    else:
        _show(output.form, found, pods, results, now)


def _select(
    every: "tuple[Sequence[ProvisioningRecord], Sequence[WorkloadRecord]]", since: float | None, groups: Sequence[str]
) -> "tuple[list[ProvisioningRecord], list[WorkloadRecord]]":
    records, workloads = every
    return (
        [each for each in records if _matches(each.at, each.group, since, groups)],
        [each for each in workloads if _matches(each.at, each.group, since, groups)],
    )


def _matches(at: Mapping[Any, float], group: str, since: float | None, groups: Sequence[str]) -> bool:
    """Returns True if a record belongs to one of the groups and has an event since the given moment."""
    return (not groups or group in groups) and (since is None or max(at.values(), default=0.0) >= since)


def _show(
    output: str,
    found: "Sequence[ProvisioningSummary]",
    pods: "Sequence[WorkloadSummary]",
    results: Sequence[Any],
    now: float,
) -> None:
    from tessera.clock import rfc3339
    from tessera.provisioning.report import lines

    if output not in {"table", "wide"}:
        say_document(_drawing().draw(output, found, results, rfc3339(now), pods))
        return
    if found or pods or not results:
        say(*lines(found, pods))
    if results:
        say(*([""] if found or pods else []), *_drawing().result_lines(results))


def _drawing() -> Any:
    """The module that reads results of experiments, and draws.

    Raises:
        CommandError: no installed package has it.
    """
    found = added_module("provisioning report", "drawing")
    if found is None:
        raise CommandError(
            f"error: --experiment, -o html and -o svg need the package {LAB_PACKAGE}, -o table and -o json do not; "
            f"{LAB_INSTALL}"
        )
    return found


async def _read_records(
    kubeconfig: Path | None, context: str | None, namespace: str
) -> "tuple[Sequence[ProvisioningRecord], Sequence[WorkloadRecord]]":
    from tessera.kube.errors import NotFound
    from tessera.kube.resources import CONFIGMAPS
    from tessera.provisioning.history import RECORDS_NAME, ProvisioningHistory

    async with connect("tessera-provisioning", kubeconfig, context) as client:
        try:
            found = await client.get(CONFIGMAPS, RECORDS_NAME, namespace)
        except NotFound:
            return (), ()
    history = ProvisioningHistory()
    for fault in history.load(found.data):
        say(f"warning: {fault}", err=True)
    return history.nodes.values(), history.workloads.values()


def _from_files(files: Sequence[Path]) -> "tuple[Sequence[ProvisioningRecord], Sequence[WorkloadRecord]]":
    from tessera.cli.base.inputs import display_name, read_text
    from tessera.provisioning.report import read_records, read_workloads

    records: list[ProvisioningRecord] = []
    workloads: list[WorkloadRecord] = []
    for path in files:
        text, name = read_text(path), display_name(path)
        records += read_records(text, name)
        workloads += read_workloads(text, name)
    return records, workloads


def _experiments(path: Path) -> Sequence[Any]:
    from tessera.cli.base.inputs import display_name, read_text

    results: Sequence[Any] = _drawing().read_experiments(read_text(path), display_name(path))
    return results


def parse_moment(text: str, now: float) -> float:
    """Seconds since 1970 of an age or a date.

    Raises:
        ValueError: it is neither.
    """
    from tessera.clock import parse_rfc3339

    age = re.fullmatch(r"(\d{1,9})([smhd])", text)
    if age is not None:
        return now - int(age[1]) * _UNITS[age[2]]
    try:
        return parse_rfc3339(text if "T" in text else f"{text}T00:00:00Z")
    except ValueError:
        raise ValueError(f'--since "{text}" is neither an age (90m, 24h, 7d) nor a date (2026-01-31)') from None
