"""A fleet changes its driver behind a network that takes its time: parts of one controller do not overtake each other.

In the lab a watch shows a write at once. Here answers and watches come late, as on a real cluster, so what is decided
in between is decided from an old view.
"""

import asyncio
import random
import tempfile
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from tests.cluster.conftest import COMMANDS
from tests.cluster.test_driver_rollout import COSTS, IMAGES, KERNEL, NEW, OLD, Fleet

from tessera.clock import LoopClock
from tessera.kube.client import Client
from tessera.kube.transport import Request, Response, Stream
from tessera.lab.apiserver.identity import service_account
from tessera.lab.apiserver.inprocess import InProcessTransport
from tessera.lab.apiserver.seams import UserInfo
from tessera.lab.apiserver.server import ApiServer
from tessera.lab.cluster import Cluster, ClusterOptions
from tessera.lab.drivers.world import catalogue
from tessera.lab.install import entrypoint, install
from tessera.lab.nodespec import parse_nodes
from tessera.lab.virtualtime import run_virtual

#: Seconds that a request and its answer take, on average; seconds after which a watch shows a write.
ROUND_TRIP, WATCH = 0.02, 0.05
CONTROLLER = "system:serviceaccount:tessera-system:tessera-controller"


class Late:
    """A watch that comes late, in order."""

    def __init__(self, inner: Stream) -> None:
        self._inner = inner
        self.status, self.headers = inner.status, inner.headers

    async def read(self) -> bytes:
        return await self._inner.read()

    async def chunks(self) -> AsyncIterator[bytes]:
        loop = asyncio.get_running_loop()
        waiting: asyncio.Queue[tuple[float, bytes | None]] = asyncio.Queue()

        async def follow() -> None:
            async for chunk in self._inner.chunks():
                waiting.put_nowait((loop.time() + WATCH, chunk))
            waiting.put_nowait((0.0, None))

        following = asyncio.create_task(follow())
        try:
            while True:
                when, chunk = await waiting.get()
                if chunk is None:
                    return
                await asyncio.sleep(max(0.0, when - loop.time()))
                yield chunk
        finally:
            following.cancel()


class Distant(InProcessTransport):
    """The API server as one reaches it over a network."""

    def __init__(self, server: ApiServer, user: UserInfo, rng: random.Random) -> None:
        super().__init__(server, user)
        self._rng = rng

    async def request(self, request: Request) -> Response:
        await asyncio.sleep(self._rng.uniform(0.0, ROUND_TRIP))
        answer = await super().request(request)
        await asyncio.sleep(self._rng.uniform(0.0, ROUND_TRIP))
        return answer

    @asynccontextmanager
    async def stream(self, request: Request) -> AsyncIterator[Stream]:
        async with super().stream(request) as found:
            yield Late(found)


class DistantCluster(Cluster):
    """A cluster in which Tessera's parts are far from the API server."""

    def account_client(self, component: str, namespace: str, account: str) -> Client:
        transport = Distant(self.server, service_account(namespace, account), self.rng(component))
        return Client(transport, field_manager=component, clock=self.clock)


def test_few_writes_of_a_rollout_fail_and_none_is_made_twice(tmp_path: Path) -> None:
    async def play() -> None:
        options = ClusterOptions(
            cdi=Path(tempfile.mkdtemp(dir=tmp_path)),
            mig_config="",
            drivers=True,
            kernel=KERNEL,
            os_image="Ubuntu 22.04.3 LTS",
            catalogue=catalogue(COSTS, IMAGES),
        )
        nodes = parse_nodes("4*1xA100-40GB")
        cluster = DistantCluster(
            nodes, clock=LoopClock(1_800_000_000), options=options, entrypoint=entrypoint(COMMANDS)
        )
        async with cluster.running():
            await install(cluster.client("install"))
            fleet = Fleet(cluster)
            async with fleet.watched.running():
                await fleet.ask_for(OLD)
                await fleet.reach(fleet.all_serve, "every node serves with the old driver")
                assert outcomes(cluster)[409] == 0
                cluster.server.audit.clear()
                await fleet.ask_for(NEW)
                await fleet.reach(lambda: set(fleet.states().values()) == {"upgrade-done"}, "all are done")
                # The agent, kubelet and what was told just before a node began may still come in between.
                assert outcomes(cluster)[409] <= 5 * len(nodes)
                # A dozen steps, each of them told once: in an annotation and in a condition.
                assert sum(outcomes(cluster).values()) <= 45 * len(nodes)

    run_virtual(play())


def outcomes(cluster: Cluster) -> Counter[int]:
    """What became of the controller's writes of nodes."""
    return Counter(
        each.code
        for each in cluster.server.audit
        if each.is_write and each.user == CONTROLLER and each.resource == "nodes"
    )
