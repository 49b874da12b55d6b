"""Has images copied one after the other, and says of each what became of it."""

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
from tessera.driver.registry.errors import RegistryError
from tessera.driver.registry.reference import parse
from tessera.driver.resolution import ImageKind, ImageQuery, Outcome, Resolution


class CopyOrder(msgspec.Struct, frozen=True, kw_only=True):
    """What is wanted.

    Attributes:
        skopeo: how it is run.
        target: the repository that images are copied into.
        builder: also images that build drivers.
        whole: all platforms of each image.
        dry_run: only say what would be done.
    """

    skopeo: Skopeo
    target: str
    builder: bool
    whole: bool
    dry_run: bool


async def copy_images(there: Registries, order: CopyOrder, subjects: Sequence[ImageSubject]) -> int:
    """Finds, plans, and copies.

    Returns:
        The exit code: 1 if an image is missing or was not copied.

    Raises:
        CommandError: nothing can be copied, since skopeo is missing.
    """
    if not order.dry_run:
        try:
            skopeo_path()
        except CopyError as error:
            raise CommandError(f"error: {error}") from error
    found = await find_needs(there, subjects, builder=order.builder)
    copies = plan_copies(found.needed, order.target, whole=order.whole)
    done = [await _one(there, order, each) for each in copies]
    for each in found.missing:
        say(f"no image: {each}", err=True)
    return 0 if all(done) and not found.missing else 1


async def _one(there: Registries, order: CopyOrder, copy: ImageCopy) -> bool:
    """One image. Whether it is where it should be, or would be."""
    try:
        todo = required_copy(copy, await read_target_state(there.client, copy, there.keyring))
        if todo is None:
            say(f"{'# ' if order.dry_run else ''}there already: {copy.target.text}")
        elif order.dry_run:
            say(order.skopeo.command_line(todo))
        else:
            await run_skopeo(order.skopeo, todo)
            say(f"copied: {todo.source.text} to {todo.target.text} ({size(todo.size_bytes)})")
    except (CopyError, RegistryError, ValueError) as error:
        say(f"error: {error}", err=True)
        return False
    return True


_READY_MADE = (ImageKind.PRECOMPILED, ImageKind.PRECOMPILED_BRANCH, ImageKind.VERBATIM)


class ImageNeeds(msgspec.Struct, frozen=True, kw_only=True):
    """What was found, and a sentence for each pool or part for which nothing was."""

    needed: tuple[NeededImage, ...]
    missing: tuple[str, ...]


async def find_needs(there: Registries, subjects: Sequence[ImageSubject], *, builder: bool) -> ImageNeeds:
    """The images that nodes need.

    Args:
        there: what asks registries.
        subjects: the nodes.
        builder: also the image that builds drivers, where one with finished modules was found.
    """
    groups = [_wanted(each, builder=builder) for each in subjects]
    groups.extend([query] for query in dict.fromkeys(query for each in subjects for query in _beside(each)))
    answers = await asyncio.gather(*(_first(there, group) for group in groups))
    needed: dict[tuple[str, str], NeededImage] = {}
    missing = []
    for found, why in answers:
        if not found:
            missing.append(why)
        needed.update({(each.reference, each.query.pool.architecture): each for each in found})
    return ImageNeeds(needed=tuple(needed.values()), missing=tuple(dict.fromkeys(missing)))


def _wanted(subject: ImageSubject, *, builder: bool) -> list[ImageQuery]:
    """What may serve, best first; only from the policy's own repository, since that is what is copied."""
    policy = msgspec.structs.replace(subject.policy, mirrors=(), build_repository="")
    asked = image_queries(policy, subject.pool)
    ready = [each for each in asked if each.kind in _READY_MADE]
    if not policy.use_precompiled:
        return [each for each in asked if each.kind is ImageKind.BUILDER] or ready
    return asked if builder else ready or asked


def _beside(subject: ImageSubject) -> Iterator[ImageQuery]:
    """What else runs for the driver: the toolkit and the driver manager, where the policy names their images."""
    for part in (subject.policy.toolkit, subject.policy.manager):
        if part.enabled and part.source != ImageSource() and part.source.image:
            yield ImageQuery(source=part.source, pool=subject.pool, kind=ImageKind.VERBATIM)


async def _first(there: Registries, asked: Sequence[ImageQuery]) -> tuple[list[NeededImage], str]:
    """The best image with finished modules and the best that builds, as far as either was asked for."""
    answers = dict(zip(asked, await asyncio.gather(*map(there.resolver.resolve, asked)), strict=True))
    found = []
    for kinds in (_READY_MADE, (ImageKind.BUILDER,)):
        query = next((each for each in asked if each.kind in kinds and answers[each].outcome is Outcome.FOUND), None)
        if query is not None:
            try:
                found.append(await _whole(there, query, answers[query]))
            except RegistryError as error:
                return found, str(error)
    return found, _why(answers)


async def _whole(there: Registries, query: ImageQuery, answer: Resolution) -> NeededImage:
    reference = parse(answer.reference)
    keyring = await there.secrets(query.source.pull_secrets)
    image = await there.client.find_image(reference, query.pool.architecture, keyring)
    return NeededImage(query=query, reference=answer.reference, found=image)


def _why(answers: dict[ImageQuery, Resolution]) -> str:
    query = next(iter(answers))
    return f"{query.pool.text}: {'; '.join(_texts(answers.values()))}"


def _texts(answers: Iterable[Resolution]) -> list[str]:
    return list(dict.fromkeys(each.text for answer in answers for each in answer.tried))
