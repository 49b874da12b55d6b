"""Which images are copied into another registry, under which names, and the skopeo commands that do it. Pure.

Rules:

1. An image keeps its tag, since that is a name under which it is looked for. One that was found under the version
   alone, without the operating system's suffix, gets the name that NVIDIA's operator asks for, suffix included.
2. What is copied is named by digest, so it is what was looked at, whatever happens to the tag meanwhile.
3. Where nodes of one architecture need a tag, its image alone is copied; where nodes of several do, or the other
   registry already has the tag for other architectures, all of the index.
4. What the other registry has already is left alone. An image that would take a tag away from nodes of another
   architecture, since it stands alone, is not copied.
"""

import shlex
from collections.abc import Iterable, Mapping, Sequence
from enum import Enum

import msgspec

from tessera.driver.image_tags import candidates, names_system
from tessera.driver.registry.client import Found
from tessera.driver.registry.reference import Reference, parse, parse_repository
from tessera.driver.resolution import ImageQuery


class Needed(msgspec.Struct, frozen=True, kw_only=True):
    """An image that nodes need, as it was found.

    Attributes:
        query: what was asked.
        reference: under which name it was found, ``repository/image:tag``.
        found: what is there.
    """

    query: ImageQuery
    reference: str
    found: Found


class Copy(msgspec.Struct, frozen=True, kw_only=True):
    """One image to be copied.

    Attributes:
        source: where it is, with the tag under which it was found.
        target: where it shall be.
        digest: what is copied: of the image for an architecture, or of the whole index.
        top: of what the tag names at the source.
        architectures: for which nodes.
        whole: all platforms of the index.
        size_bytes: of the image for one architecture, compressed.
    """

    source: Reference
    target: Reference
    digest: str
    top: str
    architectures: tuple[str, ...]
    whole: bool
    size_bytes: int


def target_of(needed: Needed, repository: str) -> Reference:
    """The name under which an image shall be in another repository.

    Raises:
        ReferenceFormatError: the repository has no possible name.
    """
    source = parse(needed.reference)
    there = parse_repository(f"{repository.rstrip('/')}/{source.path.rpartition('/')[2]}")
    if source.digest:
        return there.at(source.digest)
    return msgspec.structs.replace(there, tag=_tag(needed, source))


def plan(needed: Iterable[Needed], repository: str, *, whole: bool = False) -> list[Copy]:
    """The copies that bring images into another repository.

    Args:
        needed: the images.
        repository: where to: ``registry.local/nvidia``.
        whole: copy all platforms of each.

    Raises:
        ReferenceFormatError: the repository has no possible name.
    """
    grouped: dict[tuple[str, str], list[Needed]] = {}
    for each in needed:
        grouped.setdefault((each.found.top, target_of(each, repository).text), []).append(each)
    return [_copy(group, repository, whole=whole) for group in grouped.values()]


class Standing(Enum):
    """What the other registry has under a copy's name."""

    SAME = "the same"
    NOTHING = "nothing, or it does not say"
    OTHER = "another image"
    OTHER_ARCHITECTURES = "images for other architectures"


def due(copy: Copy, standing: Standing) -> Copy | None:
    """What is to be copied, given what is there; None if nothing is.

    Raises:
        ValueError: copying would take the tag away from nodes of another architecture.
    """
    if standing is Standing.SAME:
        return None
    if standing is not Standing.OTHER_ARCHITECTURES or copy.whole:
        return copy
    if copy.top == copy.digest:
        raise ValueError(
            f"{copy.target.text} is there for other architectures, and {copy.source.text} for "
            f"{', '.join(copy.architectures)} alone: copying would take it away from them; "
            "push one index for all architectures there"
        )
    return msgspec.structs.replace(copy, digest=copy.top, whole=True)


class Skopeo(msgspec.Struct, frozen=True, kw_only=True):
    """How skopeo is run.

    Attributes:
        authfile: credentials; empty for skopeo's own.
        authority: certificates that are trusted beside the system's; empty for none.
        plain: hosts that are asked over plain HTTP; ``*`` is all.
    """

    authfile: str = ""
    authority: str = ""
    plain: tuple[str, ...] = ()

    def arguments(self, copy: Copy) -> list[str]:
        """The command for one copy. Nothing secret is in it."""
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
        """Variables that the command needs: Go's programs trust what this file has beside the system's folders."""
        return {"SSL_CERT_FILE": self.authority} if self.authority else {}

    def shown(self, copy: Copy) -> str:
        """The command as it can be typed."""
        variables = [f"{name}={shlex.quote(value)}" for name, value in self.environment.items()]
        return " ".join([*variables, shlex.join(self.arguments(copy))])


def _copy(group: Sequence[Needed], repository: str, *, whole: bool) -> Copy:
    first = group[0]
    source = parse(first.reference)
    architectures = tuple(sorted({each.query.pool.architecture for each in group}))
    # An image that stands alone is all there is of it.
    index = first.found.top != first.found.digest
    several = index and (whole or len(architectures) > 1 or bool(source.digest))
    return Copy(
        source=source,
        target=target_of(first, repository),
        digest=first.found.top if several else first.found.digest,
        top=first.found.top,
        architectures=architectures,
        whole=several,
        size_bytes=first.found.size_bytes,
    )


def _tag(needed: Needed, source: Reference) -> str:
    query = needed.query
    version = query.source.version
    if source.tag == version and names_system(version, query.pool):
        return candidates(query)[0].tag
    return source.tag
