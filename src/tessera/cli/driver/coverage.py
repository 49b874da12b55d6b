"""``tessera driver coverage``: checks that the next kernels have a driver image, before nodes reboot into them.

Kernels come from the command line and, for a cluster, from its ConfigMap ``driver-next-kernels``.
:mod:`tessera.driver.coverage` decides which images to look up and if nodes may reboot.
"""

import asyncio
from collections.abc import Iterator, Sequence
from pathlib import Path

import click

from tessera.cli.base.connection import cluster_options, connect, report_errors
from tessera.cli.base.console import say
from tessera.cli.base.grammar import Output
from tessera.cli.base.process import run_command
from tessera.cli.base.simulated_cluster import lab_registries
from tessera.cli.driver.pool_images import align_columns
from tessera.cli.driver.registry_access import (
    IMAGE,
    REPOSITORY,
    Access,
    connect_registries,
    registry_options,
    table_option,
)
from tessera.cli.driver.subjects import (
    announce_kernels,
    kernels_in_indexes,
    kernels_in_toolkits,
    listed_kernels,
    policy_of_command_line,
    read_kernel_list,
    subjects_in_cluster,
)
from tessera.driver.coverage import (
    CoverageReport,
    ExpectedKernel,
    KernelCoverage,
    expected_kernels,
    look_up_coverage,
    unlisted_groups,
)
from tessera.driver.driver_sets import NAMESPACE
from tessera.driver.images import Resolver
from tessera.driver.kernels import NextKernel, parse_kernel_lists
from tessera.driver.registry.credentials import PullSecrets
from tessera.gpu_operator.driver_policy import DriverPolicy, ImageSource
from tessera.kube.client import Client

#: Exit codes: a kernel has no image; the next kernel is unknown, with ``--fail-if-unknown``.
NOT_COVERED, NOT_KNOWN = 3, 4

_FILE = click.Path(path_type=Path, dir_okay=False, exists=True)


@click.command()
@click.option("--kernels", "named", metavar="NAME[,NAME]", multiple=True, help="Next kernels; with --os.")
@click.option(
    "--kernel-list", "lists", type=_FILE, multiple=True, help="File of next kernels, one on a line; with --os."
)
@click.option(
    "--apt-index",
    "indexes",
    type=_FILE,
    multiple=True,
    help="Package index of an apt archive (Packages, .gz, .xz): its newest kernel is the next one; with --os.",
)
@click.option("--flavour", default="generic", show_default=True, help="Flavour of Ubuntu's kernels in --apt-index.")
@click.option(
    "--newer-than", metavar="NAME", help="Take all kernels of --apt-index that are newer than this, not its newest."
)
@click.option(
    "--toolkit-release",
    type=_FILE,
    multiple=True,
    help="/etc/driver-toolkit-release.json of an OpenShift Driver Toolkit: its kernel is the next one.",
)
@click.option("--release-info", type=_FILE, help="Output of oc adm release info -o json for that toolkit's release.")
@click.option(
    "--large-pages", is_flag=True, help="Also check the arm64 toolkit's kernel with 64 KiB pages, which nodes may run."
)
@click.option("--os", "system", metavar="NAME", help="ID and VERSION_ID of the nodes: ubuntu22.04, rhel9.4.")
@click.option("--arch", metavar="NAME", default="", help="amd64 or arm64.  [default: the nodes', else amd64]")
@click.option(
    "--cluster",
    is_flag=True,
    help="Check for the cluster's nodes and policies, and also the kernels in ConfigMap driver-next-kernels.",
)
@click.option("--version", "driver", metavar="NAME", default="", help="Driver version or branch, without --cluster.")
@click.option(
    "--repository", default=REPOSITORY, show_default=True, help="Repository of driver images, without --cluster."
)
@click.option("--image", default=IMAGE, show_default=True, help="Name of driver images, without --cluster.")
@click.option("--fail-if-unknown", is_flag=True, help="Exit with 4 instead of 0 if the next kernel is unknown.")
@click.option("--announce", is_flag=True, help="Add the kernels to ConfigMap driver-next-kernels; with --cluster.")
@table_option
@registry_options
@cluster_options
@report_errors
def command(
    *,
    named: tuple[str, ...],
    lists: tuple[Path, ...],
    indexes: tuple[Path, ...],
    flavour: str,
    newer_than: str | None,
    toolkit_release: tuple[Path, ...],
    release_info: Path | None,
    large_pages: bool,
    system: str | None,
    arch: str,
    cluster: bool,
    driver: str,
    repository: str,
    image: str,
    fail_if_unknown: bool,
    announce: bool,
    output: Output,
    access: Access,
    kubeconfig: Path | None,
    context: str | None,
) -> int:
    """Check that the next kernels of nodes have a driver image, before nodes reboot into them.

    A program that reboots nodes (kured, or a hook before a reboot) can use the exit code: 0 if all kernels have an
    image; 3 if a kernel has none, or its registry does not answer; 1 after an error. If the next kernel of some nodes
    is unknown, or a line of a list cannot be read, the command prints a warning and the exit code is 0, since otherwise
    nodes without a list would never reboot; with --fail-if-unknown it is 4.

    With --cluster, the cluster's policies name the driver images, and the kernels in ConfigMap
    tessera-system/driver-next-kernels are checked too. The controller also follows that ConfigMap: it builds missing
    images if a build repository is set, and exports the result as the metric tessera_driver_next_kernel_covered.

    \b
    Examples:
      tessera driver coverage --cluster --fail-if-unknown
      tessera driver coverage --cluster --apt-index Packages.xz --os ubuntu22.04 --announce
      tessera driver coverage --kernels 5.15.0-119-generic --os ubuntu22.04 --version 535
      tessera driver coverage --toolkit-release driver-toolkit-release.json --release-info next.json --cluster
    """
    if not cluster and not driver:
        raise click.UsageError("give the driver's --version, or --cluster to use the cluster's policies")
    if not cluster and not (named or lists or indexes or toolkit_release):
        raise click.UsageError(
            "give kernels by --kernels, --kernel-list, --apt-index or --toolkit-release, or use the cluster's list"
            " with --cluster"
        )
    if announce and not cluster:
        raise click.UsageError("--announce writes into the cluster: add --cluster")
    if (named or lists or indexes) and not system:
        raise click.UsageError("--kernels, --kernel-list and --apt-index need --os, for example ubuntu22.04")
    names = [text for each in named for text in each.split(",") if text.strip()]
    kernels = [
        *listed_kernels(names, lists, system or "", arch),
        *kernels_in_indexes(indexes, system or "", arch, flavour, newer_than),
        *kernels_in_toolkits(toolkit_release, release_info, large_pages=large_pages),
    ]
    if cluster:
        report = run_command(_report_for_context(access, kernels, announce, kubeconfig, context))
    else:
        policy = policy_of_command_line(ImageSource(repository=repository, image=image, version=driver))
        report = run_command(_report_for_policy(access, kernels, policy))
    if output.for_programs:
        output.show(report_document(report), ())
    else:
        say(*report_table(report))
    if not report.complete:
        say(describe_unknown(report, cluster=cluster), err=True)
    if not report.open:
        return NOT_COVERED
    return NOT_KNOWN if fail_if_unknown and not report.complete else 0


async def _report_for_policy(access: Access, kernels: Sequence[NextKernel], policy: DriverPolicy) -> CoverageReport:
    expected, idle = expected_kernels(kernels, (), [policy])
    return CoverageReport(rows=await _rows(access, expected), idle=idle)


async def _report_for_context(
    access: Access, kernels: Sequence[NextKernel], announce: bool, kubeconfig: Path | None, context: str | None
) -> CoverageReport:
    lab = lab_registries(kubeconfig, context)
    async with connect("tessera-driver", kubeconfig, context) as client:
        return await report_for_cluster(client, access, kernels, announce=announce, lab=lab)


async def report_for_cluster(
    client: Client,
    access: Access,
    kernels: Sequence[NextKernel],
    *,
    announce: bool = False,
    lab: Resolver | None = None,
) -> CoverageReport:
    """The report for a cluster's nodes and policies: these kernels, and those in its ConfigMap.

    With ``lab``, images are looked up in the lab's simulated registries.

    Raises:
        CommandError: no policy of the cluster manages drivers.
    """
    found = await subjects_in_cluster(client, lab=lab)
    if announce:
        await announce_kernels(client, kernels)
    known, problems = parse_kernel_lists(await read_kernel_list(client))
    expected, idle = expected_kernels(dict.fromkeys([*kernels, *known]), found.in_use, found.everywhere)
    rows = await _rows(access, expected, PullSecrets(client, NAMESPACE), lab)
    unknown = unlisted_groups((each.pool for each in found.subjects), rows)
    return CoverageReport(rows=rows, problems=problems, idle=idle, unknown=unknown)


async def _rows(
    access: Access, expected: Sequence[ExpectedKernel], secrets: PullSecrets | None = None, lab: Resolver | None = None
) -> tuple[KernelCoverage, ...]:
    async with connect_registries(access, secrets, lab=lab) as registries:
        return tuple(await asyncio.gather(*(look_up_coverage(each, registries.resolver) for each in expected)))


def report_table(report: CoverageReport) -> Iterator[str]:
    """The report as a table."""
    if report.rows:
        rows = [
            (row.pool.kernel, row.group, "yes" if row.covered else "no", row.reason)
            for row in sorted(report.rows, key=lambda row: row.pool)
        ]
        yield from align_columns([("KERNEL", "NODES", "COVERED", "IMAGE OR REASON"), *rows])
        yield ""
    for group, is_open in sorted(report.gates.items()):
        yield f"{group}: gate {'open' if is_open else 'closed'}"
    for group in report.unknown:
        yield f"{group}: next kernel unknown"
    for each in report.idle:
        yield f"{each.kernel}: no node runs {each.os_id}{each.os_version}, and no policy selects such nodes"
    yield from report.problems
    yield report.summary if report.rows else "No next kernel is known."


def describe_unknown(report: CoverageReport, *, cluster: bool) -> str:
    """The warning for nodes whose next kernel is unknown, or for lines that could not be read.

    Args:
        report: a report without some next kernels.
        cluster: True for the report of a cluster, which has a list of next kernels.
    """
    if not report.unknown and report.rows:
        return "warning: some lines of the lists cannot be read; their kernels were not checked"
    whose = f" of {', '.join(report.unknown)}" if report.unknown else ""
    text = f"warning: the next kernel{whose} is unknown, so its driver image was not checked"
    hint = "; list it in ConfigMap tessera-system/driver-next-kernels, or use --announce"
    return text + (hint if cluster else "")


def report_document(report: CoverageReport) -> dict[str, object]:
    """The report for JSON."""
    return {
        "summary": report.summary,
        "covered": report.covered,
        "total": len(report.rows),
        "open": report.open,
        "gates": report.gates,
        "kernels": [
            {
                "kernel": row.pool.kernel,
                "pool": row.group,
                "policy": row.policy,
                "covered": row.covered,
                "image": row.image,
                "reason": row.reason,
            }
            for row in report.rows
        ],
        "unknown": report.unknown,
        "idle": [f"{each.os_id}{each.os_version} {each.kernel}" for each in report.idle],
        "problems": report.problems,
    }
