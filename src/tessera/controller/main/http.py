"""``/metrics``, ``/healthz`` and ``/readyz`` of a controller."""

import asyncio
from collections.abc import Callable

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST

from tessera.controller.base.options import OnListening


async def serve_http(
    address: str | None,
    port: int,
    registry: CollectorRegistry,
    ready: Callable[[], str],
    on_listening: OnListening | None,
) -> None:
    """Serves until cancelled.

    Args:
        address: address to listen on; None for all.
        port: TCP port; 0 picks a free one.
        registry: the metrics that ``/metrics`` shows.
        ready: returns why this replica is not ready; empty if it is.
        on_listening: called with address and port once the port is open.

    Raises:
        OSError: the port is taken.
    """
    from aiohttp import web

    async def metrics(_request: web.Request) -> web.Response:
        return web.Response(body=generate_latest(registry), headers={"content-type": CONTENT_TYPE_LATEST})

    async def healthz(_request: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def readyz(_request: web.Request) -> web.Response:
        why = ready()
        return web.Response(status=503, text=f"{why}\n") if why else web.Response(text="ok\n")

    app = web.Application()
    app.add_routes([web.get("/metrics", metrics), web.get("/healthz", healthz), web.get("/readyz", readyz)])
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    try:
        await web.TCPSite(runner, address, port).start()
        if on_listening is not None:
            host, chosen = runner.addresses[0][:2]
            on_listening(host, chosen)
        await asyncio.Event().wait()
    finally:
        await runner.cleanup()
