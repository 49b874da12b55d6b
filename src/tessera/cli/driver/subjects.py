"""The nodes for which images are looked up: a kernel and a system of the command line, or the nodes of a cluster."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from tessera.api.driver.driver_policy import DriverPolicy, ImageSource
from tessera.cli.base.connection import CommandError
from tessera.cli.base.inputs import read_text
from tessera.cli.base.simulated_cluster import print_registries_note
from tessera.driver.coverage.kernels import content_lines
from tessera.driver.coverage.kernels import parse_kernel as kernel_line
from tessera.driver.driver_sets import PoolKey
from tessera.driver.nodes.node_facts import DriverNodeFacts
from tessera.driver.resolution import Resolver
from tessera.kube.client.client import Client
from tessera.limits.messages import ECHOED

Obj = Mapping[str, Any]

#: Namespace of Tessera's own objects, pull secrets among them.
NAMESPACE = "tessera-system"


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


def policy_of_command_line(source: ImageSource, *, build: bool = False) -> DriverPolicy:
    """A policy that names a driver image and nothing else."""
    return DriverPolicy(kind="command", name="line", use_precompiled=not build, source=source)


def pool_of(kernel: str, os_name: str, architecture: str | None) -> PoolKey:
    """The pool of nodes with a kernel.

    Args:
        kernel: ``uname -r``.
        os_name: ``ubuntu22.04``.
        architecture: amd64 or arm64, or uname's name of it; None takes it from the kernel's name, else amd64.

    Raises:
        ValueError: one of them has a wrong form.
    """
    return kernel_line(os_name, f"{kernel} {architecture or ''}").pool("amd64")


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
            found.append(kernel_line(system, text).pool("amd64"))
    return found


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
    from tessera.driver.nodes.node_facts import read_node_facts
    from tessera.driver.policies.policy_selection import PolicyObjects, select_policy
    from tessera.kube.resources import NODES

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


async def _policies(client: Client) -> tuple[Sequence[Obj] | None, Sequence[Obj] | None]:
    """ClusterPolicies and NVIDIADrivers; None for a kind that the API server does not have."""
    from tessera.api.driver.assignment import CLUSTER_POLICIES, NVIDIA_DRIVERS
    from tessera.kube.client.errors import NotFound

    found: list[Sequence[Obj] | None] = []
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
            groups.setdefault((f"{policy.kind}/{policy.name}", node.pool), []).append(node.name)
    subjects = [
        ImageSubject(policy=policies[names[0]], pool=key[1], nodes=tuple(sorted(names)))
        for key, names in groups.items()
    ]
    return ClusterSubjects(
        subjects=tuple(sorted(subjects, key=lambda each: (each.policy.name, each.pool))), others=tuple(others)
    )


async def _with_next_kernels(client: Client, found: ClusterSubjects) -> ClusterSubjects:
    from tessera.driver.coverage.kernels import CONFIG_MAP, parse_kernel_lists
    from tessera.kube.client.errors import NotFound
    from tessera.kube.resources import CONFIGMAPS

    try:
        data = (await client.get(CONFIGMAPS, CONFIG_MAP, NAMESPACE)).data
    except NotFound:
        return found
    kernels, problems = parse_kernel_lists(data)
    if problems:
        raise CommandError(f"error: ConfigMap {NAMESPACE}/{CONFIG_MAP}: {problems[0]}")
    coming = {
        (subject.policy.name, pool): ImageSubject(policy=subject.policy, pool=pool)
        for kernel in kernels
        for subject in found.subjects
        if (subject.pool.os_id, subject.pool.os_version) == (kernel.os_id, kernel.os_version)
        and kernel.architecture in ("", subject.pool.architecture)
        and (pool := kernel.pool(subject.pool.architecture)) not in {each.pool for each in found.subjects}
    }
    return msgspec.structs.replace(found, subjects=(*found.subjects, *coming.values()))
