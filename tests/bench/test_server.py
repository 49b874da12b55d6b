"""The benchmark of a real API server counts a burst's own requests, all of them, and refuses a cluster in use."""

import asyncio
from contextlib import AbstractAsyncContextManager

import msgspec
import pytest
from bench.server import Burst, refuse_installed

from tessera.clock import LoopClock
from tessera.kube.client import Client
from tessera.kube.requests import Request, Response, Stream
from tessera_lab.simulation.virtual_time import run_virtual

METRICS = """\
process_cpu_seconds_total {cpu}
apiserver_request_total{{verb="POST",resource="pods",subresource="",code="201"}} 10
apiserver_request_total{{verb="POST",resource="events",subresource="",code="201"}} {events}
"""


class Answering:
    """A server that still gets one Event a second, 40 of them in all."""

    def __init__(self, clock: LoopClock) -> None:
        self._clock = clock

    async def request(self, request: Request) -> Response:
        assert request.path == "/metrics"
        events = min(40, int(self._clock.monotonic()))
        return Response(status=200, body=METRICS.format(cpu=1 + events / 100, events=events).encode())

    def stream(self, request: Request) -> AbstractAsyncContextManager[Stream]:
        raise AssertionError("nothing is watched here")

    async def close(self) -> None:
        pass


def test_a_burst_is_read_once_all_its_events_are_sent() -> None:
    """Kubelets send them after the pods run: a burst that was read at once left them to the next one."""

    async def story() -> None:
        clock = LoopClock(0)
        burst = Burst(Client(Answering(clock), field_manager="test", clock=clock), clock, "default-scheduler")
        await asyncio.sleep(3)
        cpu, requests = await burst._events_sent()
        assert (cpu, requests["POST events"], requests["POST pods"]) == (1.4, 40, 10)
        assert clock.monotonic() < 50

    run_virtual(story())


class Namespaces(Answering):
    """A server with one namespace."""

    def __init__(self, clock: LoopClock, metadata: dict[str, str]) -> None:
        super().__init__(clock)
        self._metadata = metadata

    async def request(self, request: Request) -> Response:
        assert request.path == "/api/v1/namespaces"
        return Response(status=200, body=msgspec.json.encode({"metadata": {}, "items": [{"metadata": self._metadata}]}))


@pytest.mark.parametrize(
    ("metadata", "words"),
    [
        ({"name": "tessera-bench"}, "namespace tessera-bench exists: .* delete what an earlier run left"),
        (
            {"name": "tessera-bench", "deletionTimestamp": "2026-01-01T00:00:00Z"},
            "namespace tessera-bench is still being deleted, .* start it again once the namespace is gone",
        ),
        ({"name": "other"}, ""),
    ],
)
def test_a_namespace_that_is_being_deleted_is_told_from_one_that_stays(metadata: dict[str, str], words: str) -> None:
    async def story() -> None:
        clock = LoopClock(0)
        client = Client(Namespaces(clock, metadata), field_manager="test", clock=clock)
        if not words:
            await refuse_installed(client)
            return
        with pytest.raises(SystemExit, match=words):
            await refuse_installed(client)

    run_virtual(story())
