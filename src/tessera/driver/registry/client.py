"""The part of the OCI distribution API that finds an image, its platforms and its size.

Requests: ``HEAD`` and ``GET /v2/<name>/manifests/<reference>``, ``GET /v2/<name>/blobs/<digest>`` for an image's
configuration, ``GET /v2/<name>/tags/list``. Every failure is one of :mod:`~tessera.driver.registry.wire`.

Hand-written: the clients oras 0.2.43 and python-dxf 12.1.1 have synchronous requests only, so each of a controller's
lookups would need a thread, and they cost 120 and 80 ms of CPU at import.

Functions without I/O read what registries say about an image: manifests, indexes of them by platform, and sizes.

Formats: OCI image index and manifest, and Docker's version 2, schema 2, from which OCI's come. Others write these
documents, so each is decoded into the structs below or refused. A document has at most 4 MiB.
"""

import hashlib
import re
from dataclasses import dataclass
from pathlib import Path

import msgspec
from yarl import URL

from tessera.api.image_reference import DIGEST, TAG, Reference
from tessera.clock import Clock
from tessera.driver.limits import REGISTRY_ANSWER, REPOSITORY_TAGS, TAG_PAGES
from tessera.driver.registry.credentials import ANONYMOUS, Keyring, Login
from tessera.driver.registry.tokens import TokenCache, choose_challenge, parse_challenges
from tessera.driver.registry.wire import (
    AccessRefused,
    ImageNotFound,
    RegistryAnswer,
    RegistryHttp,
    RegistryUnreachable,
    WrongArchitecture,
)
from tessera.limits import ECHOED

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


@dataclass(frozen=True, kw_only=True)
class RegistryOptions:
    """Options of the access to registries of driver images.

    Attributes:
        ca: PEM certificates of the authorities that are trusted beside the system's.
        plain_http: hosts (with port) that the controller asks without TLS.
    """

    ca: Path | None = None
    plain_http: tuple[str, ...] = ()


#: Tags to ask for in one request; Docker Hub and others give no more.
_PAGE = 1_000

#: Seconds that a header that worked is reused for a repository, if no token server set a lifetime.
_BASIC_LIFE = 600.0


class RegistryImage(msgspec.Struct, frozen=True, kw_only=True):
    """An image that a registry has.

    Attributes:
        top: digest of the object that the tag names: an index, or the image itself.
        digest: digest of the image for the architecture.
        size_bytes: compressed size, as transferred.
        platforms: all platforms of the index; one platform without an index.
    """

    top: str
    digest: str
    size_bytes: int
    platforms: tuple[Platform, ...]


class _TagList(msgspec.Struct):
    tags: list[str] | None = None


class RegistryClient:
    """Sends requests to registries.

    Args:
        wire: the HTTP client.
        clock: the time, for the end of tokens.
    """

    def __init__(self, wire: RegistryHttp, clock: Clock) -> None:
        self._wire = wire
        self._tokens = TokenCache(wire, clock)

    async def close(self) -> None:
        """Frees the connections."""
        await self._wire.close()

    async def find_image(self, reference: Reference, architecture: str, keyring: Keyring) -> RegistryImage:
        """Finds the image that a reference names, for Linux on one architecture.

        Raises:
            ImageNotFound: the registry does not have it.
            AccessRefused: the registry requires other credentials.
            RegistryUnreachable: the registry gave no usable answer.
            WrongArchitecture: the registry has it for other architectures only.
        """
        login, where = keyring.login(reference), reference.text
        top = await self._manifest(reference, login)
        if top.entries is None:
            platform = await self._platform(reference, top, login)
            check_platform(platform, architecture, where=where)
            return RegistryImage(top=top.digest, digest=top.digest, size_bytes=top.size_bytes, platforms=(platform,))
        entry = choose_platform(top.entries, architecture, where=where)
        if not DIGEST.fullmatch(entry.digest):
            raise RegistryUnreachable(
                f"{where}: its index names an image by {entry.digest[:ECHOED]!r}, which is no sha256 digest"
            )
        image = await self._manifest(reference.at(entry.digest), login)
        platforms = tuple(each.platform for each in top.entries if each.platform and each.platform.os != "unknown")
        return RegistryImage(top=top.digest, digest=image.digest, size_bytes=image.size_bytes, platforms=platforms)

    async def find_digest(self, reference: Reference, keyring: Keyring) -> str:
        """The digest that a tag names now, without reading the manifest; empty if the registry does not say it.

        Raises:
            ImageNotFound: the registry does not have the tag.
            AccessRefused: the registry requires other credentials.
            RegistryUnreachable: the registry gave no usable answer.
        """
        path = f"/v2/{reference.path}/manifests/{reference.identifier}"
        answer = await self._get(reference, path, keyring.login(reference), method="HEAD", accept=ACCEPT)
        found = answer.header("docker-content-digest")
        return found if DIGEST.fullmatch(found) else ""

    async def list_tags(self, reference: Reference, keyring: Keyring) -> tuple[str, ...]:
        """All tags of a repository, in the registry's sequence.

        Raises:
            ImageNotFound: there is no such repository.
            AccessRefused: the registry requires other credentials.
            RegistryUnreachable: the registry gave no usable answer, or more than :data:`REPOSITORY_TAGS` tags.
        """
        login, found = keyring.login(reference), dict[str, None]()
        path = f"/v2/{reference.path}/tags/list?n={_PAGE}"
        for _ in range(TAG_PAGES):
            answer = await self._get(reference, path, login)
            found.update(dict.fromkeys(_tag_list(answer.body, reference.repository)))
            following = _next_page(answer)
            if not following:
                return tuple(found)
            if len(found) > REPOSITORY_TAGS:
                break
            path = _next_page_path(reference, answer.url, following)
        raise RegistryUnreachable(
            f"{reference.repository}: too many tags: {REPOSITORY_TAGS} in {TAG_PAGES} are allowed; remove old tags"
        )

    async def _manifest(self, reference: Reference, login: Login) -> Manifest:
        path = f"/v2/{reference.path}/manifests/{reference.identifier}"
        answer = await self._get(reference, path, login, accept=ACCEPT)
        return read_manifest(answer.body, where=reference.text, wanted=reference.digest)

    async def _platform(self, reference: Reference, image: Manifest, login: Login) -> Platform:
        """The platform of an image without an index, read from the image's configuration."""
        digest = image.config.digest
        if not DIGEST.fullmatch(digest):
            raise RegistryUnreachable(
                f"{reference.text}: its configuration is named {digest[:ECHOED]!r}, which is no sha256 digest"
            )
        answer = await self._get(reference, f"/v2/{reference.path}/blobs/{digest}", login)
        try:
            return msgspec.json.decode(answer.body, type=Platform)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise RegistryUnreachable(
                f"{reference.text}: its configuration does not say where it runs ({error})"
            ) from error

    async def _get(
        self, reference: Reference, path: str, login: Login, *, method: str = "GET", accept: str = "application/json"
    ) -> RegistryAnswer:
        """Sends one GET request, and sends it again with credentials after a 401."""
        url = f"{self._wire.trust.scheme(reference.host)}://{reference.host}{path}"
        header = self._tokens.cached_header(reference, login) or (f"Bearer {login.bearer}" if login.bearer else "")
        answer = await self._send(method, url, accept, header)
        if answer.status == 401:
            self._tokens.forget(reference, login)
            header = await self._authorization(reference, login, answer)
            if header:
                answer = await self._send(method, url, accept, header)
        return _check_status(answer, reference, login)

    async def _send(self, method: str, url: str, accept: str, authorization: str) -> RegistryAnswer:
        headers = {"accept": accept, "user-agent": "tessera"}
        if authorization:
            headers["authorization"] = authorization
        return await self._wire.send(method, url, headers=headers, largest=REGISTRY_ANSWER)

    async def _authorization(self, reference: Reference, login: Login, answer: RegistryAnswer) -> str:
        """The Authorization header that answers a 401; empty if there are no credentials to send.

        A server that answers after a redirect is not the registry, so it gets no credentials.
        """
        if URL(answer.url, encoded=True).authority != reference.host and login != ANONYMOUS:
            return ""
        challenge = choose_challenge(parse_challenges(answer.headers.get("www-authenticate", ())))
        if challenge is None:
            return ""
        if challenge.scheme == "bearer":
            return await self._tokens.fetch(reference, login, challenge)
        if login.basic:
            self._tokens.keep(reference, login, login.basic, _BASIC_LIFE)
        return login.basic


def _check_status(answer: RegistryAnswer, reference: Reference, login: Login) -> RegistryAnswer:
    """Returns a successful answer; raises the matching error for any other."""
    status = answer.status
    if status == 200:
        return answer
    if status == 404:
        raise ImageNotFound(f"{reference.registry} has no {reference.path}{_suffix(reference)} (404)")
    if status in (401, 403):
        raise AccessRefused(
            f"{reference.registry} does not let {reference.path} be read {login.text} ({status}); "
            "give a pull secret for it, or have the account allowed to pull"
        )
    if status == 429:
        raise RegistryUnreachable(
            f"{reference.registry} wants fewer requests (429)", after=_seconds(answer.header("retry-after"))
        )
    raise RegistryUnreachable(f"{reference.registry} answers {status} for {reference.path}{_suffix(reference)}")


def _suffix(reference: Reference) -> str:
    return f"@{reference.digest}" if reference.digest else f":{reference.tag}" if reference.tag else ""


def _seconds(text: str) -> float:
    return float(text) if text.isascii() and text.isdigit() and len(text) < 7 else 0.0


def _tag_list(body: bytes, where: str) -> list[str]:
    try:
        tags = msgspec.json.decode(body, type=_TagList).tags or []
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise RegistryUnreachable(f"{where}: the registry's answer is no list of tags ({error})") from error
    return [tag for tag in tags if TAG.fullmatch(tag)]


def _next_page(answer: RegistryAnswer) -> str:
    """The target of ``Link: <…>; rel="next"``; empty on the last page."""
    for header in answer.headers.get("link", ()):
        found = re.match(r'\s*<([^<>]{1,2048})>\s*;[^,]*\brel="?next\b', header)
        if found:
            return found[1]
    return ""


def _next_page_path(reference: Reference, url: str, following: str) -> str:
    """The next page's path. Only the registry itself gets the next request, whatever host the link names."""
    try:
        target = URL(url, encoded=True).join(URL(following, encoded=True))
    except ValueError:
        raise RegistryUnreachable(f"{reference.repository}: the link to its next tags is no URL") from None
    return target.raw_path_qs
