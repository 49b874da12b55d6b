"""The controller's metrics and probes over real HTTP."""

import asyncio

import aiohttp

from tessera.controller.base.metrics import ControllerMetrics
from tessera.controller.main.http import serve_http


async def test_metrics_and_probes() -> None:
    metrics = ControllerMetrics()
    metrics.watch(lambda: 3, lambda: 5)
    metrics.observe_decision(2, 0.001)
    metrics.count_write("Ungate")
    why = ["the election has not begun"]
    open_at: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    server = asyncio.create_task(
        serve_http("127.0.0.1", 0, metrics.registry, lambda: why[0], lambda _host, port: open_at.set_result(port))
    )
    try:
        async with aiohttp.ClientSession(f"http://127.0.0.1:{await open_at}") as session:
            async with session.get("/metrics") as answer:
                text = await answer.text()
            async with session.get("/healthz") as answer:
                assert answer.status == 200
            async with session.get("/readyz") as answer:
                assert (answer.status, await answer.text()) == (503, "the election has not begun\n")
            why[0] = ""
            async with session.get("/readyz") as answer:
                assert answer.status == 200
    finally:
        server.cancel()
        await asyncio.wait({server})
    assert "tessera_pods_waiting 3.0" in text
    assert "tessera_decisions_total 2.0" in text
    assert 'tessera_api_writes_total{kind="Ungate"} 1.0' in text
