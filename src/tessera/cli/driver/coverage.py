"""``tessera driver coverage``: whether kernels that are to come have a driver image, as a gate for reboots."""

import asyncio
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click
import msgspec

from tessera.cli.base.connection import cluster_options, connected, reported
from tessera.cli.base.console import say, say_json_text
from tessera.cli.driver.image_options import IMAGE, REPOSITORY, output_option
from tessera.cli.driver.registry_access import Access, registries, registry_options

if TYPE_CHECKING:
    from tessera.api.driver.driver_policy import DriverPolicy
    from tessera.driver.coverage.kernels import NextKernel
    from tessera.driver.coverage.report import CoverageReport, ExpectedKernel
    from tessera.driver.resolution import Resolver
    from tessera.kube.client.client import Client

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
@click.option("--must-know", is_flag=True, help="Exit with 4 where nobody has said which kernel comes, instead of 0.")
@click.option("--announce", is_flag=True, help="With --cluster: add the kernels to driver-next-kernels.")
@output_option
@registry_options
@cluster_options
@reported
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
    must_know: bool,
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
    says so, and with --must-know it is 4. With --cluster the policies of the cluster
    say which image is wanted, and the kernels listed in ConfigMap tessera-system/driver-next-kernels count too. The
    controller follows that list, has images built for what is missing where a build repository is set, and shows the
    same gate as the metric tessera_driver_next_kernel_covered.

    \b
    Examples:
      tessera driver coverage --cluster --must-know
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
    from tessera.cli.driver.coverage_report import as_json, table, unknown

    texts = [text for each in named for text in each.split(",") if text.strip()]
    kernels = [
        *_written(texts, lists, system or "", arch),
        *_of_indexes(indexes, system or "", arch, flavour, newer_than),
        *_of_toolkits(toolkit_release, release_info, large_pages=large_pages),
    ]
    if cluster:
        report = asyncio.run(_in_cluster(access, kernels, announce, kubeconfig, context))
    else:
        report = asyncio.run(_of_policy(access, kernels, _policy(repository, image, driver)))
    if output == "json":
        say_json_text(as_json(report))
    else:
        say(*table(report))
    if not report.known:
        say(unknown(report, cluster=cluster), err=True)
    if not report.open:
        return NOT_COVERED
    return NOT_KNOWN if must_know and not report.known else 0


def _policy(repository: str, image: str, version: str) -> "DriverPolicy":
    from tessera.api.driver.driver_policy import ImageSource
    from tessera.cli.driver.subjects import command_line

    return command_line(ImageSource(repository=repository, image=image, version=version))


def _written(texts: Sequence[str], lists: Sequence[Path], system: str, arch: str) -> Iterator["NextKernel"]:
    from tessera.cli.base.input_files import text_of
    from tessera.cli.driver.subjects import naming
    from tessera.driver.coverage.kernels import content_lines, parse_kernel

    def read(text: str) -> "NextKernel":
        return parse_kernel(system, text if len(text.split()) > 1 else f"{text} {arch}")

    yield from map(read, texts)
    for path in lists:
        for line in content_lines(text_of(path)):
            with naming(path):
                yield read(line)


def _of_indexes(
    indexes: Sequence[Path], system: str, arch: str, flavour: str, newer_than: str | None
) -> Iterator["NextKernel"]:
    from tessera.cli.driver.subjects import naming
    from tessera.driver.coverage.apt import apt_kernels
    from tessera.driver.coverage.kernels import newer_kernels, newest_kernels, parse_kernel

    images: set[str] = set()
    for path in indexes:
        with naming(path):
            images |= set(apt_kernels(path.read_bytes(), flavour))
    if indexes and not images:
        raise ValueError(f"{', '.join(map(str, indexes))}: no kernel of flavour {flavour!r} in it")
    for name in newer_kernels(images, [newer_than]) if newer_than else newest_kernels(images):
        yield parse_kernel(system, f"{name} {arch}")


def _of_toolkits(releases: Sequence[Path], info: Path | None, *, large_pages: bool) -> Iterator["NextKernel"]:
    from tessera.cli.driver.subjects import naming
    from tessera.driver.coverage.openshift import parse_release, toolkit_kernel, with_large_pages

    machine_os = ""
    if info is not None:
        with naming(info):
            machine_os = parse_release(info.read_bytes()).machine_os
    for path in releases:
        with naming(path):
            kernel = toolkit_kernel(path.read_bytes(), machine_os)
            found = [kernel, *([with_large_pages(kernel)] if large_pages else [])]
        yield from found


async def _of_policy(access: Access, kernels: Sequence["NextKernel"], policy: "DriverPolicy") -> "CoverageReport":
    from tessera.driver.coverage.report import expected_kernels

    awaited, idle = expected_kernels(kernels, (), [policy])
    return await _report(access, awaited, idle)


async def _in_cluster(
    access: Access, kernels: Sequence["NextKernel"], announce: bool, kubeconfig: Path | None, context: str | None
) -> "CoverageReport":
    from tessera.cli.base.simulated_cluster import lab_registries

    lab = lab_registries(kubeconfig, context)
    async with connected("tessera-driver", kubeconfig, context) as client:
        return await of_cluster(client, access, kernels, announce=announce, lab=lab)


async def of_cluster(
    client: "Client",
    access: Access,
    kernels: Sequence["NextKernel"],
    *,
    announce: bool = False,
    lab: "Resolver | None" = None,
) -> "CoverageReport":
    """The report for a cluster's nodes and policies, on these kernels and those that it lists.

    In a lab, ``lab`` is asked instead of real registries.

    Raises:
        NodeFailure: no policy of the cluster manages drivers.
    """
    from tessera.cli.driver.subjects import in_cluster
    from tessera.driver.coverage.kernels import parse_kernel_lists
    from tessera.driver.coverage.report import expected_kernels, unlisted_groups

    seen = await in_cluster(client, lab=lab)
    if announce:
        await announced(client, kernels)
    known, problems = parse_kernel_lists(await _list(client))
    in_use = [(each.pool, each.policy) for each in seen.subjects]
    awaited, idle = expected_kernels(dict.fromkeys([*kernels, *known]), in_use, seen.everywhere)
    report = await _report(access, awaited, idle, problems=problems, client=client, lab=lab)
    return msgspec.structs.replace(report, unknown=unlisted_groups((pool for pool, _ in in_use), report.rows))


async def _list(client: "Client") -> dict[str, str]:
    """The data of the ConfigMap; nothing if there is none."""
    from tessera.cli.driver.subjects import NAMESPACE
    from tessera.driver.coverage.kernels import CONFIG_MAP
    from tessera.kube.client.errors import NotFound
    from tessera.kube.resources import CONFIGMAPS

    try:
        return dict((await client.get(CONFIGMAPS, CONFIG_MAP, NAMESPACE)).data)
    except NotFound:
        return {}


async def announced(client: "Client", kernels: Sequence["NextKernel"]) -> None:
    """Adds kernels to the ConfigMap; what stands there stays as it is, remarks included."""
    from tessera.cli.driver.subjects import NAMESPACE
    from tessera.driver.coverage.kernels import CONFIG_MAP, add_kernels, parse_kernel_lists
    from tessera.kube.client.errors import NotFound
    from tessera.kube.resources import CONFIGMAPS

    data = await _list(client)
    known = set(parse_kernel_lists(data)[0])
    changed = add_kernels(data, [each for each in kernels if each not in known])
    if not changed:
        return
    try:
        await client.merge_patch(CONFIGMAPS, CONFIG_MAP, {"data": changed}, NAMESPACE)
    except NotFound:
        await client.create(CONFIGMAPS.untyped(), {"metadata": {"name": CONFIG_MAP}, "data": changed}, NAMESPACE)


async def _report(
    access: Access,
    awaited: Sequence["ExpectedKernel"],
    idle: tuple["NextKernel", ...],
    *,
    problems: tuple[str, ...] = (),
    client: "Client | None" = None,
    lab: "Resolver | None" = None,
) -> "CoverageReport":
    from tessera.cli.driver.subjects import NAMESPACE
    from tessera.driver.coverage.report import CoverageReport, look_up_coverage
    from tessera.driver.registry.pull_secrets import PullSecrets

    async with registries(access, None if client is None else PullSecrets(client, NAMESPACE), lab=lab) as there:
        rows = await asyncio.gather(*(look_up_coverage(each, there.resolver) for each in awaited))
    return CoverageReport(rows=tuple(rows), problems=problems, idle=idle)
