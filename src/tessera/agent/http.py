"""``/metrics``, ``/healthz`` and ``/readyz`` of an agent, when a port is given."""

import asyncio
from collections.abc import Callable

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST


async def serve_http(port: int, registry: CollectorRegistry, ready: Callable[[], bool]) -> None:
    """Serves on all addresses until cancelled.

    Args:
        port: TCP port.
        registry: what ``/metrics`` shows.
        ready: whether ``/readyz`` answers 200; 503 otherwise. ``/healthz`` answers 200 as long as the process runs.

    Raises:
        OSError: the port is taken.
    """
    from aiohttp import web

    async def metrics(_request: web.Request) -> web.Response:
        return web.Response(body=generate_latest(registry), headers={"content-type": CONTENT_TYPE_LATEST})

    async def healthz(_request: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def readyz(_request: web.Request) -> web.Response:
        return web.Response(text="ok\n") if ready() else web.Response(status=503, text="cards not read yet\n")

    app = web.Application()
    app.add_routes([web.get("/metrics", metrics), web.get("/healthz", healthz), web.get("/readyz", readyz)])
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    try:
        await web.TCPSite(runner, port=port).start()
        await asyncio.Event().wait()
    finally:
        await runner.cleanup()
