"""Names of images: ``registry/path:tag@digest``, with Docker's defaults.

Names come from objects that others write, so every part is checked before it becomes part of a URL. The grammar is that
of the OCI distribution specification (``<name>``, ``<reference>``), and Docker's for the registry.
"""

import re

import msgspec

from tessera.limits import ECHOED, Limit

IMAGE_REFERENCE = Limit(
    512,
    "characters",
    "the name of an image, with registry, tag and digest",
    "255 of a name, 128 of a tag and a digest fit",
)

#: Docker Hub: the name that people write, and the host of its API.
DOCKER_HUB = "docker.io"
_HUB_HOST = "registry-1.docker.io"
HUB_ALIASES = ("docker.io", "index.docker.io", "registry-1.docker.io", "registry.hub.docker.com")


_HOST = re.compile(r"(?:\[[0-9a-fA-F:]{2,45}\]|[A-Za-z0-9](?:[A-Za-z0-9.-]{0,251}[A-Za-z0-9])?)(?::[0-9]{1,5})?")
_PATH = re.compile(r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*(?:/[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*)*")
TAG = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}")
DIGEST = re.compile(r"sha256:[0-9a-f]{64}")


class ReferenceFormatError(ValueError):
    """A text is not the name of an image; the error's text names the part and the rule."""


class Reference(msgspec.Struct, frozen=True, kw_only=True):
    """An image; a whole repository if it has neither tag nor digest.

    Attributes:
        registry: host, with the port if the text has one: ``nvcr.io``, ``10.0.0.1:5000``.
        path: the repository in the registry: ``nvidia/driver``.
        tag: empty if there is none.
        digest: ``sha256:…`` of its manifest; it wins over the tag.
    """

    registry: str
    path: str
    tag: str = ""
    digest: str = ""

    @property
    def repository(self) -> str:
        """``registry/path``."""
        return f"{self.registry}/{self.path}"

    @property
    def text(self) -> str:
        """The reference as people write it."""
        tag = f":{self.tag}" if self.tag else ""
        return f"{self.repository}{tag}{f'@{self.digest}' if self.digest else ''}"

    @property
    def host(self) -> str:
        """The host that serves the registry's API, with the port; Docker Hub's API has another host than its name."""
        return _HUB_HOST if self.registry == DOCKER_HUB else self.registry

    @property
    def identifier(self) -> str:
        """The digest if there is one, else the tag; for requests."""
        return self.digest or self.tag

    def at(self, digest: str) -> "Reference":
        """The manifest with this digest in the same repository."""
        return Reference(registry=self.registry, path=self.path, digest=digest)


def parse(text: str) -> Reference:
    """Parses a reference; the tag is ``latest`` if the text has neither tag nor digest.

    Raises:
        ReferenceFormatError: the text is not a reference.
    """
    found = parse_repository(text)
    return found if found.identifier else msgspec.structs.replace(found, tag="latest")


def parse_repository(text: str) -> Reference:
    """Like :func:`parse`, but a missing tag stays empty.

    Raises:
        ReferenceFormatError: the text is not a reference.
    """
    if len(text) > IMAGE_REFERENCE:
        raise ReferenceFormatError(
            f"image {text[:ECHOED]!r}…: has {len(text):,} characters; {IMAGE_REFERENCE} are allowed"
        )
    rest = text.removeprefix("docker://")
    rest, _, digest = rest.partition("@")
    first, slash, after = rest.partition("/")
    if slash and ("." in first or ":" in first or first == "localhost" or first != first.lower()):
        registry, rest = first, after
    else:
        registry = DOCKER_HUB
    path, _, tag = rest.partition(":")
    if registry.lower() in HUB_ALIASES:
        registry = DOCKER_HUB
        path = path if "/" in path or not path else f"library/{path}"
    _check(text, "registry", registry, _HOST, "a host name or address, with a port after a colon")
    _check(text, "repository", path, _PATH, "lower-case letters and digits, with '/', '.', '_' and '-' between them")
    if tag or rest.endswith(":"):
        _check(text, "tag", tag, TAG, "at most 128 letters, digits, '.', '_' and '-', not beginning with '.' or '-'")
    if digest or text.endswith("@"):
        _check(text, "digest", digest, DIGEST, "sha256: and 64 hexadecimal digits in lower case")
    return Reference(registry=registry.lower(), path=path, tag=tag, digest=digest)


def _check(whole: str, part: str, value: str, rule: re.Pattern[str], words: str) -> None:
    if not rule.fullmatch(value) or (part == "repository" and len(value) > 255):
        raise ReferenceFormatError(f"image {whole!r}: its {part} {value!r} is not {words}")
