"""The queue's page, read from controllers that do not have it."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec

from tessera.clock import SystemClock
from tessera.kube.client import Client
from tessera.kube.requests import Request, Response, Stream
from tessera.observe.queue_reading import read_queue


class ControllerWithoutForecast:
    """An API server with one pod of the controller, whose port has no page ``/queue``."""

    async def request(self, request: Request) -> Response:
        if request.path.endswith("/pods"):
            pods = [{"metadata": {"namespace": "tessera-system", "name": "controller-1"}}]
            return Response(status=200, headers={}, body=msgspec.json.encode({"metadata": {}, "items": pods}))
        if request.path.endswith("/token"):
            return Response(status=201, headers={}, body=b'{"status": {"token": "t"}}')
        return Response(status=404, headers={}, body=b"there is no such page\n")

    @asynccontextmanager
    async def stream(self, request: Request) -> AsyncIterator[Stream]:
        yield NotImplemented

    async def close(self) -> None:
        pass


async def test_a_controller_without_the_forecast_is_not_called_silent() -> None:
    client = Client(ControllerWithoutForecast(), field_manager="test", clock=SystemClock())
    assert await read_queue(client) == (
        "the controller controller-1 has no page /queue, as one that runs --without forecast:"
        " HTTP status 404: there is no such page"
    )
