"""Images of drivers: what is looked up, the names that an image may have, and the answers. No I/O.

A query gives candidate references in sequence.

NVIDIA's operator tries only one name. The operating system's part of that name has changed over its releases and
differs between publishers. So Tessera tries several, best first, and the answer says which one matched:

* precompiled: ``<version>-<kernel>-<OS>``, for a branch ``<first number of the version>-<kernel>-<OS>``;
* builder: ``<version>-<OS>``;
* verbatim, or repository and version left out: the reference unchanged;
* a version that is a digest (``sha256:…``): that digest, nothing appended.

The kernel is never shortened: it is the output of ``uname -r``, with architecture and page size if it has them, and
with ``_`` for characters that a tag cannot have (``+64k`` is ``_64k``). So a name in another OS form never has wrong
modules.

A :class:`Resolver` knows whether an image exists. There are four kinds of failures, since each needs another remedy:
the image is missing (build it), the registry requires other credentials (an administrator grants them), the registry is
unreachable (wait, and use its last answer), or the image exists only for another architecture.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from enum import Enum
from typing import Protocol

import msgspec

from tessera.driver.driver_sets import PoolKey
from tessera.gpu_operator.driver_policy import ImageSource


class Outcome(Enum):
    """Result of a lookup in a registry."""

    FOUND = "found"
    NOT_FOUND = "not found"
    UNAUTHORIZED = "unauthorized"
    UNREACHABLE = "unreachable"
    WRONG_ARCHITECTURE = "wrong architecture"


class ImageKind(Enum):
    """The kinds of images to look up."""

    #: Kernel modules for one kernel, for exactly the version.
    PRECOMPILED = "precompiled"
    #: Kernel modules for one kernel, for the version's branch (``525`` for ``525.125.06``).
    PRECOMPILED_BRANCH = "precompiled-branch"
    #: Sources that are compiled on the node.
    BUILDER = "builder"
    #: A whole reference, nothing appended: toolkit, driver manager.
    VERBATIM = "verbatim"


class ImageQuery(msgspec.Struct, frozen=True, kw_only=True):
    """The image to look up: the first of the candidate tags that the registry has for the architecture.

    Attributes:
        source: the repository and version.
        pool: the nodes' pool.
        kind: the kind of tags to try.
    """

    source: ImageSource
    pool: PoolKey
    kind: ImageKind


class TriedReference(msgspec.Struct, frozen=True, kw_only=True):
    """One candidate reference and its outcome; ``text`` is a sentence about it."""

    reference: str
    outcome: Outcome
    text: str


class Resolution(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to a query.

    Attributes:
        outcome: FOUND, or the outcome of the decisive candidate: unreachable and unauthorized before wrong
            architecture before not found, since those say least about what the registry has.
        reference: ``repository/image:tag`` of the image; empty if none was found.
        digest: ``sha256:…`` of its manifest for the architecture.
        tag: its tag.
        tried: all candidates that were looked up, in sequence.
        stale: the registry does not answer now, and this is its last answer.
        checked: time of the answer, seconds since 1970.
        size_bytes: compressed size of its layers, 0 if unknown.
    """

    outcome: Outcome
    reference: str = ""
    digest: str = ""
    tag: str = ""
    tried: tuple[TriedReference, ...] = ()
    stale: bool = False
    checked: float = 0.0
    size_bytes: int = 0

    @property
    def pinned(self) -> str:
        """``repository/image@sha256:…``; empty if nothing was found."""
        if not self.digest:
            return ""
        folder, slash, name = self.reference.partition("@")[0].rpartition("/")
        return f"{folder}{slash}{name.partition(':')[0]}@{self.digest}"


class Resolver(Protocol):
    """Looks images up. It may answer from memory, and it never raises."""

    async def resolve(self, query: ImageQuery, *, fresh: bool = False) -> Resolution:
        """The answer; ``fresh`` asks the registry even if an answer is remembered."""
        ...


#: For these, NVIDIA's operator uses the major part of the version since v26.7.0, and used all of it before.
_MAJOR_ONLY = ("rhel", "rocky", "ol")

#: The RHEL version in each OpenShift release. Red Hat, RHEL versions utilized by RHEL CoreOS and OCP; NVIDIA's notes
#: on driver image tags since OCP 4.19, whose os-release ID is rhel, not rhcos.
_OPENSHIFT: Mapping[str, str] = {
    "4.12": "8.6",
    "4.13": "9.2",
    "4.14": "9.2",
    "4.15": "9.2",
    "4.16": "9.4",
    "4.17": "9.4",
    "4.18": "9.4",
    "4.19": "9.6",
    "4.20": "9.6",
    "4.21": "9.6",
    "4.22": "9.8",
}

#: Garden Linux publishes images for all its releases under one suffix.
_PINNED: Mapping[str, str] = {"gardenlinux": "gardenlinux0"}

_NOT_IN_TAGS = re.compile(r"[^A-Za-z0-9_.-]")
_BRANCH = re.compile(r"v?(\d+)(?![0-9A-Za-z])")
#: ``el9_2`` of ``5.14.0-284.54.1.el9_2.aarch64``.
_RHEL_KERNEL = re.compile(r"\.el(\d+)_(\d+)")
_OLD_OSTREE = re.compile(r"4(\d\d?)\.\d+\.")


class SourceError(ValueError):
    """An image is described incompletely; the text names the missing parts."""


class Candidate(msgspec.Struct, frozen=True, kw_only=True):
    """One name to look up.

    Attributes:
        reference: ``repository/image:tag`` or ``repository/image@sha256:…``.
        tag: the tag; empty for a digest and for a verbatim reference.
    """

    reference: str
    tag: str = ""


def candidates(query: ImageQuery) -> tuple[Candidate, ...]:
    """The names that an image may have, best first; empty if there can be none (a digest has no branch).

    Raises:
        SourceError: only some of image, repository and version are given.
    """
    source, kind = query.source, query.kind
    if source.verbatim:
        return () if kind is ImageKind.PRECOMPILED_BRANCH else (_as_it_is(source),)
    name = repository_of(source)
    if source.version.startswith("sha256:"):
        return () if kind is ImageKind.PRECOMPILED_BRANCH else (Candidate(reference=f"{name}@{source.version}"),)
    if kind is ImageKind.VERBATIM:
        return (Candidate(reference=f"{name}:{source.version}", tag=source.version),)
    return tuple(Candidate(reference=f"{name}:{tag}", tag=tag) for tag in tags(source.version, query.pool, kind))


def repository_of(source: ImageSource) -> str:
    """``repository/image`` of a source that is not verbatim.

    Raises:
        SourceError: a part of it is missing.
    """
    parts = {"repository": source.repository, "image": source.image, "version": source.version}
    missing = [name for name, value in parts.items() if not value]
    if missing:
        given = ", ".join(f"{name} {value!r}" for name, value in parts.items() if value) or "nothing"
        raise SourceError(
            f"driver image with {given}: {' and '.join(missing)} must be given too; "
            "only an image alone is taken as a whole reference"
        )
    return f"{source.repository.rstrip('/')}/{source.image}"


def tags(version: str, pool: PoolKey, kind: ImageKind) -> tuple[str, ...]:
    """The tags of one kind for a version, best first.

    A version that itself ends with the pool's operating system or names it (``510.47.03-fedora35-…``) is tried with
    the suffix doubled, as NVIDIA's operator asks for it, and then as it is.
    """
    if kind is ImageKind.PRECOMPILED_BRANCH:
        number = branch(version)
        return () if number is None else tuple(_precompiled_tags(number, pool))
    if kind is ImageKind.PRECOMPILED:
        return tuple(_precompiled_tags(version, pool))
    if kind is ImageKind.BUILDER:
        named = tuple(f"{version}-{form}" for form in os_forms(pool, precompiled=False))
        return (*named, version) if names_system(version, pool) else named
    return (version,)


def branch(version: str) -> str | None:
    """The driver branch: the first number of a version, ``525`` of ``525.125.06``; None if it begins with no number."""
    found = _BRANCH.match(version)
    return found[1] if found else None


def names_system(version: str, pool: PoolKey) -> bool:
    """True if the version itself names the pool's operating system."""
    parts = version.split("-")
    return any(form in parts[1:] for form in os_forms(pool, precompiled=False))


def kernel_form(kernel: str) -> str:
    """A kernel's name in tags and labels: ``+64k`` becomes ``_64k``."""
    return _NOT_IN_TAGS.sub("_", kernel)


def os_forms(pool: PoolKey, *, precompiled: bool) -> tuple[str, ...]:
    """The spellings of the pool's operating system in tags, best first.

    Args:
        pool: the nodes' pool.
        precompiled: the tag also has the kernel, so names of other systems with exactly the same kernel count too.
    """
    return tuple(dict.fromkeys(_forms(pool, precompiled=precompiled)))


def openshift_release(ostree: str) -> str:
    """``4.15`` of RHCOS's ``415.92.202402…``; empty since 4.19, when its version became that of RHEL, ``9.6.…``."""
    found = _OLD_OSTREE.match(ostree)
    return f"4.{int(found[1])}" if found else ""


def list_mirror_sources(source: ImageSource, mirrors: Sequence[str]) -> tuple[ImageSource, ...]:
    """The same image in each of the mirrors, which are repositories, ``registry.local/nvidia``.

    An image that is a whole reference is looked up under the last part of its name: ``nvcr.io/nvidia/driver:525`` is
    ``registry.local/nvidia/driver:525`` in a mirror.
    """
    if source.verbatim:
        last = source.image.rpartition("/")[2]
        return tuple(msgspec.structs.replace(source, image=f"{each.rstrip('/')}/{last}") for each in mirrors if last)
    return tuple(msgspec.structs.replace(source, repository=each) for each in mirrors)


def _as_it_is(source: ImageSource) -> Candidate:
    if not source.image:
        raise SourceError(
            "driver image: image, repository and version are all empty; give all three, or an image alone"
        )
    return Candidate(reference=source.image)


def _precompiled_tags(version: str, pool: PoolKey) -> Iterator[str]:
    kernel = kernel_form(pool.kernel)
    for form in os_forms(pool, precompiled=True):
        yield f"{version}-{kernel}-{form}"


def _forms(pool: PoolKey, *, precompiled: bool) -> Iterator[str]:
    if pool.os_id in _PINNED:
        yield _PINNED[pool.os_id]
    yield from _release_names(pool.os_id, pool.os_version)
    core = bool(pool.ostree)
    if pool.os_id == "rhcos":
        found = _RHEL_KERNEL.search(pool.kernel)
        rhel = f"{found[1]}.{found[2]}" if found else _OPENSHIFT.get(pool.os_version, "")
        if rhel:
            yield from _release_names("rhel", rhel)
    elif pool.os_id == "rhel" and (precompiled or core):
        yield from (f"rhcos{release}" for release in _openshift(pool))


def _release_names(os_id: str, version: str) -> Iterator[str]:
    yield f"{os_id}{version}"
    if os_id in _MAJOR_ONLY:
        yield f"{os_id}{version.partition('.')[0]}"


def _openshift(pool: PoolKey) -> tuple[str, ...]:
    """OpenShift releases that the pool may have: the one in its image, else those of its RHEL, newest first."""
    old = openshift_release(pool.ostree)
    if old:
        return (old,)
    return tuple(release for release, rhel in reversed(tuple(_OPENSHIFT.items())) if rhel == pool.os_version)
