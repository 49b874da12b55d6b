"""``tessera driver mirror``: copies the driver images that kernels need into a registry that nodes can reach."""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tessera.cli.base.connection import cluster_options, connect, report_errors
from tessera.cli.driver.registry_access import (
    Access,
    connect_registries,
    image_option,
    registry_options,
    version_option,
)

if TYPE_CHECKING:
    from tessera.cli.driver.image_copies import CopyOrder
    from tessera.cli.driver.subjects import ImageSubject


@click.command()
@click.option("--from", "origin", metavar="REPOSITORY", help="Copy from this: nvcr.io/nvidia. Not with --cluster.")
@click.option("--to", "target", metavar="REPOSITORY", required=True, help="Copy into this: registry.local/nvidia.")
@image_option
@version_option
@click.option("--kernel", "kernels", metavar="NAME", multiple=True, help="A kernel of nodes, uname -r; repeatable.")
@click.option("--os", "system", metavar="NAME", help="ID and VERSION_ID of the nodes: ubuntu22.04.")
@click.option("--arch", metavar="NAME", multiple=True, help="amd64 or arm64; repeatable.")
@click.option(
    "--kernel-list",
    metavar="FILE",
    type=click.Path(path_type=Path, dir_okay=False, exists=True),
    help="File of kernels, one on a line: [SYSTEM] KERNEL [ARCHITECTURE].",
)
@click.option("--cluster", is_flag=True, help="Copy for the cluster's nodes, policy and next kernels.")
@click.option(
    "--builder/--no-builder", default=True, help="Also copy the image that compiles drivers on nodes.  [default: copy]"
)
@click.option("--all-platforms", "whole", is_flag=True, help="Copy all platforms of each image.")
@click.option("--dry-run", is_flag=True, help="Print the skopeo commands instead of running them.")
@registry_options
@cluster_options
@report_errors
def command(
    *,
    origin: str | None,
    target: str,
    image: str,
    driver: str,
    kernels: tuple[str, ...],
    system: str | None,
    arch: tuple[str, ...],
    kernel_list: Path | None,
    cluster: bool,
    builder: bool,
    whole: bool,
    dry_run: bool,
    access: Access,
    kubeconfig: Path | None,
    context: str | None,
) -> int:
    """Copy the driver images that kernels need into another registry, under the names that nodes use.

    For each kernel, the command copies the image with precompiled modules of the version or its branch, and the image
    that compiles drivers. With --cluster, it copies the images that the nodes need under their policy, those for the
    kernels in ConfigMap driver-next-kernels, and the images of toolkit and driver manager. skopeo copies the images by
    digest; images that the target has already are not copied again. Credentials come from --auth, or from the file of
    docker and skopeo.

    Afterwards, name the target in the policy: as spec.driver.repository, or as a mirror in the annotation
    tessera.dev/driver-mirrors.

    The exit code is 1 if an image is missing or was not copied.

    \b
    Examples:
      tessera driver mirror --from nvcr.io/nvidia --to registry.local/nvidia --version 525 \\
        --kernel 5.15.0-69-generic --os ubuntu22.04
      tessera driver mirror --cluster --to registry.local/nvidia --kernel-list kernels.txt --dry-run
    """
    from tessera.cli.driver.image_copies import CopyOrder
    from tessera.driver.registry.copying import Skopeo

    skopeo = Skopeo(authfile=str(access.auth or ""), authority=str(access.ca or ""), plain=access.plain)
    order = CopyOrder(skopeo=skopeo, target=target, builder=builder, whole=whole, dry_run=dry_run)
    if cluster:
        if origin or kernels or driver:
            raise click.UsageError(
                "--cluster takes images and kernels from the cluster; leave --from, --kernel and --version out"
            )
        return asyncio.run(_copy_for_cluster(access, order, (kernel_list, system), (kubeconfig, context)))
    if not origin or not driver or not (kernels or kernel_list):
        raise click.UsageError("give --from, --version, and --kernel with --os or --kernel-list; or --cluster alone")
    if kernels and not system:
        raise click.UsageError("--kernel needs --os, for example ubuntu22.04: a tag names both")
    subjects = _subjects_of_options((origin, image, driver), (kernels, system, arch), kernel_list)
    return asyncio.run(_copy_without_cluster(access, order, subjects))


def _subjects_of_options(
    source: tuple[str, str, str], nodes: tuple[Sequence[str], str | None, Sequence[str]], file: Path | None
) -> list["ImageSubject"]:
    """The nodes that the command line names."""
    from tessera.api.driver.driver_policy import ImageSource
    from tessera.cli.driver.subjects import ImageSubject, kernels_in, policy_of_command_line, pool_of

    repository, image, version = source
    kernels, system, architectures = nodes
    policy = policy_of_command_line(ImageSource(repository=repository, image=image, version=version))
    pools = [pool_of(kernel, system or "", each) for kernel in kernels for each in architectures or (None,)]
    pools.extend(kernels_in(file, system) if file else [])
    return [ImageSubject(policy=policy, pool=each) for each in dict.fromkeys(pools)]


async def _copy_without_cluster(access: Access, order: "CopyOrder", subjects: Sequence["ImageSubject"]) -> int:
    from tessera.cli.driver.image_copies import copy_images

    async with connect_registries(access) as registries:
        return await copy_images(registries, order, subjects)


async def _copy_for_cluster(
    access: Access, order: "CopyOrder", coming: tuple[Path | None, str | None], where: tuple[Path | None, str | None]
) -> int:
    from tessera.cli.driver.image_copies import copy_images
    from tessera.cli.driver.subjects import NAMESPACE, ImageSubject, kernels_in, subjects_in_cluster
    from tessera.driver.registry.credentials import PullSecrets

    async with (
        connect("tessera-driver", *where) as client,
        connect_registries(access, PullSecrets(client, NAMESPACE)) as registries,
    ):
        found = await subjects_in_cluster(client, coming=True)
        file, system = coming
        named = kernels_in(file, system) if file else []
        policies = {each.policy.name: each.policy for each in found.subjects}
        more = [ImageSubject(policy=policy, pool=pool) for policy in policies.values() for pool in named]
        return await copy_images(registries, order, [*found.subjects, *more])
