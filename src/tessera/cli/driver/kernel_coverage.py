"""Coverage of kernels that are to come: reads which kernels, asks whether each has a driver image, shows the report.

Kernels come from the command line and, for a cluster, from its ConfigMap ``driver-next-kernels``. What an image is
looked for by, and whether the gate is open, is decided in :mod:`tessera.driver.coverage`.
"""

import asyncio
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from tessera.api.driver.driver_policy import DriverPolicy, ImageSource
from tessera.cli.base.connection import connect
from tessera.cli.base.inputs import read_text
from tessera.cli.base.simulated_cluster import lab_registries
from tessera.cli.driver.pool_images import align_columns
from tessera.cli.driver.registry_access import Access, registries
from tessera.cli.driver.subjects import NAMESPACE, name_file, policy_of_command_line, subjects_in_cluster
from tessera.driver.coverage.apt import apt_kernels
from tessera.driver.coverage.kernels import (
    CONFIG_MAP,
    NextKernel,
    add_kernels,
    content_lines,
    newer_kernels,
    newest_kernels,
    parse_kernel,
    parse_kernel_lists,
)
from tessera.driver.coverage.openshift import parse_release, toolkit_kernel, with_large_pages
from tessera.driver.coverage.report import (
    CoverageReport,
    ExpectedKernel,
    KernelCoverage,
    expected_kernels,
    look_up_coverage,
    unlisted_groups,
)
from tessera.driver.registry.pull_secrets import PullSecrets
from tessera.driver.resolution import Resolver
from tessera.kube.client.client import Client
from tessera.kube.client.errors import NotFound
from tessera.kube.resources import CONFIGMAPS


def policy_for(repository: str, image: str, version: str) -> DriverPolicy:
    """A policy that asks for one driver version from one repository."""
    return policy_of_command_line(ImageSource(repository=repository, image=image, version=version))


class KernelSources(msgspec.Struct, frozen=True, kw_only=True):
    """Where the command line says which kernels are to come.

    Attributes:
        names: kernels by name.
        lists: files of kernels, one a line.
        indexes: package indexes of an apt archive.
        flavour: the flavour of Ubuntu's kernels in the indexes.
        newer_than: all newer kernels of the indexes instead of the newest.
        toolkit_releases: release files of OpenShift's Driver Toolkits.
        release_info: what ``oc adm release info -o json`` says of the toolkits' release.
        large_pages: also the arm64 kernels with pages of 64 KiB.
        system: ID and VERSION_ID of names, lists and indexes.
        arch: their architecture; empty for the nodes' own.
    """

    names: Sequence[str] = ()
    lists: Sequence[Path] = ()
    indexes: Sequence[Path] = ()
    flavour: str = "generic"
    newer_than: str | None = None
    toolkit_releases: Sequence[Path] = ()
    release_info: Path | None = None
    large_pages: bool = False
    system: str = ""
    arch: str = ""


def read_kernels(sources: KernelSources) -> list[NextKernel]:
    """The kernels that the command line names, in all the ways it can.

    Raises:
        ValueError: a file or a name is not of its form.
    """
    indexed = _kernels_of_indexes(sources.indexes, sources.system, sources.arch, sources.flavour, sources.newer_than)
    return [
        *_listed_kernels(sources.names, sources.lists, sources.system, sources.arch),
        *indexed,
        *_kernels_of_toolkits(sources.toolkit_releases, sources.release_info, large_pages=sources.large_pages),
    ]


def _listed_kernels(texts: Sequence[str], lists: Sequence[Path], system: str, arch: str) -> Iterator[NextKernel]:
    def read(text: str) -> NextKernel:
        return parse_kernel(system, text if len(text.split()) > 1 else f"{text} {arch}")

    yield from map(read, texts)
    for path in lists:
        for line in content_lines(read_text(path)):
            with name_file(path):
                yield read(line)


def _kernels_of_indexes(
    indexes: Sequence[Path], system: str, arch: str, flavour: str, newer_than: str | None
) -> Iterator[NextKernel]:
    images: set[str] = set()
    for path in indexes:
        with name_file(path):
            images |= set(apt_kernels(path.read_bytes(), flavour))
    if indexes and not images:
        raise ValueError(f"{', '.join(map(str, indexes))}: no kernel of flavour {flavour!r} in it")
    for name in newer_kernels(images, [newer_than]) if newer_than else newest_kernels(images):
        yield parse_kernel(system, f"{name} {arch}")


def _kernels_of_toolkits(releases: Sequence[Path], info: Path | None, *, large_pages: bool) -> Iterator[NextKernel]:
    machine_os = ""
    if info is not None:
        with name_file(info):
            machine_os = parse_release(info.read_bytes()).machine_os
    for path in releases:
        with name_file(path):
            kernel = toolkit_kernel(path.read_bytes(), machine_os)
            found = [kernel, *([with_large_pages(kernel)] if large_pages else [])]
        yield from found


async def report_for_policy(access: Access, kernels: Sequence[NextKernel], policy: DriverPolicy) -> CoverageReport:
    """The report for one policy without a cluster."""
    awaited, idle = expected_kernels(kernels, (), [policy])
    return await _report(access, awaited, idle)


async def report_for_context(
    access: Access, kernels: Sequence[NextKernel], announce: bool, kubeconfig: Path | None, context: str | None
) -> CoverageReport:
    """The report for the cluster that the options name."""
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
    """The report for a cluster's nodes and policies, on these kernels and those that it lists.

    In a lab, ``lab`` is asked instead of real registries.

    Raises:
        CommandError: no policy of the cluster manages drivers.
    """
    seen = await subjects_in_cluster(client, lab=lab)
    if announce:
        await announce_kernels(client, kernels)
    known, problems = parse_kernel_lists(await _read_list(client))
    in_use = [(each.pool, each.policy) for each in seen.subjects]
    awaited, idle = expected_kernels(dict.fromkeys([*kernels, *known]), in_use, seen.everywhere)
    report = await _report(access, awaited, idle, problems=problems, client=client, lab=lab)
    return msgspec.structs.replace(report, unknown=unlisted_groups((pool for pool, _ in in_use), report.rows))


async def _read_list(client: Client) -> dict[str, str]:
    """The data of the ConfigMap; nothing if there is none."""
    try:
        return dict((await client.get(CONFIGMAPS, CONFIG_MAP, NAMESPACE)).data)
    except NotFound:
        return {}


async def announce_kernels(client: Client, kernels: Sequence[NextKernel]) -> None:
    """Adds kernels to the ConfigMap; what stands there stays as it is, remarks included."""
    data = await _read_list(client)
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
    awaited: Sequence[ExpectedKernel],
    idle: tuple[NextKernel, ...],
    *,
    problems: tuple[str, ...] = (),
    client: Client | None = None,
    lab: Resolver | None = None,
) -> CoverageReport:
    async with registries(access, None if client is None else PullSecrets(client, NAMESPACE), lab=lab) as there:
        rows = await asyncio.gather(*(look_up_coverage(each, there.resolver) for each in awaited))
    return CoverageReport(rows=tuple(rows), problems=problems, idle=idle)


def report_table(report: CoverageReport) -> Iterator[str]:
    """The answer for people."""
    if report.rows:
        rows = [("KERNEL", "NODES", "COVERED", "IMAGE, OR WHY NOT")]
        rows += [_cells(row) for row in sorted(report.rows, key=lambda row: row.pool)]
        yield from align_columns(rows)
        yield ""
    for group, is_open in sorted(report.gates.items()):
        yield f"{group}: gate {'open' if is_open else 'closed'}"
    for group in report.unknown:
        yield f"{group}: not known which kernel comes"
    for each in report.idle:
        yield f"{each.kernel}: no node runs {each.os_id}{each.os_version}, and no policy is for it"
    yield from report.problems
    yield report.summary if report.rows else "No kernel is known to come."


def describe_unknown(report: CoverageReport, *, cluster: bool) -> str:
    """What is to be said where it is not known of all nodes which kernel comes.

    Args:
        report: a report that does not know every kernel that comes.
        cluster: it is of a cluster, whose list can be added to.
    """
    if not report.unknown and report.rows:
        return "warning: lines of the lists cannot be read; what they mean is not looked for"
    whose = f" for {', '.join(report.unknown)}" if report.unknown else ""
    text = f"warning: nobody has said which kernel comes{whose}, so nothing was looked for there"
    return text + ("; list them in ConfigMap tessera-system/driver-next-kernels, or by --announce" if cluster else "")


def _cells(row: KernelCoverage) -> tuple[str, str, str, str]:
    return row.pool.kernel, row.group, "yes" if row.covered else "no", row.reason


def report_json(report: CoverageReport) -> str:
    """The answer for programs."""
    document = {
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
    return msgspec.json.format(msgspec.json.encode(document), indent=2).decode()
