"""The webhook's two ports: reviews over TLS, health over plain HTTP.

The TLS context lives as long as the server: a new certificate is loaded into it and counts from the next handshake on,
connections that are open stay. The key goes from memory to OpenSSL through an anonymous file, never to a disk.
"""

import asyncio
import os
import ssl
from collections.abc import Callable

from tessera.webhook.certificates import Certificate
from tessera.webhook.options import REVIEW_PATH, WebhookOptions
from tessera.webhook.review import ReviewError

#: Largest request: a pod and its managed fields under etcd's limit of 1.5 MiB, twice for the old object, and the rest.
_LARGEST = 8 * 2**20


def server_context() -> ssl.SSLContext:
    """A context without certificate yet."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    return context


def load(context: ssl.SSLContext, certificate: Certificate) -> None:
    """Serves this certificate from the next handshake on."""
    file = os.memfd_create("tessera-webhook", os.MFD_CLOEXEC)
    try:
        os.write(file, certificate.certificate + certificate.key)
        context.load_cert_chain(f"/proc/self/fd/{file}")
    finally:
        os.close(file)


async def serve_reviews(options: WebhookOptions, context: ssl.SSLContext, review: Callable[[bytes], bytes]) -> None:
    """Answers AdmissionReviews until cancelled.

    Args:
        options: address, port, whom to tell once it is open.
        context: holds a certificate.
        review: the answer to a body.

    Raises:
        OSError: the port is taken.
    """
    from aiohttp import web

    async def handle(request: web.Request) -> web.Response:
        try:
            return web.Response(body=review(await request.read()), content_type="application/json")
        except ReviewError as error:
            return web.Response(status=400, text=f"{error}\n")

    app = web.Application(client_max_size=_LARGEST)
    app.add_routes([web.post(REVIEW_PATH, handle)])
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    try:
        await web.TCPSite(runner, options.address, options.port, ssl_context=context).start()
        if options.on_listening is not None:
            host, port = runner.addresses[0][:2]
            options.on_listening(host, port)
        await asyncio.Event().wait()
    finally:
        await runner.cleanup()


async def serve_health(address: str | None, port: int, ready: Callable[[], str]) -> None:
    """Answers ``/healthz`` and ``/readyz`` until cancelled; ``ready`` says why not, or nothing.

    Raises:
        OSError: the port is taken.
    """
    from aiohttp import web

    async def healthz(_request: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def readyz(_request: web.Request) -> web.Response:
        why = ready()
        return web.Response(status=503, text=f"{why}\n") if why else web.Response(text="ok\n")

    app = web.Application()
    app.add_routes([web.get("/healthz", healthz), web.get("/readyz", readyz)])
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    try:
        await web.TCPSite(runner, address, port).start()
        await asyncio.Event().wait()
    finally:
        await runner.cleanup()
