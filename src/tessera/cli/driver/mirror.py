"""``tessera driver mirror``: copies the driver images that kernels need into a registry that nodes can reach."""

import asyncio
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import click
import msgspec

from tessera.api.image_reference import parse
from tessera.cli.base.connection import CommandError, cluster_options, connect, report_errors
from tessera.cli.base.console import say
from tessera.cli.base.process import run_command
from tessera.cli.driver.pool_images import size
from tessera.cli.driver.registry_access import (
    Access,
    Registries,
    connect_registries,
    image_option,
    registry_options,
    version_option,
)
from tessera.cli.driver.subjects import ImageSubject, kernels_in, policy_of_command_line, pool_of, subjects_in_cluster
from tessera.driver.driver_sets import NAMESPACE
from tessera.driver.images import ImageKind, ImageQuery, Outcome, Resolution
from tessera.driver.planning.strategy import image_queries
from tessera.driver.registry.copying import (
    CopyError,
    ImageCopy,
    NeededImage,
    Skopeo,
    plan_copies,
    read_target_state,
    required_copy,
    run_skopeo,
    skopeo_path,
)
from tessera.driver.registry.credentials import PullSecrets
from tessera.driver.registry.wire import RegistryError
from tessera.gpu_operator.driver_policy import ImageSource


class CopyOrder(msgspec.Struct, frozen=True, kw_only=True):
    """The options of a copy.

    Attributes:
        skopeo: skopeo with its options.
        target: the repository into which images are copied.
        builder: copy also the images that compile drivers on nodes.
        whole: copy all platforms of each image.
        dry_run: only print the commands.
    """

    skopeo: Skopeo
    target: str
    builder: bool
    whole: bool
    dry_run: bool


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
    skopeo = Skopeo(authfile=str(access.auth or ""), authority=str(access.ca or ""), plain=access.plain)
    order = CopyOrder(skopeo=skopeo, target=target, builder=builder, whole=whole, dry_run=dry_run)
    if cluster:
        if origin or kernels or driver:
            raise click.UsageError(
                "--cluster takes images and kernels from the cluster; leave --from, --kernel and --version out"
            )
        return run_command(_copy_for_cluster(access, order, (kernel_list, system), (kubeconfig, context)))
    if not origin or not driver or not (kernels or kernel_list):
        raise click.UsageError("give --from, --version, and --kernel with --os or --kernel-list; or --cluster alone")
    if kernels and not system:
        raise click.UsageError("--kernel needs --os, for example ubuntu22.04: a tag names both")
    policy = policy_of_command_line(ImageSource(repository=origin, image=image, version=driver))
    pools = [pool_of(kernel, system or "", each) for kernel in kernels for each in arch or (None,)]
    pools.extend(kernels_in(kernel_list, system) if kernel_list else [])
    subjects = [ImageSubject(policy=policy, pool=each) for each in dict.fromkeys(pools)]
    return run_command(_copy_without_cluster(access, order, subjects))


async def _copy_without_cluster(access: Access, order: CopyOrder, subjects: Sequence[ImageSubject]) -> int:
    async with connect_registries(access) as registries:
        return await copy_images(registries, order, subjects)


async def _copy_for_cluster(
    access: Access, order: CopyOrder, coming: tuple[Path | None, str | None], where: tuple[Path | None, str | None]
) -> int:
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


async def copy_images(registries: Registries, order: CopyOrder, subjects: Sequence[ImageSubject]) -> int:
    """Finds the images that nodes need, and copies those that the target lacks.

    Returns:
        The exit code: 1 if an image is missing or was not copied.

    Raises:
        CommandError: skopeo is not installed.
    """
    if not order.dry_run:
        try:
            skopeo_path()
        except CopyError as error:
            raise CommandError(f"error: {error}") from error
    found = await find_needs(registries, subjects, builder=order.builder)
    copies = plan_copies(found.needed, order.target, whole=order.whole)
    done = [await _copy(registries, order, each) for each in copies]
    for each in found.missing:
        say(f"no image: {each}", err=True)
    return 0 if all(done) and not found.missing else 1


async def _copy(registries: Registries, order: CopyOrder, copy: ImageCopy) -> bool:
    """Copies one image. Returns True if the target has it now, or would have it without ``dry_run``."""
    try:
        todo = required_copy(copy, await read_target_state(registries.client, copy, registries.keyring))
        if todo is None:
            say(f"{'# ' if order.dry_run else ''}exists already: {copy.target.text}")
        elif order.dry_run:
            say(order.skopeo.command_line(todo))
        else:
            await run_skopeo(order.skopeo, todo)
            say(f"copied: {todo.source.text} to {todo.target.text} ({size(todo.size_bytes)})")
    except (CopyError, RegistryError, ValueError) as error:
        say(f"error: {error}", err=True)
        return False
    return True


_PRECOMPILED = (ImageKind.PRECOMPILED, ImageKind.PRECOMPILED_BRANCH, ImageKind.VERBATIM)


class ImageNeeds(msgspec.Struct, frozen=True, kw_only=True):
    """The images that nodes need.

    Attributes:
        needed: the images that registries have.
        missing: a sentence for each pool or program without an image.
    """

    needed: tuple[NeededImage, ...]
    missing: tuple[str, ...]


async def find_needs(registries: Registries, subjects: Sequence[ImageSubject], *, builder: bool) -> ImageNeeds:
    """Looks up the images that nodes need.

    Args:
        registries: the registries.
        subjects: the nodes.
        builder: look up the image that compiles drivers also if there is one with precompiled modules.
    """
    groups = [_driver_queries(each, builder=builder) for each in subjects]
    groups.extend([query] for query in dict.fromkeys(query for each in subjects for query in _operand_queries(each)))
    answers = await asyncio.gather(*(_first(registries, group) for group in groups))
    needed: dict[tuple[str, str], NeededImage] = {}
    missing = []
    for found, why in answers:
        if not found:
            missing.append(why)
        needed.update({(each.reference, each.query.pool.architecture): each for each in found})
    return ImageNeeds(needed=tuple(needed.values()), missing=tuple(dict.fromkeys(missing)))


def _driver_queries(subject: ImageSubject, *, builder: bool) -> list[ImageQuery]:
    """Queries for driver images, best first; only in the policy's own repository, the source of the copy."""
    policy = msgspec.structs.replace(subject.policy, mirrors=(), build_repository="")
    queries = image_queries(policy, subject.pool)
    precompiled = [each for each in queries if each.kind in _PRECOMPILED]
    if not policy.use_precompiled:
        return [each for each in queries if each.kind is ImageKind.BUILDER] or precompiled
    return queries if builder else precompiled or queries


def _operand_queries(subject: ImageSubject) -> Iterator[ImageQuery]:
    """Queries for the toolkit and the driver manager, if the policy names their images."""
    for part in (subject.policy.toolkit, subject.policy.manager):
        if part.enabled and part.source != ImageSource() and part.source.image:
            yield ImageQuery(source=part.source, pool=subject.pool, kind=ImageKind.VERBATIM)


async def _first(registries: Registries, queries: Sequence[ImageQuery]) -> tuple[list[NeededImage], str]:
    """The best image with precompiled modules and the best that compiles, as far as the queries have both kinds."""
    answers = dict(zip(queries, await asyncio.gather(*map(registries.resolver.resolve, queries)), strict=True))
    found = []
    for kinds in (_PRECOMPILED, (ImageKind.BUILDER,)):
        query = next((each for each in queries if each.kind in kinds and answers[each].outcome is Outcome.FOUND), None)
        if query is not None:
            try:
                found.append(await _whole(registries, query, answers[query]))
            except RegistryError as error:
                return found, str(error)
    return found, _why(answers)


async def _whole(registries: Registries, query: ImageQuery, answer: Resolution) -> NeededImage:
    reference = parse(answer.reference)
    keyring = await registries.secrets(query.source.pull_secrets)
    image = await registries.client.find_image(reference, query.pool.architecture, keyring)
    return NeededImage(query=query, reference=answer.reference, found=image)


def _why(answers: dict[ImageQuery, Resolution]) -> str:
    query = next(iter(answers))
    return f"{query.pool.text}: {'; '.join(_texts(answers.values()))}"


def _texts(answers: Iterable[Resolution]) -> list[str]:
    return list(dict.fromkeys(each.text for answer in answers for each in answer.tried))
