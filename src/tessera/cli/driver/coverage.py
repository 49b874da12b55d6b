"""``tessera driver coverage``: whether kernels that are to come have a driver image, as a gate for reboots."""

import asyncio
from pathlib import Path

import click

from tessera.cli.base.connection import cluster_options, report_errors
from tessera.cli.base.console import say, say_json_text
from tessera.cli.driver.registry_access import IMAGE, REPOSITORY, Access, output_option, registry_options

#: Exit codes: a kernel has no image; it is not known which kernel comes, and that was asked for.
NOT_COVERED, NOT_KNOWN = 3, 4

_FILE = click.Path(path_type=Path, dir_okay=False, exists=True)


@click.command()
@click.option("--kernels", "named", metavar="NAME[,NAME]", multiple=True, help="Kernels that are to come; with --os.")
@click.option("--list", "lists", type=_FILE, multiple=True, help="A file of kernels, one a line; with --os.")
@click.option(
    "--apt-index", "indexes", type=_FILE, multiple=True, help="Packages, .gz or .xz of an archive; with --os."
)
@click.option("--flavour", default="generic", show_default=True, help="Of Ubuntu's kernels, for --apt-index.")
@click.option("--newer-than", metavar="NAME", help="All newer kernels of --apt-index instead of its newest.")
@click.option(
    "--toolkit-release", type=_FILE, multiple=True, help="/etc/driver-toolkit-release.json of a Driver Toolkit."
)
@click.option("--release-info", type=_FILE, help="What oc adm release info -o json says of that toolkit's release.")
@click.option(
    "--large-pages", is_flag=True, help="Also an arm64 toolkit's kernel with pages of 64 KiB, which nodes may run."
)
@click.option("--os", "system", metavar="NAME", help="ID and VERSION_ID: ubuntu22.04, rhel9.4.")
@click.option("--arch", metavar="NAME", default="", help="amd64 or arm64.  [default: the nodes', else amd64]")
@click.option(
    "--cluster", is_flag=True, help="For the cluster's nodes and policies, and what driver-next-kernels lists."
)
@click.option("--version", "driver", metavar="NAME", default="", help="Without --cluster: driver version or branch.")
@click.option("--repository", default=REPOSITORY, show_default=True, help="Without --cluster: of the image.")
@click.option("--image", default=IMAGE, show_default=True, help="Without --cluster: its name.")
@click.option(
    "--fail-if-unknown", is_flag=True, help="Exit with 4 where nobody has said which kernel comes, instead of 0."
)
@click.option("--announce", is_flag=True, help="With --cluster: add the kernels to driver-next-kernels.")
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
    """Say whether kernels that are to come have a driver image.

    The exit code is 0 if all are covered, 3 if one is not or its registry does not answer, 1 if the question could not
    be asked: what reboots nodes (kured, a hook before a reboot) can ask it. Where nobody has said which kernel comes,
    or a list has a line that is none, it is 0, or nodes whose kernels nobody lists would never reboot; standard error
    says so, and with --fail-if-unknown it is 4. With --cluster the policies of the cluster
    say which image is wanted, and the kernels listed in ConfigMap tessera-system/driver-next-kernels count too. The
    controller follows that list, has images built for what is missing where a build repository is set, and shows the
    same gate as the metric tessera_driver_next_kernel_covered.

    \b
    Examples:
      tessera driver coverage --cluster --fail-if-unknown
      tessera driver coverage --cluster --apt-index Packages.xz --os ubuntu22.04 --announce
      tessera driver coverage --kernels 5.15.0-119-generic --os ubuntu22.04 --version 535
      tessera driver coverage --toolkit-release driver-toolkit-release.json --release-info next.json --cluster
    """
    if not cluster and not driver:
        raise click.UsageError("which driver? Give --version, or --cluster for what the cluster's policies ask for")
    if not cluster and not (named or lists or indexes or toolkit_release):
        raise click.UsageError(
            "which kernels? Give --kernels, --list, --apt-index or --toolkit-release, or --cluster for what it lists"
        )
    if announce and not cluster:
        raise click.UsageError("--announce writes into the cluster: give --cluster")
    if (named or lists or indexes) and not system:
        raise click.UsageError("--os is needed with --kernels, --list and --apt-index, for example ubuntu22.04")
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
    if not report.known:
        say(describe_unknown(report, cluster=cluster), err=True)
    if not report.open:
        return NOT_COVERED
    return NOT_KNOWN if fail_if_unknown and not report.known else 0
