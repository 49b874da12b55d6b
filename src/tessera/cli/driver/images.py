"""``tessera driver images``: lists a registry's driver images for a kernel, and the one that Tessera would use.

It replaces ``skopeo list-tags … | grep``.
"""

import asyncio
from collections.abc import Iterator, Sequence
from pathlib import Path

import click
import msgspec

from tessera.api.image_reference import parse_repository
from tessera.cli.base.connection import CommandError, cluster_options, connect, report_errors
from tessera.cli.base.console import say
from tessera.cli.base.grammar import Output
from tessera.cli.base.process import run_command
from tessera.cli.base.simulated_cluster import lab_registries
from tessera.cli.driver.pool_images import (
    PoolImages,
    align_columns,
    by_number,
    describe_images,
    image_table,
    matching_tags,
    of_version,
    size,
)
from tessera.cli.driver.registry_access import (
    REPOSITORY,
    Access,
    Registries,
    connect_registries,
    image_option,
    registry_options,
    table_option,
    version_option,
)
from tessera.cli.driver.subjects import (
    ClusterSubjects,
    ImageSubject,
    policy_of_command_line,
    pool_of,
    subjects_in_cluster,
)
from tessera.driver.driver_sets import NAMESPACE, PoolKey
from tessera.driver.images import ImageKind, ImageQuery, Resolution
from tessera.driver.planning.strategy import image_queries
from tessera.driver.registry.credentials import PullSecrets
from tessera.driver.registry.wire import RegistryError
from tessera.gpu_operator.driver_policy import ImageSource

#: Tags of a kernel that are looked up, the newest; each is a request.
_LOOKED_UP = 100


@click.command()
@click.option("--kernel", metavar="NAME", help="The nodes' kernel, uname -r.")
@click.option("--os", "system", metavar="NAME", help="ID and VERSION_ID of the nodes: ubuntu22.04, rhcos4.15.")
@click.option("--arch", metavar="NAME", help="amd64 or arm64.  [default: from the kernel's name, or amd64]")
@version_option
@click.option(
    "--repository", default=REPOSITORY, show_default=True, help="Repository of driver images, as in the ClusterPolicy."
)
@image_option
@click.option("--cluster", is_flag=True, help="Use the nodes and the policy of the cluster.")
@table_option
@registry_options
@cluster_options
@report_errors
def command(
    *,
    kernel: str | None,
    system: str | None,
    arch: str | None,
    driver: str,
    repository: str,
    image: str,
    cluster: bool,
    output: Output,
    access: Access,
    kubeconfig: Path | None,
    context: str | None,
) -> int:
    """List a registry's driver images for a kernel, and the image that Tessera would use.

    With --kernel, --os and --version, the command shows each image name that Tessera tries, the registry's answer, and
    the image it uses with digest and size. Without --version, it lists all images for that kernel. Without --kernel, it
    lists the repository's tags. With --cluster, it shows the images for each kind of node under the cluster's policy;
    for a lab started with --drivers, it queries the lab's simulated registries.

    The exit code is 1 if there is no image.

    \b
    Examples:
      tessera driver images --version 510.47.03
      tessera driver images --kernel 5.15.0-69-generic --os ubuntu22.04
      tessera driver images --kernel 5.15.0-69-generic --os ubuntu22.04 --version 525 -o json
      tessera driver images --repository registry.redhat.io/nvidia --image gpu-driver-rhel9 --version 580
      tessera driver images --cluster
    """
    source = ImageSource(repository=repository, image=image, version=driver)
    if cluster:
        if kernel or system:
            raise click.UsageError("--cluster takes kernels and systems from the nodes; leave --kernel and --os out")
        return run_command(_list_for_cluster(access, output, kubeconfig, context))
    if kernel and not system:
        raise click.UsageError("--kernel needs --os, for example ubuntu22.04: a tag names both")
    if kernel and system and driver:
        return run_command(_list_for_kernel(access, source, (kernel, system, arch), output))
    return run_command(_list_tags(access, source, (kernel, system, arch), output))


async def _list_for_kernel(
    access: Access, source: ImageSource, node: tuple[str, str, str | None], output: Output
) -> int:
    subject = ImageSubject(policy=policy_of_command_line(source), pool=pool_of(*node))
    async with connect_registries(access) as registries:
        return _print_pools([await _look_up(registries, subject)], ClusterSubjects(subjects=(subject,)), output)


async def _list_for_cluster(access: Access, output: Output, kubeconfig: Path | None, context: str | None) -> int:
    lab = lab_registries(kubeconfig, context)
    async with (
        connect("tessera-driver", kubeconfig, context) as client,
        connect_registries(access, PullSecrets(client, NAMESPACE), lab=lab) as registries,
    ):
        cluster = await subjects_in_cluster(client, lab=lab)
        found = await asyncio.gather(*(_look_up(registries, each) for each in cluster.subjects))
    return _print_pools(found, cluster, output)


async def _look_up(registries: Registries, subject: ImageSubject) -> PoolImages:
    """The images of one pool; all names are looked up at the same time."""
    queries = image_queries(subject.policy, subject.pool)
    answers = dict(zip(queries, await asyncio.gather(*map(registries.resolver.resolve, queries)), strict=True))
    tags: Sequence[str] = ()
    notes = []
    if not subject.policy.source.verbatim and not subject.nodes:
        try:
            tags = await _tags_of(registries, subject.policy.source)
        except RegistryError as error:
            notes.append(f"The registry did not list the tags: {error}")
    return describe_images(subject, answers, tags, notes)


def _print_pools(found: Sequence[PoolImages], cluster: ClusterSubjects, output: Output) -> int:
    if output.for_programs:
        document = {"images": found, "others": [{"node": node, "reason": why} for node, why in cluster.others]}
        output.show(document, ())
    else:
        for subject, each in zip(cluster.subjects, found, strict=True):
            source = subject.policy.source
            name = source.image if source.verbatim else f"{source.repository}/{source.image}"
            say(*image_table(each, name), *([""] if each is not found[-1] or cluster.others else []))
        for node, why in cluster.others:
            say(f"{node}: needs no image: {why}" if why else f"{node}: no policy selects this node")
    return 0 if all(each.image for each in found) else 1


async def _tags_of(registries: Registries, source: ImageSource) -> Sequence[str]:
    repository = parse_repository(f"{source.repository}/{source.image}")
    return await registries.client.list_tags(repository, registries.keyring)


async def _list_tags(
    access: Access, source: ImageSource, node: tuple[str | None, str | None, str | None], output: Output
) -> int:
    """Prints the tags; with a kernel, also each tag's digest and size. Returns 1 if there are none."""
    kernel, system, architecture = node
    nodes = pool_of(kernel, system, architecture) if kernel and system else None
    async with connect_registries(access) as registries:
        try:
            tags = await _tags_of(registries, source)
        except RegistryError as error:
            raise CommandError(f"error: {error.outcome.value}: {error}") from error
        if nodes is None:
            return _print_names(source, _filter_tags(tags, source.version, system), output)
        found = matching_tags(tags, source.version, nodes)[:_LOOKED_UP]
        answers = await asyncio.gather(*(_resolve_tag(registries, source, nodes, tag) for tag in found))
    return _print_images(source, nodes, dict(zip(found, answers, strict=True)), output)


async def _resolve_tag(registries: Registries, source: ImageSource, nodes: PoolKey, tag: str) -> Resolution:
    exact = msgspec.structs.replace(source, version=tag)
    return await registries.resolver.resolve(ImageQuery(source=exact, pool=nodes, kind=ImageKind.VERBATIM))


def _filter_tags(tags: Sequence[str], version: str, system: str | None) -> list[str]:
    """The tags of a version and a system, in order; unlike ``grep``, without hits in the middle of a number."""
    return sorted(
        (
            tag
            for tag in tags
            if (not version or of_version(tag, version)) and (system is None or tag.endswith(f"-{system}"))
        ),
        key=by_number,
    )


def _print_names(source: ImageSource, found: list[str], output: Output) -> int:
    if output.for_programs:
        output.show({"Repository": f"{source.repository}/{source.image}", "Tags": found}, ())
    elif found:
        say(*found)
    return 0 if found else 1


def _print_images(source: ImageSource, nodes: PoolKey, found: dict[str, Resolution], output: Output) -> int:
    name = f"{source.repository}/{source.image}"
    if output.for_programs:
        output.show({"repository": name, "pool": nodes.text, "tags": list(_rows(found))}, ())
    elif found:
        rows = [(tag, each.outcome.value, size(each.size_bytes), each.digest) for tag, each in found.items()]
        say(*align_columns([("TAG", "ANSWER", "SIZE", "DIGEST"), *rows]))
        say("", "Give the driver's --version to see which of them Tessera uses.")
    else:
        say(f"{name} has no image with modules for {nodes.text}; give --version to see the image that compiles them.")
    return 0 if found else 1


def _rows(found: dict[str, Resolution]) -> Iterator[dict[str, object]]:
    for tag, each in found.items():
        yield {"tag": tag, "outcome": each.outcome.value, "digest": each.digest, "sizeBytes": each.size_bytes}
