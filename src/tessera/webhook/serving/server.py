"""The webhook's two ports: reviews over TLS, health and metrics over plain HTTP in a thread of its own.

The TLS context lives as long as the server: a new certificate is loaded into it and serves from the next handshake on;
open connections continue. The key goes from memory to OpenSSL through an anonymous file, never to a disk.

Reviews run on the process's event loop, one after the other. The health port has its own loop in another thread, so
that it answers during a review; it reports an error if the first loop makes no progress for too long.
"""

import asyncio
import os
import socket
import ssl
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TYPE_CHECKING

from tessera.clock import Clock
from tessera.limits.processes import STANDSTILL
from tessera.status_pages import TEXT, Page, ProcessStatus, status_page, unavailable
from tessera.webhook.admission.review import ReviewError
from tessera.webhook.base.options import (
    MANAGED_PATH,
    MANAGED_TEMPLATE_PATH,
    REVIEW_PATH,
    TEMPLATE_PATH,
    WebhookOptions,
)
from tessera.webhook.serving.certificates import Certificate

if TYPE_CHECKING:
    from tessera.webhook.serving.bounded_port import Answer

#: Seconds between two heartbeats.
_BEAT = 1.0


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
    from tessera.webhook.serving.bounded_port import BoundedPort

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


class LoopHeartbeat:
    """Shows other threads that a loop makes progress.

    Args:
        clock: gives the time.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._last = clock.monotonic()

    async def run(self) -> None:
        """Beats on the watched loop until cancelled."""
        while True:
            self._last = self._clock.monotonic()
            await self._clock.sleep(_BEAT)

    @property
    def missing(self) -> str:
        """Reason that the loop counts as stuck; empty if it makes progress."""
        silent = self._clock.monotonic() - self._last
        return f"admission has stood still for {silent:.0f} s" if silent * 1000 > STANDSTILL else ""


async def serve_health(address: str | None, port: int, process: ProcessStatus, heartbeat: LoopHeartbeat) -> None:
    """Answers ``/healthz``, ``/readyz`` and ``/metrics`` from another thread until cancelled.

    Args:
        address: address to listen on; None for all.
        port: port to listen on; 0 picks a free one.
        process: the process to show; the other thread calls it.
        heartbeat: the heartbeat of the loop that runs reviews; without it, the process is neither alive nor ready.

    Raises:
        OSError: the port is taken.
    """

    def answer(_method: str, path: str, _body: bytes) -> Page:
        stuck = heartbeat.missing if path in {"/healthz", "/readyz"} else ""
        return unavailable(stuck) if stuck else status_page(path, process)

    await _in_thread(listening_socket(address, port), answer)


async def _in_thread(listener: socket.socket, answer: "Answer") -> None:
    started: Future[tuple[asyncio.AbstractEventLoop, asyncio.Task[None]]] = Future()
    ended: Future[None] = Future()

    async def serve() -> None:
        from tessera.webhook.serving.bounded_port import BoundedPort

        serving = asyncio.create_task(BoundedPort("health", answer).serve(listener))
        started.set_result((asyncio.get_running_loop(), serving))
        await asyncio.wait({serving})
        if not serving.cancelled():
            serving.result()

    def run() -> None:
        try:
            asyncio.run(serve())
        except BaseException as error:
            ended.set_exception(error)
            raise
        ended.set_result(None)

    for each in (started, ended):
        each.set_running_or_notify_cancel()  # the caller may be cancelled; the thread goes on until it is stopped
    thread = threading.Thread(target=run, name="health", daemon=True)
    thread.start()
    loop, serving = await asyncio.wrap_future(started)
    try:
        await asyncio.wrap_future(ended)
    finally:
        if thread.is_alive():
            loop.call_soon_threadsafe(serving.cancel)
            thread.join()


def listening_socket(address: str | None, port: int) -> socket.socket:
    """Returns a listening socket; without an address, on all addresses, IPv6 too."""
    if address is None and socket.has_dualstack_ipv6():
        listener = socket.create_server(("", port), family=socket.AF_INET6, dualstack_ipv6=True)
    else:
        family = socket.AF_INET6 if ":" in (address or "") else socket.AF_INET
        listener = socket.create_server((address or "", port), family=family)
    listener.setblocking(False)
    return listener
