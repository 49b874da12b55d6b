"""``tessera driver coverage``: checks that the next kernels have a driver image, before nodes reboot into them."""

import asyncio
from pathlib import Path

import click

from tessera.cli.base.connection import cluster_options, report_errors
from tessera.cli.base.console import say, say_json_text
from tessera.cli.driver.registry_access import IMAGE, REPOSITORY, Access, output_option, registry_options

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
@output_option
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
    output: str,
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
    from tessera.cli.driver.kernel_coverage import (
        KernelSources,
        describe_unknown,
        policy_for,
        read_kernels,
        report_for_context,
        report_for_policy,
        report_json,
        report_table,
    )

    kernels = read_kernels(
        KernelSources(
            names=[text for each in named for text in each.split(",") if text.strip()],
            lists=lists,
            indexes=indexes,
            flavour=flavour,
            newer_than=newer_than,
            toolkit_releases=toolkit_release,
            release_info=release_info,
            large_pages=large_pages,
            system=system or "",
            arch=arch,
        )
    )
    if cluster:
        report = asyncio.run(report_for_context(access, kernels, announce, kubeconfig, context))
    else:
        report = asyncio.run(report_for_policy(access, kernels, policy_for(repository, image, driver)))
    if output == "json":
        say_json_text(report_json(report))
    else:
        say(*report_table(report))
    if not report.complete:
        say(describe_unknown(report, cluster=cluster), err=True)
    if not report.open:
        return NOT_COVERED
    return NOT_KNOWN if fail_if_unknown and not report.complete else 0
