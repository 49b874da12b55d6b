"""The agent's own endpoints."""

import asyncio

import aiohttp
from prometheus_client import generate_latest

from tessera.agent.base.runtime import Metrics
from tessera.agent.inventory.sliceable_gpus import SlicePosition
from tessera.agent.slices.events import GpuRead, InitialSyncDone, ObservedInstance, SliceJournal
from tessera.agent.slices.slice_table import SlicesCollector
from tessera.agent.slices.state_machine import SliceStateMachine
from tessera.api.names import PodUid
from tessera.serving.status_server import serve_status

LEFT, RIGHT = SlicePosition("GPU-a", "3g.20gb", 0), SlicePosition("GPU-a", "3g.20gb", 4)


class Agent:
    """An agent as its HTTP server shows it."""

    def __init__(self, metrics: Metrics, unready: str) -> None:
        self._metrics, self._unready = metrics, unready

    def metrics_text(self) -> bytes:
        return generate_latest(self._metrics.registry)

    def unready_reason(self) -> str:
        return self._unready


async def answers(metrics: Metrics, unready: str, *paths: str) -> list[tuple[int, str]]:
    listening: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    serving = serve_status(
        Agent(metrics, unready), 0, address="127.0.0.1", on_listening=lambda _address, port: listening.set_result(port)
    )
    server = asyncio.create_task(serving)
    got = []
    async with asyncio.timeout(60), aiohttp.ClientSession() as session:
        port = await listening
        for path in paths:
            async with session.get(f"http://127.0.0.1:{port}{path}") as answer:
                got.append((answer.status, await answer.text()))
    server.cancel()
    await asyncio.gather(server, return_exceptions=True)
    return got


async def test_health_is_running_and_readiness_is_having_read_the_cards() -> None:
    assert await answers(Metrics(), "cards not read yet", "/healthz", "/readyz") == [
        (200, "ok\n"),
        (503, "cards not read yet\n"),
    ]
    assert await answers(Metrics(), "", "/readyz") == [(200, "ok\n")]


async def test_slices_are_counted_by_state_at_each_scrape() -> None:
    machine = SliceStateMachine(SliceJournal(owners={LEFT.device_id: PodUid("gone")}))
    whole = ObservedInstance(gi_id=1, position=LEFT, size=4, computes=((0, "MIG-1"),))
    other = ObservedInstance(gi_id=2, position=RIGHT, size=4, computes=((0, "MIG-2"),))
    machine.handle(GpuRead("GPU-a", {"3g.20gb": (0, 4)}, (whole, other)))
    machine.handle(InitialSyncDone())
    metrics = Metrics()
    metrics.registry.register(SlicesCollector(machine.table))
    metrics.calls.labels("CreateGpuInstance").observe(0.2)
    ((status, text),) = await answers(metrics, "", "/metrics")
    assert status == 200
    assert 'tessera_slices{state="releasing"} 1.0' in text
    assert 'tessera_slices{state="foreign"} 1.0' in text
    assert 'tessera_mig_call_seconds_count{call="CreateGpuInstance"} 1.0' in text
