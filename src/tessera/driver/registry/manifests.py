"""What registries say about an image: manifests, indexes of them by platform, and sizes. Pure.

Formats: OCI image index and manifest, and Docker's (version 2, schema 2), of which they came. What stands in them was
written by others: it is decoded into these structs or refused, and is at most 4 MiB.
"""

import hashlib

import msgspec

from tessera.driver.registry.errors import RegistryUnreachable, WrongArchitecture

OCI_INDEX = "application/vnd.oci.image.index.v1+json"
OCI_MANIFEST = "application/vnd.oci.image.manifest.v1+json"
DOCKER_LIST = "application/vnd.docker.distribution.manifest.list.v2+json"
DOCKER_MANIFEST = "application/vnd.docker.distribution.manifest.v2+json"

#: What is asked for; a registry that has both kinds of an image gives the first.
ACCEPT = f"{OCI_INDEX}, {DOCKER_LIST}, {OCI_MANIFEST}, {DOCKER_MANIFEST}"

#: Variants of an architecture that every node of it runs; others need what is not known of the node.
_COMMON_VARIANTS = ("", "v8", "v1")


class Platform(msgspec.Struct, frozen=True):
    """Where an image runs, in Go's words.

    Attributes:
        architecture: amd64, arm64.
        os: linux.
        variant: of the architecture: v8; empty if there is but one.
    """

    architecture: str = ""
    os: str = "linux"
    variant: str = ""

    @property
    def text(self) -> str:
        """``linux/arm64/v8``."""
        return "/".join(each for each in (self.os, self.architecture, self.variant) if each)


class Descriptor(msgspec.Struct, frozen=True):
    """A reference to content: its media type, digest and size in bytes, and in an index where it runs."""

    mediaType: str = ""  # noqa: N815 - the field's own name
    digest: str = ""
    size: int = 0
    platform: Platform | None = None


class _Document(msgspec.Struct, frozen=True):
    """The fields of all four formats that count here."""

    mediaType: str = ""  # noqa: N815 - the field's own name
    manifests: list[Descriptor] | None = None
    config: Descriptor | None = None
    layers: list[Descriptor] | None = None


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """One document of a registry, read.

    Attributes:
        digest: of its bytes.
        entries: of an index, what is in it; None for an image.
        config: of an image, where its configuration lies.
        size_bytes: of an image, its layers and configuration as they are transferred.
    """

    digest: str
    entries: tuple[Descriptor, ...] | None = None
    config: Descriptor = Descriptor()
    size_bytes: int = 0


def read_manifest(body: bytes, *, where: str, wanted: str = "") -> Manifest:
    """A manifest or an index.

    Args:
        body: as the registry gave it; the digest is of these bytes.
        where: for error texts.
        wanted: the digest that was asked for; empty if it was a tag.

    Raises:
        RegistryUnreachable: it is neither, or not what was asked for.
    """
    digest = "sha256:" + hashlib.sha256(body).hexdigest()
    if wanted and wanted != digest:
        raise RegistryUnreachable(
            f"{where}: the registry gave content with digest {digest}, which is not the one asked for"
        )
    try:
        document = msgspec.json.decode(body, type=_Document)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise RegistryUnreachable(f"{where}: what the registry gave is no manifest ({error})") from error
    if document.manifests is not None:
        return Manifest(digest=digest, entries=tuple(document.manifests))
    if document.config is None or document.layers is None:
        raise RegistryUnreachable(
            f"{where}: what the registry gave is neither an image nor an index of images in a format known here "
            "(OCI, or Docker version 2, schema 2); push the image again with a current tool"
        )
    # A size below zero would make the sum a lie; nobody has one.
    sizes = [max(0, each.size) for each in (document.config, *document.layers)]
    return Manifest(digest=digest, config=document.config, size_bytes=sum(sizes))


def choose_platform(entries: tuple[Descriptor, ...], architecture: str, *, where: str) -> Descriptor:
    """The image of an index that runs on Linux of an architecture: one without a special variant first.

    Raises:
        WrongArchitecture: there is none; the text names those that are there.
    """
    fitting = [each for each in entries if each.platform and _fits(each.platform, architecture)]
    if not fitting:
        raise WrongArchitecture(f"{where} is there for {_named(entries)}, not for linux/{architecture}")
    return min(fitting, key=lambda each: each.platform is None or each.platform.variant not in _COMMON_VARIANTS)


def check_platform(platform: Platform, architecture: str, *, where: str) -> None:
    """Whether an image that stands alone fits.

    Raises:
        WrongArchitecture: it does not.
    """
    if not _fits(platform, architecture):
        raise WrongArchitecture(f"{where} is there for {platform.text}, not for linux/{architecture}")


def _fits(platform: Platform, architecture: str) -> bool:
    return platform.os == "linux" and platform.architecture == architecture


def _named(entries: tuple[Descriptor, ...]) -> str:
    # Attestations stand in an index as images for unknown/unknown.
    names = [each.platform.text for each in entries if each.platform and each.platform.os != "unknown"]
    shown = sorted(set(names))[:8]
    return ", ".join(shown) or "no platform"
