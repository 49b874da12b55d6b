"""Reads what registries say about an image: manifests, indexes of them by platform, and sizes. Pure.

Formats: OCI image index and manifest, and Docker's version 2, schema 2, from which OCI's come. Others write these
documents, so each is decoded into the structs below or refused. A document has at most 4 MiB.
"""

import hashlib

import msgspec

from tessera.driver.registry.wire import RegistryUnreachable, WrongArchitecture

OCI_INDEX = "application/vnd.oci.image.index.v1+json"
OCI_MANIFEST = "application/vnd.oci.image.manifest.v1+json"
DOCKER_LIST = "application/vnd.docker.distribution.manifest.list.v2+json"
DOCKER_MANIFEST = "application/vnd.docker.distribution.manifest.v2+json"

#: Accepted media types; a registry that has an image in several sends the first.
ACCEPT = f"{OCI_INDEX}, {DOCKER_LIST}, {OCI_MANIFEST}, {DOCKER_MANIFEST}"

#: Variants of an architecture that every node of it runs; Tessera cannot know if a node runs others.
_COMMON_VARIANTS = ("", "v8", "v1")


class Platform(msgspec.Struct, frozen=True):
    """The platform that an image runs on, in Go's words.

    Attributes:
        architecture: amd64, arm64.
        os: linux.
        variant: variant of the architecture: v8; empty if there is only one.
    """

    architecture: str = ""
    os: str = "linux"
    variant: str = ""

    @property
    def text(self) -> str:
        """``linux/arm64/v8``."""
        return "/".join(each for each in (self.os, self.architecture, self.variant) if each)


class Descriptor(msgspec.Struct, frozen=True):
    """A reference to content: its digest and size in bytes; in an index also its platform."""

    digest: str = ""
    size: int = 0
    platform: Platform | None = None


class _Document(msgspec.Struct, frozen=True):
    """The fields that Tessera reads of all four formats."""

    manifests: list[Descriptor] | None = None
    config: Descriptor | None = None
    layers: list[Descriptor] | None = None


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """One document of a registry, decoded.

    Attributes:
        digest: digest of its bytes.
        entries: entries of an index; None for an image.
        config: descriptor of an image's configuration.
        size_bytes: an image's layers and configuration, as transferred.
    """

    digest: str
    entries: tuple[Descriptor, ...] | None = None
    config: Descriptor = Descriptor()
    size_bytes: int = 0


def read_manifest(body: bytes, *, where: str, wanted: str = "") -> Manifest:
    """Decodes a manifest or an index.

    Args:
        body: the registry's bytes; the digest is computed over them.
        where: the image's name for error texts.
        wanted: the requested digest; empty if the request named a tag.

    Raises:
        RegistryUnreachable: the document is neither, or does not have the requested digest.
    """
    digest = "sha256:" + hashlib.sha256(body).hexdigest()
    if wanted and wanted != digest:
        raise RegistryUnreachable(
            f"{where}: the registry gave content with digest {digest}, which is not the requested one"
        )
    try:
        document = msgspec.json.decode(body, type=_Document)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise RegistryUnreachable(f"{where}: the registry's answer is no manifest ({error})") from error
    if document.manifests is not None:
        return Manifest(digest=digest, entries=tuple(document.manifests))
    if document.config is None or document.layers is None:
        raise RegistryUnreachable(
            f"{where}: the registry's answer is neither an image nor an index of images in a format known here "
            "(OCI, or Docker version 2, schema 2); push the image again with a current tool"
        )
    # A negative size would make the sum wrong.
    sizes = [max(0, each.size) for each in (document.config, *document.layers)]
    return Manifest(digest=digest, config=document.config, size_bytes=sum(sizes))


def choose_platform(entries: tuple[Descriptor, ...], architecture: str, *, where: str) -> Descriptor:
    """The entry of an index for Linux on an architecture; one without a special variant is preferred.

    Raises:
        WrongArchitecture: there is none; the text names the platforms that the index has.
    """
    fitting = [each for each in entries if each.platform and _fits(each.platform, architecture)]
    if not fitting:
        raise WrongArchitecture(f"{where} is there for {_list_platforms(entries)}, not for linux/{architecture}")
    return min(fitting, key=lambda each: each.platform is None or each.platform.variant not in _COMMON_VARIANTS)


def check_platform(platform: Platform, architecture: str, *, where: str) -> None:
    """Checks that an image without an index fits an architecture.

    Raises:
        WrongArchitecture: it does not fit.
    """
    if not _fits(platform, architecture):
        raise WrongArchitecture(f"{where} is there for {platform.text}, not for linux/{architecture}")


def _fits(platform: Platform, architecture: str) -> bool:
    return platform.os == "linux" and platform.architecture == architecture


def _list_platforms(entries: tuple[Descriptor, ...]) -> str:
    # Indexes list attestations as images for unknown/unknown.
    names = [each.platform.text for each in entries if each.platform and each.platform.os != "unknown"]
    shown = sorted(set(names))[:8]
    return ", ".join(shown) or "no platform"
