"""The webhook's port of reviews, over TLS.

The TLS context lives as long as the server: a new certificate is loaded into it and serves from the next handshake on;
open connections continue. The key goes from memory to OpenSSL through an anonymous file, never to a disk.

Reviews run on the process's event loop, one after the other.
"""

import os
import ssl
from collections.abc import Callable

from tessera.status_pages import TEXT, Page
from tessera.webhook.admission.review import ReviewError
from tessera.webhook.base.options import (
    MANAGED_PATH,
    MANAGED_TEMPLATE_PATH,
    REVIEW_PATH,
    TEMPLATE_PATH,
    WebhookOptions,
)
from tessera.webhook.serving.certificates import Certificate


def server_context() -> ssl.SSLContext:
    """Returns a context that has no certificate yet."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    return context


def load_certificate(context: ssl.SSLContext, certificate: Certificate) -> None:
    """Serves this certificate from the next handshake on.

    Raises:
        ssl.SSLError: OpenSSL refuses the certificate.
    """
    file = os.memfd_create("tessera-webhook", os.MFD_CLOEXEC)
    try:
        os.write(file, certificate.certificate + certificate.key)
        context.load_cert_chain(f"/proc/self/fd/{file}")
    finally:
        os.close(file)


async def serve_reviews(
    options: WebhookOptions,
    context: ssl.SSLContext,
    review: Callable[[bytes], bytes],
    review_managed: Callable[[bytes], bytes] | None = None,
) -> None:
    """Answers AdmissionReviews until cancelled.

    Args:
        options: address, port, and the function to call once the port is open.
        context: a context with a certificate.
        review: returns the answer to a body.
        review_managed: the same for the paths of pods that Tessera places, and of their templates; by default
            ``review``.

    Raises:
        OSError: the port is taken.
    """
    from tessera.serving.bounded_port import BoundedPort
    from tessera.serving.status_server import listening_socket

    managed = review_managed or review
    reviews = {
        REVIEW_PATH: review,
        TEMPLATE_PATH: review,
        MANAGED_PATH: managed,
        MANAGED_TEMPLATE_PATH: managed,
    }

    def answer(method: str, path: str, body: bytes) -> Page:
        decide = reviews.get(path)
        if decide is None:
            return Page(404, TEXT, f"reviews are answered at {', '.join(reviews)}\n".encode())
        if method != "POST":
            return Page(405, TEXT, b"reviews are sent by POST\n")
        try:
            return Page(200, "application/json", decide(body))
        except ReviewError as error:
            return Page(400, TEXT, f"{error}\n".encode(errors="replace"))

    listener = listening_socket(options.address, options.port or 0)
    port = BoundedPort("reviews", answer, context)
    if options.on_listening is not None:
        options.on_listening(*listener.getsockname()[:2])
    await port.serve(listener)
