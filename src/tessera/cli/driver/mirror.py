"""``tessera driver mirror``: brings the driver images that kernels need to where nodes can pull them."""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tessera.cli.base.connection import cluster_options, connect, report_errors
from tessera.cli.driver.registry_access import Access, image_option, registries, registry_options, version_option

if TYPE_CHECKING:
    from tessera.cli.driver.image_copies import CopyOrder
    from tessera.cli.driver.subjects import ImageSubject


@click.command()
@click.option("--from", "origin", metavar="REPOSITORY", help="Where images are: nvcr.io/nvidia. Not with --cluster.")
@click.option("--to", "target", metavar="REPOSITORY", required=True, help="Where they shall be: registry.local/nvidia.")
@image_option
@version_option
@click.option("--kernel", "kernels", metavar="NAME", multiple=True, help="What uname -r says; may be repeated.")
@click.option("--os", "system", metavar="NAME", help="ID and VERSION_ID of the nodes' os-release: ubuntu22.04.")
@click.option("--arch", metavar="NAME", multiple=True, help="amd64 or arm64; may be repeated.")
@click.option(
    "--next-kernels",
    metavar="FILE",
    type=click.Path(path_type=Path, dir_okay=False, exists=True),
    help="Kernels that are to come, one a line: [SYSTEM] KERNEL [ARCHITECTURE].",
)
@click.option("--cluster", is_flag=True, help="For the cluster's nodes, policy and next kernels.")
@click.option("--builder/--no-builder", default=True, help="Also the image that builds drivers on nodes.")
@click.option("--all", "whole", is_flag=True, help="Copy all platforms of each image.")
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
    next_kernels: Path | None,
    cluster: bool,
    builder: bool,
    whole: bool,
    dry_run: bool,
    access: Access,
    kubeconfig: Path | None,
    context: str | None,
) -> int:
    """Copy the driver images that kernels need into another registry, under the names that are looked for.

    For each kernel the image with finished modules, of the version or its branch, and the image that builds drivers.
    With --cluster: what the nodes need under their policy, what the kernels listed in ConfigMap driver-next-kernels
    will need, and the images of toolkit and driver manager. Images are copied by digest with skopeo; what is there
    already is left alone. Credentials come from --auth, or from the file of docker and skopeo.

    Afterwards name the target in the policy: as spec.driver.repository, or beside it in the annotation
    tessera.dev/driver-mirrors.

    The exit code is 1 if an image is missing or was not copied.

    \b
    Examples:
      tessera driver mirror --from nvcr.io/nvidia --to registry.local/nvidia --version 525 \\
        --kernel 5.15.0-69-generic --os ubuntu22.04
      tessera driver mirror --cluster --to registry.local/nvidia --next-kernels kernels.txt --dry-run
    """
    from tessera.cli.driver.image_copies import CopyOrder
    from tessera.driver.registry.copying import Skopeo

    skopeo = Skopeo(authfile=str(access.auth or ""), authority=str(access.ca or ""), plain=access.plain)
    order = CopyOrder(skopeo=skopeo, target=target, builder=builder, whole=whole, dry_run=dry_run)
    if cluster:
        if origin or kernels or driver:
            raise click.UsageError("--cluster takes images and kernels from the cluster; leave out what names others")
        return asyncio.run(_cluster(access, order, (next_kernels, system), (kubeconfig, context)))
    if not origin or not driver or not (kernels or next_kernels):
        raise click.UsageError("give --from, --version, and --kernel with --os or --next-kernels; or --cluster alone")
    if kernels and not system:
        raise click.UsageError("--kernel needs --os, for example ubuntu22.04: a tag names both")
    subjects = _named((origin, image, driver), (kernels, system, arch), next_kernels)
    return asyncio.run(_outside(access, order, subjects))


def _named(
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


async def _outside(access: Access, order: "CopyOrder", subjects: Sequence["ImageSubject"]) -> int:
    from tessera.cli.driver.image_copies import copy_images

    async with registries(access) as there:
        return await copy_images(there, order, subjects)


async def _cluster(
    access: Access, order: "CopyOrder", coming: tuple[Path | None, str | None], where: tuple[Path | None, str | None]
) -> int:
    from tessera.cli.driver.image_copies import copy_images
    from tessera.cli.driver.subjects import NAMESPACE, ImageSubject, kernels_in, subjects_in_cluster
    from tessera.driver.registry.pull_secrets import PullSecrets

    async with (
        connect("tessera-driver", *where) as client,
        registries(access, PullSecrets(client, NAMESPACE)) as there,
    ):
        seen = await subjects_in_cluster(client, coming=True)
        file, system = coming
        named = kernels_in(file, system) if file else []
        policies = {each.policy.name: each.policy for each in seen.subjects}
        more = [ImageSubject(policy=policy, pool=pool) for policy in policies.values() for pool in named]
        return await copy_images(there, order, [*seen.subjects, *more])
