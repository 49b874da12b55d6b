"""Copies driver images one after the other, and prints the result of each copy."""

import asyncio
from collections.abc import Iterable, Iterator, Sequence

import msgspec

from tessera.api.driver.driver_policy import ImageSource
from tessera.cli.base.connection import CommandError
from tessera.cli.base.console import say
from tessera.cli.driver.pool_images import size
from tessera.cli.driver.registry_access import Registries
from tessera.cli.driver.subjects import ImageSubject
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
from tessera.driver.registry.reference import parse
from tessera.driver.registry.wire import RegistryError
from tessera.driver.resolution import ImageKind, ImageQuery, Outcome, Resolution


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
