"""Lists the tags of a repository for a version, a system or a kernel."""

import asyncio
from collections.abc import Iterator, Sequence

import msgspec

from tessera.api.driver.driver_policy import ImageSource
from tessera.cli.base.connection import CommandError
from tessera.cli.base.console import say, say_json
from tessera.cli.driver.pool_images import align_columns, by_number, matching_tags, of_version, size
from tessera.cli.driver.registry_access import Access, Registries, connect_registries
from tessera.cli.driver.subjects import pool_of
from tessera.driver.driver_sets import PoolKey
from tessera.driver.registry.reference import parse_repository
from tessera.driver.registry.wire import RegistryError
from tessera.driver.resolution import ImageKind, ImageQuery, Resolution
from tessera.limits.drivers import IMAGES_LISTED


async def tags_of(registries: Registries, source: ImageSource) -> Sequence[str]:
    """All tags of a source's repository.

    Raises:
        RegistryError: the registry does not list them.
        ReferenceFormatError: the repository's name is not valid.
    """
    repository = parse_repository(f"{source.repository}/{source.image}")
    return await registries.client.list_tags(repository, registries.keyring)


async def print_tags(
    access: Access, source: ImageSource, node: tuple[str | None, str | None, str | None], output: str
) -> int:
    """Prints the tags; with a kernel, also each tag's digest and size.

    Args:
        access: the options for registries.
        source: the repository; its version may be empty.
        node: kernel, system and architecture; None for those that were not given.
        output: table or json.

    Returns:
        The exit code: 1 if there are none.
    """
    kernel, system, architecture = node
    nodes = pool_of(kernel, system, architecture) if kernel and system else None
    async with connect_registries(access) as registries:
        try:
            tags = await tags_of(registries, source)
        except RegistryError as error:
            raise CommandError(f"error: {error.outcome.value}: {error}") from error
        if nodes is None:
            return _print_names(source, _filter_tags(tags, source.version, system), output)
        found = matching_tags(tags, source.version, nodes)[:IMAGES_LISTED]
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


def _print_names(source: ImageSource, found: list[str], output: str) -> int:
    if output == "json":
        say_json({"Repository": f"{source.repository}/{source.image}", "Tags": found})
    elif found:
        say(*found)
    return 0 if found else 1


def _print_images(source: ImageSource, nodes: PoolKey, found: dict[str, Resolution], output: str) -> int:
    name = f"{source.repository}/{source.image}"
    if output == "json":
        say_json({"repository": name, "pool": nodes.text, "tags": list(_rows(found))})
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
