"""Calls webhooks: over HTTPS as a real API server does, or in the same process without sockets.

The HTTPS caller trusts exactly the authorities of the configuration's ``caBundle`` and checks the certificate against
``<service>.<namespace>.svc`` (or the URL's host). A resolver gives it the address of a service.
"""

import asyncio
import base64
import ssl
from collections.abc import Awaitable, Callable, Mapping
from inspect import isawaitable
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import urlsplit

from tessera.kube.cluster_config import client_context

if TYPE_CHECKING:
    import aiohttp

#: Resolves a service: from namespace, name and port to host and port; None if there is no such service.
Resolver = Callable[[str, str, int], "tuple[str, int] | None"]
#: A webhook in this process: takes a review and returns a review.
Reviewer = Callable[[bytes], "bytes | Awaitable[bytes]"]


class WebhookCallFailed(Exception):  # noqa: N818 - a condition that the failure policy decides on
    """The webhook gave no usable answer; the text gives the reason in the words of Go's HTTP client."""


class WebhookCaller(Protocol):
    """Carries one review to one webhook."""

    async def call(self, client_config: Mapping[str, Any], review: bytes, seconds: float) -> bytes:
        """Posts the review and returns the answer's body.

        Args:
            client_config: ``clientConfig`` of the webhook.
            review: the AdmissionReview.
            seconds: timeout.

        Raises:
            CallFailed: no answer with status 200 within the timeout.
        """
        ...


class InProcessCaller:
    """Calls webhooks in this process, by namespace and name of their service.

    A webhook that is registered under the name followed by a path answers that path.

    Args:
        reviewers: the webhooks of this process.
        others: calls all others; None if they are out of reach.
    """

    def __init__(self, reviewers: Mapping[tuple[str, str], Reviewer], others: WebhookCaller | None = None) -> None:
        self._reviewers = reviewers
        self._others = others

    async def call(self, client_config: Mapping[str, Any], review: bytes, seconds: float) -> bytes:
        """Calls the registered function."""
        service = client_config.get("service")
        reviewer = None if service is None else self._find(service)
        if reviewer is None and self._others is not None:
            return await self._others.call(client_config, review, seconds)
        if service is None:
            raise WebhookCallFailed(
                f"Post {client_config.get('url')!r}: URLs are out of reach of a server without sockets"
            )
        if reviewer is None:
            raise WebhookCallFailed(f'service "{service["name"]}" not found')
        try:
            async with asyncio.timeout(seconds):
                answer = reviewer(review)
                return await answer if isawaitable(answer) else answer
        except TimeoutError:
            raise WebhookCallFailed(
                f'Post "{_describe_target(client_config, seconds)}": context deadline exceeded'
            ) from None
        except ValueError as error:
            raise WebhookCallFailed(f"the webhook could not read the review: {error}") from None

    def _find(self, service: Mapping[str, Any]) -> Reviewer | None:
        namespace, name = service["namespace"], service["name"]
        own = self._reviewers.get((namespace, name + (service.get("path") or "/")))
        return own or self._reviewers.get((namespace, name))


class HttpCaller:
    """Calls webhooks over HTTPS."""

    def __init__(self, resolve: Resolver) -> None:
        self._resolve = resolve
        self._session: aiohttp.ClientSession | None = None
        self._contexts: dict[str, ssl.SSLContext] = {}

    async def call(self, client_config: Mapping[str, Any], review: bytes, seconds: float) -> bytes:
        """Posts the review."""
        import aiohttp

        shown = _describe_target(client_config, seconds)
        url, server_name = self._target(client_config, seconds)
        if self._session is None:
            self._session = aiohttp.ClientSession()
        try:
            async with (
                asyncio.timeout(seconds),
                self._session.post(
                    url,
                    data=review,
                    ssl=self._context(client_config.get("caBundle") or ""),
                    server_hostname=server_name,
                    headers={"content-type": "application/json", "accept": "application/json"},
                    allow_redirects=False,
                ) as answer,
            ):
                body = await answer.read()
        except TimeoutError:
            raise WebhookCallFailed(f'Post "{shown}": context deadline exceeded') from None
        except aiohttp.ClientConnectorCertificateError as error:
            raise WebhookCallFailed(
                f'Post "{shown}": tls: failed to verify certificate: {_certificate_error(error)}'
            ) from None
        except (aiohttp.ClientError, OSError) as error:
            raise WebhookCallFailed(f'Post "{shown}": {error}') from None
        if answer.status != 200:
            text = body[:200].decode("utf-8", "replace").strip()
            raise WebhookCallFailed(f'Post "{shown}": the webhook answered {answer.status}: {text}')
        return body

    async def close(self) -> None:
        """Closes idle connections."""
        if self._session is not None:
            await self._session.close()
            self._session = None

    def _target(self, config: Mapping[str, Any], timeout: float) -> tuple[str, str]:
        """Returns the address to post to, and the name that the certificate must have."""
        service = config.get("service")
        if service is None:
            return _with_timeout(config["url"], timeout), str(urlsplit(config["url"]).hostname)
        name, namespace, port = service["name"], service["namespace"], service.get("port", 443)
        found = self._resolve(namespace, name, port)
        if found is None:
            raise WebhookCallFailed(f'service "{name}" not found')
        host, actual = found
        shown = f"[{host}]" if ":" in host else host
        path = service.get("path") or "/"
        return _with_timeout(f"https://{shown}:{actual}{path}", timeout), f"{name}.{namespace}.svc"

    def _context(self, bundle: str) -> ssl.SSLContext:
        if bundle not in self._contexts:
            self._contexts[bundle] = _build_ssl_context(bundle)
        return self._contexts[bundle]


def _build_ssl_context(bundle: str) -> ssl.SSLContext:
    """Makes a TLS context that trusts only the authorities of a ``caBundle``; if it is empty, those of the system."""
    if not bundle:
        return client_context()
    try:
        return client_context(base64.b64decode(bundle, validate=True).decode("ascii"))
    except (ValueError, ssl.SSLError):
        raise WebhookCallFailed("unable to load root certificates: unable to parse bytes as PEM block") from None


def _certificate_error(error: "aiohttp.ClientConnectorCertificateError") -> str:
    cause = error.certificate_error
    text = getattr(cause, "verify_message", "") or str(cause)
    unknown = "issuer certificate" in text or "self-signed" in text
    return "x509: certificate signed by unknown authority" if unknown else f"x509: {text}"


def _with_timeout(url: str, timeout: float) -> str:
    return f"{url}?timeout={timeout:g}s"


def _describe_target(config: Mapping[str, Any], timeout: float) -> str:
    """The address as error texts show it."""
    service = config.get("service")
    if service is None:
        return _with_timeout(str(config.get("url")), timeout)
    host = f"{service.get('name')}.{service.get('namespace')}.svc:{service.get('port', 443)}"
    return _with_timeout(f"https://{host}{service.get('path') or '/'}", timeout)
