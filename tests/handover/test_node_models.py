"""The models of KServe are read in a cluster that has LocalModelNodes, and only there."""

import asyncio
import random
from contextlib import AbstractAsyncContextManager
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest

from tessera.clock import LoopClock
from tessera.controller.satellite import Term
from tessera.handover.satellite import LocalModels
from tessera.kube.client import Client
from tessera.kube.informer import LOOK_SELDOM
from tessera.kube.leader_election import KubeRuntime
from tessera.kube.requests import Request, Response, Stream
from tessera_lab.simulation.virtual_time import run_virtual

GROUP = "/apis/serving.kserve.io/v1alpha1"


class Discovery:
    """A server that gives an answer about KServe's group."""

    def __init__(self, body: bytes, status: int = 200) -> None:
        self.body, self.status = body, status
        self.asked: list[str] = []

    async def request(self, request: Request) -> Response:
        self.asked.append(request.path)
        if request.path == GROUP:
            return Response(status=self.status, body=self.body)
        return Response(status=200, body=b'{"metadata": {"resourceVersion": "1"}, "items": []}')

    def stream(self, request: Request) -> AbstractAsyncContextManager[Stream]:
        raise ConnectionError

    async def close(self) -> None:
        pass


def kinds(*names: str) -> bytes:
    return msgspec.json.encode({"resources": [{"name": each} for each in names]})


@pytest.mark.parametrize(
    ("body", "status"),
    [(kinds("servingruntimes", "localmodelnodes/status"), 200), (b"{}", 404), (b"no JSON", 200), (b"[]", 200)],
)
def test_the_kind_is_asked_for_seldom_until_it_is_there(body: bytes, status: int) -> None:
    async def story() -> None:
        clock = LoopClock(0)
        server = Discovery(body, status)
        client = Client(server, field_manager="test", clock=clock)
        runtime = KubeRuntime(client=client, clock=clock, rng=random.Random(0))
        parts: Any = SimpleNamespace(runtime=runtime, slicer=None, wake=None)
        running = asyncio.create_task(LocalModels(cast(Term, parts)).run())
        await asyncio.sleep(6 * LOOK_SELDOM)
        assert set(server.asked) == {GROUP}
        assert len(server.asked) < 12
        server.body, server.status = kinds("servingruntimes", "localmodelnodes"), 200
        await asyncio.sleep(LOOK_SELDOM)
        assert f"{GROUP}/localmodelnodes" in server.asked
        running.cancel()

    run_virtual(story())
