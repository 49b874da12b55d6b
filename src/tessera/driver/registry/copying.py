"""Copies images between registries: plans the copies, compares with the target registry, and runs skopeo.

Rules:

1. An image keeps its tag, since nodes look it up by that name. An image found under the version alone, without the
   operating system's suffix, gets the name that NVIDIA's operator asks for, suffix included.
2. The source is named by digest, so the copy is the image that was looked at even if its tag moves.
3. If nodes of one architecture need a tag, only that architecture's image is copied. If nodes of several do, or the
   target has the tag for other architectures, the whole index is copied.
4. What the target has already stays. An image without an index is not copied over a tag that nodes of another
   architecture use.
"""

import asyncio
import os
import re
import shlex
import shutil
from collections.abc import Iterable, Mapping, Sequence
from enum import Enum

import msgspec

from tessera.api.image_reference import Reference, parse, parse_repository
from tessera.driver.images import ImageQuery, candidates, names_system
from tessera.driver.registry.client import RegistryClient, RegistryImage
from tessera.driver.registry.credentials import Keyring
from tessera.driver.registry.wire import AccessRefused, ImageNotFound, WrongArchitecture

#: Most characters: skopeo's message about a failed copy. Its last line fits.
COPY_WORDS = 500


class NeededImage(msgspec.Struct, frozen=True, kw_only=True):
    """An image that nodes need, as the registry has it.

    Attributes:
        query: the lookup that found it.
        reference: name under which it was found, ``repository/image:tag``.
        found: the image in the registry.
    """

    query: ImageQuery
    reference: str
    found: RegistryImage


class ImageCopy(msgspec.Struct, frozen=True, kw_only=True):
    """One image to copy.

    Attributes:
        source: its reference, with the tag under which it was found.
        target: its reference in the other registry.
        digest: digest to copy: of the image for an architecture, or of the whole index.
        top: digest of the object that the tag names at the source.
        architectures: architectures of the nodes that need it.
        whole: copy all platforms of the index.
        size_bytes: compressed size of the image for one architecture.
    """

    source: Reference
    target: Reference
    digest: str
    top: str
    architectures: tuple[str, ...]
    whole: bool
    size_bytes: int


def copy_target(needed: NeededImage, repository: str) -> Reference:
    """The name that an image gets in another repository.

    Raises:
        ReferenceFormatError: the repository's name is invalid.
    """
    source = parse(needed.reference)
    target = parse_repository(f"{repository.rstrip('/')}/{source.path.rpartition('/')[2]}")
    if source.digest:
        return target.at(source.digest)
    return msgspec.structs.replace(target, tag=_tag(needed, source))


def plan_copies(needed: Iterable[NeededImage], repository: str, *, whole: bool = False) -> list[ImageCopy]:
    """The copies that bring images into another repository.

    Args:
        needed: the images.
        repository: the repository to copy to: ``registry.local/nvidia``.
        whole: copy all platforms of each.

    Raises:
        ReferenceFormatError: the repository's name is invalid.
    """
    grouped: dict[tuple[str, str], list[NeededImage]] = {}
    for each in needed:
        grouped.setdefault((each.found.top, copy_target(each, repository).text), []).append(each)
    return [_copy(group, repository, whole=whole) for group in grouped.values()]


class TargetState(Enum):
    """The image that the other registry has under a copy's name."""

    SAME = "the same"
    NOTHING = "nothing, or it does not say"
    OTHER = "another image"
    OTHER_ARCHITECTURES = "images for other architectures"


def required_copy(copy: ImageCopy, standing: TargetState) -> ImageCopy | None:
    """The copy that is still required, given the target's state; None if none is.

    Raises:
        ValueError: the copy would remove the image of nodes of another architecture from the tag.
    """
    if standing is TargetState.SAME:
        return None
    if standing is not TargetState.OTHER_ARCHITECTURES or copy.whole:
        return copy
    if copy.top == copy.digest:
        raise ValueError(
            f"{copy.target.text} is there for other architectures, and {copy.source.text} for "
            f"{', '.join(copy.architectures)} alone: copying would take it away from them; "
            "push one index for all architectures there"
        )
    return msgspec.structs.replace(copy, digest=copy.top, whole=True)


class Skopeo(msgspec.Struct, frozen=True, kw_only=True):
    """Options for running skopeo.

    Attributes:
        authfile: file with credentials; empty for skopeo's own.
        authority: certificates to trust in addition to the system's; empty for none.
        plain: hosts to reach over plain HTTP; ``*`` is all.
    """

    authfile: str = ""
    authority: str = ""
    plain: tuple[str, ...] = ()

    def arguments(self, copy: ImageCopy) -> list[str]:
        """The command for one copy, without secrets."""
        options = ["--retry-times=3", "--preserve-digests"]
        if copy.whole:
            options.append("--all")
        if self.authfile:
            options.append(f"--authfile={self.authfile}")
        for side, reference in (("src", copy.source), ("dest", copy.target)):
            if reference.registry in self.plain or "*" in self.plain:
                options.append(f"--{side}-tls-verify=false")
        source = copy.source.at(copy.digest)
        return ["skopeo", "copy", *options, f"docker://{source.text}", f"docker://{copy.target.text}"]

    @property
    def environment(self) -> Mapping[str, str]:
        """Variables that the command needs: programs in Go trust this file in addition to the system's folders."""
        return {"SSL_CERT_FILE": self.authority} if self.authority else {}

    def command_line(self, copy: ImageCopy) -> str:
        """The command as a user can type it."""
        variables = [f"{name}={shlex.quote(value)}" for name, value in self.environment.items()]
        return " ".join([*variables, shlex.join(self.arguments(copy))])


def _copy(group: Sequence[NeededImage], repository: str, *, whole: bool) -> ImageCopy:
    first = group[0]
    source = parse(first.reference)
    architectures = tuple(sorted({each.query.pool.architecture for each in group}))
    # An image without an index is complete by itself.
    index = first.found.top != first.found.digest
    several = index and (whole or len(architectures) > 1 or bool(source.digest))
    return ImageCopy(
        source=source,
        target=copy_target(first, repository),
        digest=first.found.top if several else first.found.digest,
        top=first.found.top,
        architectures=architectures,
        whole=several,
        size_bytes=first.found.size_bytes,
    )


def _tag(needed: NeededImage, source: Reference) -> str:
    query = needed.query
    version = query.source.version
    if source.tag == version and names_system(version, query.pool):
        return candidates(query)[0].tag
    return source.tag


class CopyError(RuntimeError):
    """An image was not copied; the text says why."""


async def read_target_state(client: RegistryClient, copy: ImageCopy, keyring: Keyring) -> TargetState:
    """Reads the state of the other registry under a copy's name.

    Raises:
        RegistryUnreachable: the registry gave no usable answer.
    """
    try:
        if copy.whole:
            digest = await client.find_digest(copy.target, keyring)
            return TargetState.SAME if digest == copy.digest else TargetState.OTHER
        found = await client.find_image(copy.target, copy.architectures[0], keyring)
    except (ImageNotFound, AccessRefused):
        # Several registries refuse to show a repository that does not exist before the first push.
        return TargetState.NOTHING
    except WrongArchitecture:
        return TargetState.OTHER_ARCHITECTURES
    if found.digest == copy.digest:
        return TargetState.SAME
    return TargetState.OTHER_ARCHITECTURES if len(found.platforms) > 1 else TargetState.OTHER


def skopeo_path() -> str:
    """The path of skopeo.

    Raises:
        CopyError: skopeo is not installed.
    """
    found = shutil.which("skopeo")
    if found is None:
        raise CopyError("skopeo is not in PATH: install the package skopeo; --dry-run shows the commands without it")
    return found


async def run_skopeo(skopeo: Skopeo, copy: ImageCopy) -> None:
    """Copies one image; skopeo ends if the caller is cancelled.

    Raises:
        CopyError: skopeo is missing, or it failed.
    """
    program, *arguments = skopeo_path(), *skopeo.arguments(copy)[1:]
    process = await asyncio.create_subprocess_exec(
        program,
        *arguments,
        env={**os.environ, **skopeo.environment},
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        _, errors = await process.communicate()
    except asyncio.CancelledError:
        process.kill()
        await process.wait()
        raise
    if process.returncode:
        raise CopyError(f"skopeo has not copied {copy.source.text}: {_last_words(errors.decode(errors='replace'))}")


def _last_words(errors: str) -> str:
    """The message in the last line of skopeo's log."""
    line = errors.strip().rpartition("\n")[2]
    message = re.search(r'msg="(.*)"$', line)
    return (message[1].replace('\\"', '"') if message else line)[-COPY_WORDS:] or "it said nothing"
