"""Serves ``/metrics``, ``/healthz`` and ``/readyz`` of an agent, when a port is given."""

import asyncio
from collections.abc import Callable

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST


async def serve_http(port: int, registry: Callable[[], CollectorRegistry], waits: Callable[[], str]) -> None:
    """Serves on all addresses until cancelled.

    Args:
        port: TCP port.
        registry: the metrics of ``/metrics``.
        waits: why the agent is not ready: then ``/readyz`` answers 503 with that text; empty for 200. ``/healthz``
            answers 200 as long as the process runs.

    Raises:
        OSError: the port is taken.
    """
    from aiohttp import web

    async def metrics(_request: web.Request) -> web.Response:
        return web.Response(body=generate_latest(registry()), headers={"content-type": CONTENT_TYPE_LATEST})

    async def healthz(_request: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def readyz(_request: web.Request) -> web.Response:
        return web.Response(status=503, text=f"{why}\n") if (why := waits()) else web.Response(text="ok\n")

    app = web.Application()
    app.add_routes([web.get("/metrics", metrics), web.get("/healthz", healthz), web.get("/readyz", readyz)])
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    try:
        await web.TCPSite(runner, port=port).start()
        await asyncio.Event().wait()
    finally:
        await runner.cleanup()
