"""The reading behind ``tessera map --watch`` where the API server is lost at an unlucky moment."""

import asyncio
import random
from collections.abc import AsyncGenerator
from contextlib import AbstractAsyncContextManager, aclosing
from typing import cast

from tests.cluster.conftest import in_lab
from tests.support.mortal_transport import ForwardingTransport
from tests.support.virtual_lab import InLab, VirtualLab

from tessera.kube.client import Client
from tessera.kube.requests import Request, Response, Stream
from tessera.observe.cluster_reading import ClusterReading, watch_cluster
from tessera_lab.apiserver.main.inprocess_transport import InProcessTransport
from tessera_lab.cluster.cluster import ADMIN

__all__ = ["in_lab"]


class Cable(ForwardingTransport):
    """A connection that a test cuts and mends."""

    cut = False

    async def request(self, request: Request) -> Response:
        self._check()
        return await super().request(request)

    def stream(self, request: Request) -> AbstractAsyncContextManager[Stream]:
        self._check()
        return super().stream(request)

    def _check(self) -> None:
        if self.cut:
            raise ConnectionError("the cable is cut")


def names(reading: ClusterReading) -> set[str]:
    """The names of the pods of a reading."""
    return {each.metadata.name for each in reading.pods or ()}


def test_a_server_that_is_lost_before_the_watches_begin_is_told_and_followed_later(in_lab: InLab) -> None:
    async def scenario(lab: VirtualLab) -> None:
        cable = Cable(InProcessTransport(lab.cluster.server, ADMIN))
        client = Client(cable, field_manager="reader", clock=lab.clock)
        readings = cast("AsyncGenerator[ClusterReading]", watch_cluster(client, lab.clock, random.Random(1)))
        async with aclosing(readings), asyncio.timeout(60):
            first = await anext(readings)
            cable.cut = True
            lost = await anext(readings)
            assert (first.failure, lost.instaslices) == (None, first.instaslices)
            assert "the cable is cut" in str(lost.failure)
            cable.cut = False
            await lab.create("late", {"nvidia.com/mig-1g.5gb": 1})
            while (reading := await anext(readings)).failure or "late" not in names(reading):
                pass

    in_lab(scenario)
