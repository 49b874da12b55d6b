"""The nodes for which images are looked up: of kernels that options and files name, or of a cluster."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from tessera.cli.base.connection import CommandError
from tessera.cli.base.inputs import read_text
from tessera.cli.base.simulated_cluster import print_registries_note
from tessera.driver.coverage import expected_kernels
from tessera.driver.driver_sets import NAMESPACE, PoolKey
from tessera.driver.images import Resolver
from tessera.driver.kernels import (
    CONFIG_MAP,
    NextKernel,
    add_kernels,
    apt_kernels,
    content_lines,
    newer_kernels,
    newest_kernels,
    parse_kernel,
    parse_kernel_lists,
    rhcos_version,
    toolkit_kernel,
    with_large_pages,
)
from tessera.driver.node_facts import DriverNodeFacts, read_node_facts
from tessera.driver.policies import PolicyObjects, select_policy
from tessera.gpu_operator.assignment import CLUSTER_POLICIES, NVIDIA_DRIVERS
from tessera.gpu_operator.driver_policy import DriverPolicy, ImageSource
from tessera.kube.client import Client
from tessera.kube.errors import NotFound
from tessera.kube.resources import CONFIGMAPS, NODES
from tessera.limits import ECHOED


class ImageSubject(msgspec.Struct, frozen=True, kw_only=True):
    """Nodes that share an image.

    Attributes:
        policy: the policy that names their driver.
        pool: kernel, system and architecture of the nodes.
        nodes: their names; empty for a kernel of the command line.
    """

    policy: DriverPolicy
    pool: PoolKey
    nodes: tuple[str, ...] = ()


class ClusterSubjects(msgspec.Struct, frozen=True, kw_only=True):
    """A cluster's nodes with cards, grouped by image.

    Attributes:
        subjects: groups of nodes that share an image.
        everywhere: policies that also select future nodes of other systems.
        others: nodes that need no image, or whose kernel or system is unknown: name and reason.
    """

    subjects: tuple[ImageSubject, ...] = ()
    everywhere: tuple[DriverPolicy, ...] = ()
    others: tuple[tuple[str, str], ...] = ()

    @property
    def in_use(self) -> list[tuple[PoolKey, DriverPolicy]]:
        """The nodes' pools, each with its policy."""
        return [(each.pool, each.policy) for each in self.subjects]


def policy_of_command_line(source: ImageSource) -> DriverPolicy:
    """A policy that names a driver image and nothing else."""
    return DriverPolicy(kind="command", name="line", use_precompiled=True, source=source)


def pool_of(kernel: str, os_name: str, architecture: str | None) -> PoolKey:
    """The pool of nodes with a kernel.

    Args:
        kernel: ``uname -r``.
        os_name: ``ubuntu22.04``.
        architecture: amd64 or arm64, or uname's name of it; None takes it from the kernel's name, else amd64.

    Raises:
        ValueError: one of them has a wrong form.
    """
    return parse_kernel(os_name, f"{kernel} {architecture or ''}").pool("amd64")


def kernels_in(path: Path, os_name: str | None) -> list[PoolKey]:
    """The pools of a file of kernels, one on a line: ``[SYSTEM] KERNEL [ARCHITECTURE]``.

    Raises:
        ValueError: a line has another form.
    """
    found = []
    for line in content_lines(read_text(path)):
        first, _, rest = line.partition(" ")
        system, text = (os_name, line) if first[:1].isdigit() else (first, rest.strip())
        if system is None:
            raise ValueError(
                f"{path}: kernel {first[:ECHOED]!r} has no system: write it before the kernel, or give --os"
            )
        with name_file(path):
            found.append(parse_kernel(system, text).pool("amd64"))
    return found


def listed_kernels(texts: Sequence[str], lists: Sequence[Path], system: str, arch: str) -> Iterator[NextKernel]:
    """The kernels of texts and of files with one on a line; ``arch`` is for those that name no architecture."""

    def read(text: str) -> NextKernel:
        return parse_kernel(system, text if len(text.split()) > 1 else f"{text} {arch}")

    yield from map(read, texts)
    for path in lists:
        for line in content_lines(read_text(path)):
            with name_file(path):
                yield read(line)


def kernels_in_indexes(
    indexes: Sequence[Path], system: str, arch: str, flavour: str, newer_than: str | None
) -> Iterator[NextKernel]:
    """The newest kernel of package indexes of an apt archive, or all that are newer than one."""
    images: set[str] = set()
    for path in indexes:
        with name_file(path):
            images |= set(apt_kernels(path.read_bytes(), flavour))
    if indexes and not images:
        raise ValueError(f"{', '.join(map(str, indexes))}: no kernel of flavour {flavour!r}; try another --flavour")
    for name in newer_kernels(images, [newer_than]) if newer_than else newest_kernels(images):
        yield parse_kernel(system, f"{name} {arch}")


def kernels_in_toolkits(releases: Sequence[Path], info: Path | None, *, large_pages: bool) -> Iterator[NextKernel]:
    """The kernels of release files of OpenShift's Driver Toolkits; ``info`` describes the toolkits' release."""
    machine_os = ""
    if info is not None:
        with name_file(info):
            machine_os = rhcos_version(info.read_bytes())
    for path in releases:
        with name_file(path):
            kernel = toolkit_kernel(path.read_bytes(), machine_os)
            found = [kernel, *([with_large_pages(kernel)] if large_pages else [])]
        yield from found


@contextmanager
def name_file(path: Path) -> Iterator[None]:
    """Puts the file's name before the text of an error in it."""
    try:
        yield
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error


async def subjects_in_cluster(client: Client, *, coming: bool = False, lab: Resolver | None = None) -> ClusterSubjects:
    """The nodes with cards, by policy and pool. Prints a note about registries if the cluster is a lab.

    Args:
        client: the cluster.
        coming: add the kernels of ConfigMap ``driver-next-kernels``, under the policies of nodes with their system.
        lab: the lab's registries, if the command queries them.

    Raises:
        CommandError: no policy of the cluster manages drivers.
    """
    listed = (await client.list(NODES)).items
    print_registries_note(listed, lab)
    nodes = [facts for node in listed if (facts := read_node_facts(node)).is_gpu]
    policies, drivers = await _policies(client)
    governed = select_policy(
        PolicyObjects(cluster_policies=policies, nvidia_drivers=drivers), {each.name: each.labels for each in nodes}
    )
    if governed.frozen or governed.cluster is None:
        reason = governed.frozen or "No ClusterPolicy has driver.enabled."
        raise CommandError(
            f"error: no policy of this cluster installs drivers: {reason} Give --kernel and --os instead of --cluster"
        )
    found = _group_nodes(nodes, governed.nodes, governed.unassigned)
    if not governed.cluster.use_driver_crd:
        found = msgspec.structs.replace(found, everywhere=(governed.cluster,))
    return await _with_next_kernels(client, found) if coming else found


async def _policies(client: Client) -> tuple[Sequence[Mapping[str, Any]] | None, Sequence[Mapping[str, Any]] | None]:
    """ClusterPolicies and NVIDIADrivers; None for a kind that the API server does not have."""
    found: list[Sequence[Mapping[str, Any]] | None] = []
    for kind in (CLUSTER_POLICIES, NVIDIA_DRIVERS):
        try:
            found.append((await client.list(kind)).items)
        except NotFound:
            found.append(None)
    return found[0], found[1]


def _group_nodes(
    nodes: list[DriverNodeFacts], policies: Mapping[str, DriverPolicy], unassigned: Mapping[str, str]
) -> ClusterSubjects:
    groups: dict[tuple[str, PoolKey], list[str]] = {}
    others: list[tuple[str, str]] = []
    for node in nodes:
        why = node.preinstalled or node.opted_out or "; ".join(node.missing) or unassigned.get(node.name, "")
        if why or node.pool is None or node.name not in policies:
            others.append((node.name, why))
        else:
            policy = policies[node.name]
            groups.setdefault((policy.full_name, node.pool), []).append(node.name)
    subjects = [
        ImageSubject(policy=policies[names[0]], pool=key[1], nodes=tuple(sorted(names)))
        for key, names in groups.items()
    ]
    return ClusterSubjects(
        subjects=tuple(sorted(subjects, key=lambda each: (each.policy.name, each.pool))), others=tuple(others)
    )


async def read_kernel_list(client: Client) -> dict[str, str]:
    """The data of ConfigMap ``driver-next-kernels``; empty if it does not exist."""
    try:
        return dict((await client.get(CONFIGMAPS, CONFIG_MAP, NAMESPACE)).data)
    except NotFound:
        return {}


async def announce_kernels(client: Client, kernels: Sequence[NextKernel]) -> None:
    """Adds kernels to the ConfigMap, and keeps its present lines and comments."""
    data = await read_kernel_list(client)
    known = set(parse_kernel_lists(data)[0])
    changed = add_kernels(data, [each for each in kernels if each not in known])
    if not changed:
        return
    try:
        await client.merge_patch(CONFIGMAPS, CONFIG_MAP, {"data": changed}, NAMESPACE)
    except NotFound:
        await client.create(CONFIGMAPS.as_dicts(), {"metadata": {"name": CONFIG_MAP}, "data": changed}, NAMESPACE)


async def _with_next_kernels(client: Client, found: ClusterSubjects) -> ClusterSubjects:
    kernels, problems = parse_kernel_lists(await read_kernel_list(client))
    if problems:
        raise CommandError(f"error: ConfigMap {NAMESPACE}/{CONFIG_MAP}: {problems[0]}")
    known = {each.pool for each in found.subjects}
    expected, _ = expected_kernels(kernels, found.in_use)
    coming = [ImageSubject(policy=each.policy, pool=each.pool) for each in expected if each.pool not in known]
    return msgspec.structs.replace(found, subjects=(*found.subjects, *coming))
