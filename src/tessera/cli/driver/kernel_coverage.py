"""Coverage of next kernels: reads the kernels, looks up a driver image for each, and shows the report.

Kernels come from the command line and, for a cluster, from its ConfigMap ``driver-next-kernels``.
:mod:`tessera.driver.coverage` decides which images to look up and if nodes may reboot.
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
from tessera.cli.driver.registry_access import Access, connect_registries
from tessera.cli.driver.subjects import NAMESPACE, name_file, policy_of_command_line, subjects_in_cluster
from tessera.driver.coverage.kernel_sources import apt_kernels, parse_release, toolkit_kernel, with_large_pages
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
from tessera.driver.coverage.report import (
    CoverageReport,
    ExpectedKernel,
    KernelCoverage,
    expected_kernels,
    look_up_coverage,
    unlisted_groups,
)
from tessera.driver.registry.credentials import PullSecrets
from tessera.driver.resolution import Resolver
from tessera.kube.client.client import Client
from tessera.kube.client.errors import NotFound
from tessera.kube.resources import CONFIGMAPS


def policy_for(repository: str, image: str, version: str) -> DriverPolicy:
    """A policy for one driver version from one repository."""
    return policy_of_command_line(ImageSource(repository=repository, image=image, version=version))


class KernelSources(msgspec.Struct, frozen=True, kw_only=True):
    """The options of the command line that name next kernels.

    Attributes:
        names: kernels by name.
        lists: files of kernels, one on a line.
        indexes: package indexes of an apt archive.
        flavour: the flavour of Ubuntu's kernels in the indexes.
        newer_than: take all kernels of the indexes that are newer than this one; None for the newest only.
        toolkit_releases: release files of OpenShift's Driver Toolkits.
        release_info: output of ``oc adm release info -o json`` for the toolkits' release.
        large_pages: add the arm64 kernels with pages of 64 KiB.
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
    """The kernels of all these options.

    Raises:
        ValueError: a file or a name has a wrong form.
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
        raise ValueError(f"{', '.join(map(str, indexes))}: no kernel of flavour {flavour!r}; try another --flavour")
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
    expected, idle = expected_kernels(kernels, (), [policy])
    return await _report(access, expected, idle)


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
    """The report for a cluster's nodes and policies: these kernels, and those in its ConfigMap.

    With ``lab``, images are looked up in the lab's simulated registries.

    Raises:
        CommandError: no policy of the cluster manages drivers.
    """
    found = await subjects_in_cluster(client, lab=lab)
    if announce:
        await announce_kernels(client, kernels)
    known, problems = parse_kernel_lists(await _read_list(client))
    in_use = [(each.pool, each.policy) for each in found.subjects]
    expected, idle = expected_kernels(dict.fromkeys([*kernels, *known]), in_use, found.everywhere)
    report = await _report(access, expected, idle, problems=problems, client=client, lab=lab)
    return msgspec.structs.replace(report, unknown=unlisted_groups((pool for pool, _ in in_use), report.rows))


async def _read_list(client: Client) -> dict[str, str]:
    """The data of the ConfigMap; empty if it does not exist."""
    try:
        return dict((await client.get(CONFIGMAPS, CONFIG_MAP, NAMESPACE)).data)
    except NotFound:
        return {}


async def announce_kernels(client: Client, kernels: Sequence[NextKernel]) -> None:
    """Adds kernels to the ConfigMap, and keeps its present lines and comments."""
    data = await _read_list(client)
    known = set(parse_kernel_lists(data)[0])
    changed = add_kernels(data, [each for each in kernels if each not in known])
    if not changed:
        return
    try:
        await client.merge_patch(CONFIGMAPS, CONFIG_MAP, {"data": changed}, NAMESPACE)
    except NotFound:
        await client.create(CONFIGMAPS.as_dicts(), {"metadata": {"name": CONFIG_MAP}, "data": changed}, NAMESPACE)


async def _report(
    access: Access,
    expected: Sequence[ExpectedKernel],
    idle: tuple[NextKernel, ...],
    *,
    problems: tuple[str, ...] = (),
    client: Client | None = None,
    lab: Resolver | None = None,
) -> CoverageReport:
    secrets = None if client is None else PullSecrets(client, NAMESPACE)
    async with connect_registries(access, secrets, lab=lab) as registries:
        rows = await asyncio.gather(*(look_up_coverage(each, registries.resolver) for each in expected))
    return CoverageReport(rows=tuple(rows), problems=problems, idle=idle)


def report_table(report: CoverageReport) -> Iterator[str]:
    """The report as a table."""
    if report.rows:
        rows = [("KERNEL", "NODES", "COVERED", "IMAGE OR REASON")]
        rows += [_cells(row) for row in sorted(report.rows, key=lambda row: row.pool)]
        yield from align_columns(rows)
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


def _cells(row: KernelCoverage) -> tuple[str, str, str, str]:
    return row.pool.kernel, row.group, "yes" if row.covered else "no", row.reason


def report_json(report: CoverageReport) -> str:
    """The report as JSON."""
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
