"""The HTTP pages of every process: ``/metrics``, ``/healthz`` and ``/readyz``, and pages of JSON of its own.

Controller and agent serve them with :func:`serve_status`. The webhook serves the same pages from a second thread
(:mod:`tessera.webhook.serving.server`), so that they answer during a review. The server of ``prometheus_client`` has
no probes.
"""

import asyncio
from collections.abc import Callable, Mapping
from typing import NamedTuple, Protocol

from prometheus_client.exposition import CONTENT_TYPE_LATEST

#: Receives (address, port) of a server once it listens.
OnListening = Callable[[str, int], None]

#: Makes the text of a process's own pages of JSON, by path.
JsonDocuments = Mapping[str, Callable[[], bytes]]

NO_DOCUMENTS: JsonDocuments = {}
TEXT, JSON = "text/plain", "application/json"
_PATHS = ("/healthz", "/metrics", "/readyz")


class ProcessStatus(Protocol):
    """The state of a process that the pages show. The webhook's second thread makes these calls."""

    def metrics_text(self) -> bytes:
        """The text of ``/metrics``."""
        ...

    def unready_reason(self) -> str:
        """Reason that the process is not ready: ``/readyz`` answers 503 with it; empty for 200."""
        ...


class Page(NamedTuple):
    """The answer to a request."""

    status: int
    content_type: str
    body: bytes


_OK = Page(200, TEXT, b"ok\n")


def unavailable(reason: str) -> Page:
    """The page that says why a process is not ready or not alive."""
    return Page(503, TEXT, f"{reason}\n".encode())


def status_page(path: str, process: ProcessStatus, documents: JsonDocuments = NO_DOCUMENTS) -> Page:
    """Returns the page of a path. ``/healthz`` answers 200 as long as the process runs."""
    if path in documents:
        return Page(200, JSON, documents[path]())
    match path:
        case "/metrics":
            return Page(200, CONTENT_TYPE_LATEST, process.metrics_text())
        case "/healthz":
            return _OK
        case "/readyz":
            reason = process.unready_reason()
            return unavailable(reason) if reason else _OK
        case _:
            return Page(404, TEXT, b"there are " + ", ".join(sorted((*documents, *_PATHS))).encode() + b"\n")


async def serve_status(
    process: ProcessStatus,
    port: int,
    *,
    address: str | None = None,
    on_listening: OnListening | None = None,
    documents: JsonDocuments = NO_DOCUMENTS,
) -> None:
    """Serves the pages until cancelled.

    Args:
        process: the process to show.
        port: TCP port; 0 picks a free one.
        address: address to listen on; None for all, IPv6 too.
        on_listening: called once the port is open.
        documents: further pages of JSON, by path.

    Raises:
        OSError: the port is taken.
    """
    from aiohttp import web

    async def answer(request: web.Request) -> web.Response:
        page = status_page(request.path, process, documents)
        return web.Response(status=page.status, body=page.body, headers={"content-type": page.content_type})

    app = web.Application()
    app.add_routes([web.get("/{path:.*}", answer)])
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    try:
        await web.TCPSite(runner, address, port).start()
        if on_listening is not None:
            on_listening(*runner.addresses[0][:2])
        await asyncio.Event().wait()
    finally:
        await runner.cleanup()
