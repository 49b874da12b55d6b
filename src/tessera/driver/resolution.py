"""Image queries and their answers: values and the :class:`Resolver` protocol, no I/O.

There are four kinds of failures, since each needs another remedy: the image is missing (build it), the registry
requires other credentials (an administrator grants them), the registry is unreachable (wait, and use its last answer),
or the image exists only for another architecture.
"""

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
