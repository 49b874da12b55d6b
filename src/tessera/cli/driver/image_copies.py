"""Has images copied one after the other, and says of each what became of it."""

from collections.abc import Sequence

import msgspec

from tessera.cli.base.connection import Failure
from tessera.cli.base.console import say
from tessera.cli.driver.image_needs import needs
from tessera.cli.driver.pool_images import size
from tessera.cli.driver.registry_access import Registries
from tessera.cli.driver.subjects import Subject
from tessera.driver.registry.copying import (
    CopyError,
    ImageCopy,
    Skopeo,
    plan_copies,
    read_target_state,
    required_copy,
    run_skopeo,
    skopeo_path,
)
from tessera.driver.registry.errors import RegistryError


class Order(msgspec.Struct, frozen=True, kw_only=True):
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


async def mirrored(there: Registries, order: Order, subjects: Sequence[Subject]) -> int:
    """Finds, plans, and copies.

    Returns:
        The exit code: 1 if an image is missing or was not copied.

    Raises:
        NodeFailure: nothing can be copied, since skopeo is missing.
    """
    if not order.dry_run:
        try:
            skopeo_path()
        except CopyError as error:
            raise Failure(f"error: {error}") from error
    found = await needs(there, subjects, builder=order.builder)
    copies = plan_copies(found.needed, order.target, whole=order.whole)
    done = [await _one(there, order, each) for each in copies]
    for each in found.missing:
        say(f"no image: {each}", err=True)
    return 0 if all(done) and not found.missing else 1


async def _one(there: Registries, order: Order, copy: ImageCopy) -> bool:
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
