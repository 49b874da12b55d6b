"""One HTTP request to a registry or its token server, bounded in time, size and redirects, through the right proxy.

Tessera follows redirects itself: credentials go only to the host they belong to, and no redirect leads from TLS to
plain HTTP, nor to plain HTTP at another host. Certificates are checked as programs in Go check them, since registries
issue theirs for Go programs. A private authority is trusted in addition to the system's.

``HTTPS_PROXY``, ``HTTP_PROXY`` and ``NO_PROXY`` are read in upper or lower case. ``NO_PROXY`` has the meaning that it
has in Go, since clusters are configured for Go programs: domains with all their subdomains, addresses, address ranges
(``10.0.0.0/8``) and ``*``, each with or without a port. Loopback is never reached through a proxy. Hand-written because
``urllib`` and aiohttp do not support address ranges.

Each way in which a registry does not give an image is an error of its own, since each needs another remedy.
"""

import ipaddress
import os
import ssl
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING
from urllib.parse import urlencode, urlsplit

import msgspec
from yarl import URL

from tessera.driver.images import Outcome
from tessera.driver.limits import REGISTRY_ANSWER, REGISTRY_REDIRECTS
from tessera.kube.cluster_config import client_context
from tessera.limits import Limit

if TYPE_CHECKING:  # commands import this module also where they only show their help
    import aiohttp


class RegistryError(Exception):
    """A registry did not give what the request asked for; the text is one sentence without credentials.

    Attributes:
        outcome: the named outcome.
        after: seconds after which the registry accepts the next request, if it said so; else 0.
    """

    outcome = Outcome.UNREACHABLE

    def __init__(self, text: str, *, after: float = 0.0) -> None:
        super().__init__(text)
        self.after = after


class ImageNotFound(RegistryError):  # noqa: N818 - read as "the image is not there"
    """The registry does not have the image, tag or repository (404)."""

    outcome = Outcome.NOT_FOUND


class AccessRefused(RegistryError):  # noqa: N818 - likewise
    """The registry requires other credentials (401, 403)."""

    outcome = Outcome.UNAUTHORIZED


class RegistryUnreachable(RegistryError):  # noqa: N818 - likewise
    """The registry gave no usable answer: none, a late one, 429, 5xx, or one that the API does not allow."""

    outcome = Outcome.UNREACHABLE


class WrongArchitecture(RegistryError):  # noqa: N818 - likewise
    """The registry has the image, but not for this architecture."""

    outcome = Outcome.WRONG_ARCHITECTURE


def proxy_for(url: str, environment: Mapping[str, str]) -> str:
    """URL of the proxy; empty for none."""
    parts = urlsplit(url)
    host = (parts.hostname or "").lower()
    port = parts.port or {"https": 443, "http": 80}.get(parts.scheme, 0)
    proxy = _variable(environment, f"{parts.scheme}_proxy")
    if not proxy or _loopback(host) or _bypasses_proxy(host, port, _variable(environment, "no_proxy")):
        return ""
    return proxy if "://" in proxy else f"http://{proxy}"


def _variable(environment: Mapping[str, str], name: str) -> str:
    return (environment.get(name.upper()) or environment.get(name) or "").strip()


def _bypasses_proxy(host: str, port: int, exceptions: str) -> bool:
    return any(_matches(host, port, each.strip().lower()) for each in exceptions.split(",") if each.strip())


def _matches(host: str, port: int, exception: str) -> bool:
    if exception == "*":
        return True
    address = _address(host)
    try:
        if address is not None:
            return address in ipaddress.ip_network(exception.strip("[]"), strict=False)
    except ValueError:
        pass  # neither an address nor a range: a name, perhaps with a port
    name, _, only = exception.rpartition(":") if exception.rpartition(":")[2].isdigit() else (exception, "", "")
    if only and int(only) != port:
        return False
    if address is not None:
        return _address(name.strip("[]")) == address
    name = name.removeprefix("*")
    return host.endswith(name) if name.startswith(".") else host == name or host.endswith(f".{name}")


def _loopback(host: str) -> bool:
    address = _address(host)
    return host == "localhost" or (address is not None and address.is_loopback)


def _address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(text)
    except ValueError:
        return None


#: Timeouts in seconds: for a connection, and for a whole answer.
CONNECT_TIMEOUT = 5.0
ANSWER_TIMEOUT = 15.0


_REDIRECTED = (301, 302, 303, 307, 308)


class Trust(msgspec.Struct, frozen=True, kw_only=True):
    """The servers that a client trusts.

    Attributes:
        authorities: certificates in PEM that are trusted in addition to the system's.
        plain: hosts, with their ports, to reach over plain HTTP; ``*`` is all.
    """

    authorities: str = ""
    plain: tuple[str, ...] = ()

    def scheme(self, host: str) -> str:
        """The scheme for a host: ``http`` or ``https``."""
        return "http" if host in self.plain or "*" in self.plain else "https"


class RegistryAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """A server's answer.

    Attributes:
        status: status after the last redirect.
        headers: names in lower case; if a name occurs several times, all its values in sequence.
        body: the whole body.
        url: URL after the last redirect.
    """

    status: int
    headers: Mapping[str, tuple[str, ...]]
    body: bytes
    url: str

    def header(self, name: str) -> str:
        """The first header of a name; empty if there is none."""
        return next(iter(self.headers.get(name, ())), "")


class RegistryHttp:
    """Sends requests and owns the connections.

    Args:
        trust: see :class:`Trust`.
        total: timeout for a whole answer, seconds; each redirect has its own.
        environment: variables that name proxies; those of the process if left out.

    Raises:
        ssl.SSLError: the authorities are not certificates.
    """

    def __init__(
        self,
        trust: Trust,
        *,
        total: float = ANSWER_TIMEOUT,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        import aiohttp

        self.trust = trust
        self._limits = aiohttp.ClientTimeout(total=total, sock_connect=CONNECT_TIMEOUT)
        self._total = total
        self._environment = os.environ if environment is None else environment
        self._tls = _context(trust)
        self._session: aiohttp.ClientSession | None = None

    async def send(
        self,
        method: str,
        url: str,
        *,
        headers: Mapping[str, str] | None = None,
        form: Mapping[str, str] | None = None,
        largest: Limit = REGISTRY_ANSWER,
    ) -> RegistryAnswer:
        """Sends a request and reads the whole answer.

        Raises:
            RegistryUnreachable: there was no answer, or none within the limits.
        """
        sent = {**(headers or {}), "accept-encoding": "identity"}
        body = None if form is None else urlencode(form).encode()
        if body is not None:
            sent["content-type"] = "application/x-www-form-urlencoded"
        for _ in range(REGISTRY_REDIRECTS + 1):
            answer = await self._request(method, url, sent, body, largest)
            if answer.status not in _REDIRECTED or not answer.header("location") or body is not None:
                return answer
            target = _target(url, answer.header("location"))
            if _origin(target) != _origin(url):
                sent.pop("authorization", None)
            url = target
        raise RegistryUnreachable(
            f"{_display_url(url)}: too many redirects: {REGISTRY_REDIRECTS} are followed; is this a registry?"
        )

    async def close(self) -> None:
        """Frees the connections."""
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def _request(
        self, method: str, url: str, headers: Mapping[str, str], body: bytes | None, largest: Limit
    ) -> RegistryAnswer:
        async with (
            self._translate_errors(url),
            self._open_session().request(
                method,
                URL(url, encoded=True),
                headers=headers,
                data=body,
                allow_redirects=False,
                timeout=self._limits,
                ssl=self._tls,
                proxy=proxy_for(url, self._environment) or None,
            ) as answer,
        ):
            return RegistryAnswer(
                status=answer.status,
                headers=_by_name(answer.headers.items()),
                body=await _read_body(answer, largest),
                url=url,
            )

    def _open_session(self) -> "aiohttp.ClientSession":
        """Opens the session at the first request, since aiohttp requires a running loop."""
        import aiohttp

        if self._session is None:
            self._session = aiohttp.ClientSession(cookie_jar=aiohttp.DummyCookieJar(), auto_decompress=False)
        return self._session

    @asynccontextmanager
    async def _translate_errors(self, url: str) -> AsyncIterator[None]:
        """Turns every error below HTTP into RegistryUnreachable with one sentence."""
        import aiohttp

        try:
            yield
        except TimeoutError as error:
            raise RegistryUnreachable(f"{_display_url(url)} did not answer within {self._total:g} s") from error
        except aiohttp.ClientConnectorCertificateError as error:
            raise RegistryUnreachable(
                f"{_display_url(url)}: its certificate is not trusted ({_reason(error.certificate_error)}); "
                "name the authority that signed it"
            ) from error
        except aiohttp.ClientSSLError as error:
            raise RegistryUnreachable(
                f"{_display_url(url)} does not speak TLS as expected ({_reason(error)});"
                " plain HTTP is used only where asked"
            ) from error
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise RegistryUnreachable(f"{_display_url(url)}: {_error_text(error)}") from error


async def _read_body(answer: "aiohttp.ClientResponse", largest: Limit) -> bytes:
    body = bytearray()
    while chunk := await answer.content.readany():
        body += chunk
        if len(body) > largest:
            raise RegistryUnreachable(
                f"{_display_url(str(answer.url))}: the answer is too long: {largest} are allowed; is this a registry?"
            )
    return bytes(body)


def _context(trust: Trust) -> ssl.SSLContext:
    context = client_context()
    if trust.authorities:
        # Comments between certificates may be in any language, but Python accepts only ASCII.
        context.load_verify_locations(cadata=trust.authorities.encode("ascii", "ignore").decode())
    return context


def _target(url: str, location: str) -> str:
    try:
        target = URL(url, encoded=True).join(URL(location, encoded=True))
        _origin(str(target))  # raises here if the port is invalid
    except ValueError:
        raise RegistryUnreachable(f"{_display_url(url)} redirects to something that is no URL") from None
    if target.scheme == "https" or (url.startswith("http:") and is_plain_at(str(target), URL(url, encoded=True).host)):
        return str(target)
    raise RegistryUnreachable(
        f"{_display_url(url)} redirects to {target.scheme}://{target.host}, which is not followed: a redirect leads to"
        " TLS, or from plain HTTP to the same host; have the registry serve its blobs itself, or by https://"
    )


def is_plain_at(url: str, host: str | None) -> bool:
    """True if a URL has plain HTTP at a host, on any of its ports.

    Whoever answers for a registry with plain HTTP can name any address, also one that answers only in the cluster.
    """
    try:
        parts = urlsplit(url)
    except ValueError:
        return False
    return parts.scheme == "http" and host is not None and parts.hostname == host.lower()


def _origin(url: str) -> tuple[str, str | None, int | None]:
    parts = URL(url, encoded=True)
    return parts.scheme, parts.host, parts.port


def _display_url(url: str) -> str:
    """A URL for people: without its query, where storage puts signatures, and without a user."""
    try:
        parts = URL(url, encoded=True)
        port = f":{parts.explicit_port}" if parts.explicit_port else ""
    except ValueError:  # a registry may name any text as its token server
        return ascii(url.partition("?")[0])[:200]
    return f"{parts.scheme}://{parts.host}{port}{parts.raw_path}"


def _error_text(error: Exception) -> str:
    """The error in the system's words, if it has some."""
    import aiohttp

    if isinstance(error, aiohttp.ClientConnectorDNSError):
        return "its name is not known to DNS"
    if isinstance(error, OSError) and error.errno and error.errno > 0:
        return os.strerror(error.errno).lower()
    return str(error) or type(error).__name__


def _reason(error: Exception) -> str:
    inner = getattr(error, "certificate_error", None) or getattr(error, "os_error", None) or error
    return getattr(inner, "verify_message", "") or getattr(inner, "reason", "") or type(inner).__name__


def _by_name(items: Iterable[tuple[str, str]]) -> Mapping[str, tuple[str, ...]]:
    found: dict[str, tuple[str, ...]] = {}
    for name, value in items:
        found[name.lower()] = (*found.get(name.lower(), ()), value)
    return found
