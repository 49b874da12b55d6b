"""The webhook's port of reviews, over TLS.

The TLS context lives as long as the server: a new certificate is loaded into it and serves from the next handshake on;
open connections continue.

Reviews run on the process's event loop, one after the other; one that reads objects first lets others go before.
"""

import ssl
from collections.abc import Awaitable, Callable, Mapping
from inspect import isawaitable

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from tessera.limits import REVIEW_BODY
from tessera.serving.bounded_port import BOUNDS, Bounds, ConnectionPort
from tessera.serving.connection import Connection
from tessera.serving.status_server import listening_socket
from tessera.status_pages import TEXT, Page
from tessera.webhook.admission.review import ReviewError
from tessera.webhook.base import WebhookOptions

#: Returns the answer to a body.
Answer = Callable[[bytes], bytes | Awaitable[bytes]]


async def serve_reviews(options: WebhookOptions, context: ssl.SSLContext, reviews: Mapping[str, Answer]) -> None:
    """Answers AdmissionReviews until cancelled.

    Args:
        options: address, port, and the function to call once the port is open.
        context: a context with a certificate.
        reviews: what answers the reviews, by path.

    Raises:
        OSError: the port is taken.
    """
    listener = listening_socket(options.address, options.port or 0)
    port = ReviewPort(reviews, context)
    if options.on_listening is not None:
        options.on_listening(*listener.getsockname()[:2])
    await port.serve(listener)


class ReviewPort(ConnectionPort):
    """Answers requests with whole bodies.

    Args:
        reviews: what answers the bodies, by path; called on the loop.
        context: for TLS; None for plain HTTP.
        bounds: the limits.
    """

    def __init__(self, reviews: Mapping[str, Answer], context: ssl.SSLContext | None, bounds: Bounds = BOUNDS) -> None:
        super().__init__("reviews", context, bounds)
        self._reviews = reviews

    async def respond(self, request: web.BaseRequest, connection: Connection) -> web.StreamResponse:
        """See :meth:`ConnectionPort.respond`."""
        connection.set_deadline(self._bounds.body_time, "without the whole body in time")
        body = await self._read_body(request)
        if body is None:
            text = f"the body is too long: {REVIEW_BODY} are allowed; make the pod smaller\n"
            response = web.Response(status=413, text=text)
            response.force_close()
            return response
        status, content_type, content = await self._answer(request.method, request.path, body)
        return web.Response(status=status, body=content, headers={"content-type": content_type})

    async def _answer(self, method: str, path: str, body: bytes) -> Page:
        review = self._reviews.get(path)
        if review is None:
            return Page(404, TEXT, f"reviews are answered at {', '.join(self._reviews)}\n".encode())
        if method != "POST":
            return Page(405, TEXT, b"reviews are sent by POST\n")
        try:
            answer = review(body)
            return Page(200, "application/json", await answer if isawaitable(answer) else answer)
        except ReviewError as error:
            return Page(400, TEXT, f"{error}\n".encode(errors="replace"))

    async def _read_body(self, request: web.BaseRequest) -> bytes | None:
        """Returns the body; None if it is too long.

        Raises:
            ConnectionError: the rest of the body will not come.
        """
        if (request.content_length or 0) > REVIEW_BODY:
            return None
        chunks = bytearray()
        try:
            async for chunk in request.content.iter_any():
                chunks += chunk
                if len(chunks) > REVIEW_BODY:
                    return None
            return bytes(chunks)
        except (web.RequestPayloadError, HttpProcessingError) as error:
            raise ConnectionResetError from error
        finally:
            chunks.clear()  # frees the memory now, before the exception's frames are collected
