"""``tessera driver images``: lists a registry's driver images for a kernel, and the one that Tessera would use.

It replaces ``skopeo list-tags … | grep``.
"""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tessera.cli.base.connection import cluster_options, connect, report_errors
from tessera.cli.base.console import say, say_json
from tessera.cli.driver.registry_access import (
    REPOSITORY,
    Access,
    Registries,
    connect_registries,
    image_option,
    output_option,
    registry_options,
    version_option,
)

if TYPE_CHECKING:
    from tessera.api.driver.driver_policy import ImageSource
    from tessera.cli.driver.pool_images import PoolImages
    from tessera.cli.driver.subjects import ClusterSubjects, ImageSubject


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
@output_option
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
    output: str,
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
    from tessera.api.driver.driver_policy import ImageSource
    from tessera.cli.driver.image_tags import print_tags

    source = ImageSource(repository=repository, image=image, version=driver)
    if cluster:
        if kernel or system:
            raise click.UsageError("--cluster takes kernels and systems from the nodes; leave --kernel and --os out")
        return asyncio.run(_list_for_cluster(access, output, kubeconfig, context))
    if kernel and not system:
        raise click.UsageError("--kernel needs --os, for example ubuntu22.04: a tag names both")
    if kernel and system and driver:
        return asyncio.run(_list_for_kernel(access, source, (kernel, system, arch), output))
    return asyncio.run(print_tags(access, source, (kernel, system, arch), output))


async def _list_for_kernel(
    access: Access, source: "ImageSource", node: tuple[str, str, str | None], output: str
) -> int:
    from tessera.cli.driver.subjects import ClusterSubjects, ImageSubject, policy_of_command_line, pool_of

    subject = ImageSubject(policy=policy_of_command_line(source), pool=pool_of(*node))
    async with connect_registries(access) as registries:
        return _print_images([await _look_up(registries, subject)], ClusterSubjects(subjects=(subject,)), output)


async def _list_for_cluster(access: Access, output: str, kubeconfig: Path | None, context: str | None) -> int:
    from tessera.cli.base.simulated_cluster import lab_registries
    from tessera.cli.driver.subjects import NAMESPACE, subjects_in_cluster
    from tessera.driver.registry.credentials import PullSecrets

    lab = lab_registries(kubeconfig, context)
    async with (
        connect("tessera-driver", kubeconfig, context) as client,
        connect_registries(access, PullSecrets(client, NAMESPACE), lab=lab) as registries,
    ):
        cluster = await subjects_in_cluster(client, lab=lab)
        found = await asyncio.gather(*(_look_up(registries, each) for each in cluster.subjects))
    return _print_images(found, cluster, output)


async def _look_up(registries: Registries, subject: "ImageSubject") -> "PoolImages":
    """The images of one pool; all names are looked up at the same time."""
    from tessera.cli.driver.image_tags import tags_of
    from tessera.cli.driver.pool_images import candidate_queries, describe_images
    from tessera.driver.registry.wire import RegistryError

    queries = candidate_queries(subject)
    answers = dict(zip(queries, await asyncio.gather(*map(registries.resolver.resolve, queries)), strict=True))
    tags: Sequence[str] = ()
    notes = []
    if not subject.policy.source.verbatim and not subject.nodes:
        try:
            tags = await tags_of(registries, subject.policy.source)
        except RegistryError as error:
            notes.append(f"The registry did not list the tags: {error}")
    return describe_images(subject, answers, tags, notes)


def _print_images(found: Sequence["PoolImages"], cluster: "ClusterSubjects", output: str) -> int:
    from tessera.cli.driver.pool_images import image_table

    if output == "json":
        document = {"images": found, "others": [{"node": node, "reason": why} for node, why in cluster.others]}
        say_json(document)
    else:
        for subject, each in zip(cluster.subjects, found, strict=True):
            source = subject.policy.source
            name = source.image if source.verbatim else f"{source.repository}/{source.image}"
            say(*image_table(each, name), *([""] if each is not found[-1] or cluster.others else []))
        for node, why in cluster.others:
            say(f"{node}: needs no image: {why}" if why else f"{node}: no policy selects this node")
    return 0 if all(each.image for each in found) else 1
