"""A process that may not act any more writes nothing, whatever it was doing."""

import asyncio
import random
from collections import deque
from contextlib import AbstractAsyncContextManager

import pytest
from tests.kube.conftest import run_virtual
from tests.kube.electing import EPOCH, refusal

from tessera.clock import LoopClock
from tessera.kube.client import Client
from tessera.kube.event_recorder import EventRecorder, make_reference
from tessera.kube.requests import Request, Response, Stream
from tessera.kube.resources import CONFIGMAPS, NODES


class Server:
    """Answers what the script says, then 200; notes what was asked."""

    def __init__(self, *script: Response) -> None:
        self.asked: list[str] = []
        self._script = deque(script)

    async def request(self, request: Request) -> Response:
        self.asked.append(request.method)
        return self._script.popleft() if self._script else Response(status=200, body=b'{"metadata":{"name":"n"}}')

    def stream(self, request: Request) -> AbstractAsyncContextManager[Stream]:
        raise NotImplementedError(request)

    async def close(self) -> None:
        """Nothing is open."""


def test_what_is_sent_again_after_a_429_asks_again() -> None:
    """The pause that the server asks for may be longer than the rest of a lease."""

    async def main() -> None:
        server = Server(refusal(429, "TooManyRequests", **{"retry-after": "20"}))
        clock = LoopClock(EPOCH)
        client = Client(server, field_manager="x", clock=clock).fence_writes(lambda: clock.monotonic() < 1010)
        with pytest.raises(ConnectionError, match="does not lead any more; nothing was sent"):
            await client.merge_patch(NODES, "n", {"metadata": {"labels": {"a": "b"}}})
        assert server.asked == ["PATCH"]

    run_virtual(main())


def test_events_end_with_the_leadership_too() -> None:
    async def main() -> None:
        server, leads = Server(), True
        clock = LoopClock(EPOCH)
        client = Client(server, field_manager="x", clock=clock).fence_writes(lambda: leads)
        events = EventRecorder(client.with_field_manager("y"), component="x", clock=clock, rng=random.Random(1))
        events.record(make_reference(NODES, "n"), "Reason", "note")
        leads = False
        async with asyncio.timeout(600):
            await events.flush()
        assert server.asked == []
        assert events.dropped == 1

    run_virtual(main())


def test_who_leads_writes_and_who_does_not_still_reads() -> None:
    async def main() -> None:
        server, leads = Server(), True
        client = Client(server, field_manager="x", clock=LoopClock(EPOCH)).fence_writes(lambda: leads)
        await client.create(CONFIGMAPS, {}, "n")
        await client.delete(CONFIGMAPS, "c", "n")
        leads = False
        await client.get(CONFIGMAPS, "c", "n")
        with pytest.raises(ConnectionError):
            await client.create(CONFIGMAPS, {}, "n")
        assert server.asked == ["POST", "DELETE", "GET"]

    run_virtual(main())
