"""A watch that seems well and loses lines: a slow list heals the mirror, and costs little."""

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import pytest
from tests.support.api_user import ADMIN
from tests.support.tasks import cancel_tasks

from tessera.clock import LoopClock
from tessera.kube.client import Client
from tessera.kube.informer import Informer
from tessera.kube.requests import Request, Response, Stream
from tessera.kube.resources import CONFIGMAPS
from tessera_lab.apiserver.main.inprocess_transport import InProcessTransport
from tessera_lab.apiserver.main.server import ApiServer
from tessera_lab.simulation.virtual_time import run_virtual

#: The longest time until a lost line is healed: a list that is due 20 minutes after the last one waits for the end of a
#: watch of 10 minutes.
LONGEST = 1800


class LossyTransport:
    """A proxy that swallows the next lines of a watch, and nothing else."""

    def __init__(self, inner: InProcessTransport) -> None:
        self._inner = inner
        self.swallows = 0

    async def request(self, request: Request) -> Response:
        return await self._inner.request(request)

    async def close(self) -> None:
        await self._inner.close()

    def stream(self, request: Request) -> AbstractAsyncContextManager[Stream]:
        return self._lossy(request)

    @asynccontextmanager
    async def _lossy(self, request: Request) -> AsyncIterator[Stream]:
        async with self._inner.stream(request) as stream:
            original = stream.chunks

            async def chunks() -> AsyncIterator[bytes]:
                async for chunk in original():
                    kept = b"".join(line for line in chunk.splitlines(keepends=True) if not self._takes(line))
                    if kept:
                        yield kept

            stream.chunks = chunks  # type: ignore[method-assign]
            yield stream

    def _takes(self, line: bytes) -> bool:
        if b'"BOOKMARK"' in line or not self.swallows:
            return False
        self.swallows -= 1
        return True


class Scene:
    """A server, a client beside the proxy, and a mirror behind it."""

    def __init__(self, **scope: Any) -> None:
        self.clock = LoopClock(1_700_000_000.0)
        self.server = ApiServer(self.clock)
        self.proxy = LossyTransport(InProcessTransport(self.server, ADMIN))
        self.direct = Client(InProcessTransport(self.server, ADMIN), field_manager="test", clock=self.clock)
        behind = Client(self.proxy, field_manager="mirror", clock=self.clock)
        self.mirror = Informer(behind, CONFIGMAPS, clock=self.clock, rng=random.Random(3), namespace="default", **scope)
        self.events: list[str] = []
        self.mirror.add_handler(lambda event: self.events.append(f"{event.kind} {event.object.metadata.name}"))

    async def make(self, *names: str) -> None:
        for name in names:
            meta = {"name": name, "labels": {"app": "a"}}
            await self.direct.create(CONFIGMAPS.as_dicts(), {"metadata": meta, "data": {"v": "1"}}, "default")

    async def lists(self) -> int:
        return sum(entry.verb == "list" for entry in self.server.audit)

    @property
    def shown(self) -> dict[str, str]:
        return {each.metadata.name: each.data["v"] for each in self.mirror.cache.values()}


def play(story: Callable[[Scene], Any], **scope: Any) -> None:
    async def run() -> None:
        scene = Scene(**scope)
        await scene.make("a", "b")
        task = asyncio.create_task(scene.mirror.run())
        try:
            await scene.mirror.wait_synced()
            await story(scene)
        finally:
            await cancel_tasks([task])

    run_virtual(run())


@pytest.mark.parametrize("scope", [{}, {"label_selector": "app=a"}], ids=["all", "selected"])
def test_what_a_watch_lost_is_there_within_half_an_hour(scope: dict[str, str]) -> None:
    async def story(scene: Scene) -> None:
        scene.proxy.swallows = 3
        await scene.direct.merge_patch(CONFIGMAPS, "a", {"data": {"v": "2"}}, "default")
        await scene.direct.delete(CONFIGMAPS, "b", "default")
        await scene.make("c")
        await scene.clock.sleep(60)
        assert (scene.shown, scene.proxy.swallows) == ({"a": "1", "b": "1"}, 0)
        await scene.clock.sleep(LONGEST)
        assert scene.shown == {"a": "2", "c": "1"}
        assert sorted(scene.events[2:]) == ["ADDED c", "DELETED b", "MODIFIED a"]

    play(story, **scope)


@pytest.mark.parametrize("scope", [{}, {"label_selector": "app=a"}], ids=["all", "selected"])
def test_a_quiet_mirror_lists_a_few_times_in_an_hour_and_tells_nothing(scope: dict[str, str]) -> None:
    async def story(scene: Scene) -> None:
        before, told = await scene.lists(), list(scene.events)
        await scene.clock.sleep(10 * 3600)
        assert 10 * 3600 / LONGEST <= await scene.lists() - before <= 10 * 3600 / 600
        assert scene.events == told

    play(story, **scope)
