"""The benchmark of a real API server counts a burst's own requests, all of them."""

import asyncio
from contextlib import AbstractAsyncContextManager

from bench.server import Burst

from tessera.clock import LoopClock
from tessera.kube.client.client import Client
from tessera.kube.client.requests import Request, Response, Stream
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
