"""The controller's metrics and probes over real HTTP."""

import asyncio

import aiohttp
from prometheus_client import generate_latest

from tessera.controller.base import ControllerMetrics
from tessera.serving.status_server import serve_status


class Process:
    """A controller as its pages show it."""

    def __init__(self, metrics: ControllerMetrics) -> None:
        self._metrics = metrics
        self.reason = "the election has not begun"

    def metrics_text(self) -> bytes:
        return generate_latest(self._metrics.registry)

    def unready_reason(self) -> str:
        return self.reason


async def test_metrics_and_probes() -> None:
    metrics = ControllerMetrics()
    metrics.leading.set(1)
    metrics.decisions.inc(2)
    metrics.decision_seconds.observe(0.001)
    metrics.writes.labels("Ungate").inc()
    process = Process(metrics)
    open_at: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    server = asyncio.create_task(
        serve_status(process, 0, address="127.0.0.1", on_listening=lambda _host, port: open_at.set_result(port))
    )
    try:
        async with aiohttp.ClientSession(f"http://127.0.0.1:{await open_at}") as session:
            async with session.get("/metrics") as answer:
                text = await answer.text()
            async with session.get("/healthz") as answer:
                assert answer.status == 200
            async with session.get("/readyz") as answer:
                assert (answer.status, await answer.text()) == (503, "the election has not begun\n")
            process.reason = ""
            async with session.get("/readyz") as answer:
                assert answer.status == 200
    finally:
        server.cancel()
        await asyncio.wait({server})
    assert "tessera_leading 1.0" in text
    assert "tessera_decisions_total 2.0" in text
    assert 'tessera_api_writes_total{kind="Ungate"} 1.0' in text
