"""A replica of the page in the cluster, with the agents' pages read through the API server."""

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest
from tests.observe.conftest import AgentCluster, card, lease
from tests.support.api_user import pod
from tests.support.ports import free_port

from tessera.api.instaslice import KIND_MISSING
from tessera.api.nodes.usage import NodeUsage
from tessera.clock import SystemClock
from tessera.dashboard.explainer import PAGE_EXPLANATIONS
from tessera.dashboard.in_cluster import PageOptions, PageReplica
from tessera.webhook.certificates import issue
from tessera_lab.apiserver.interfaces import UserInfo

TIMEOUT = 60.0


class Replica:
    """A running replica."""

    def __init__(self, session: aiohttp.ClientSession, port: int, health: int, page: PageReplica) -> None:
        self.session = session
        self.port = port
        self.health = health
        self.page = page

    async def read(self, path: str, until: bytes) -> bytes:
        """Reads a feed until it has a text."""
        headers = {"Authorization": "Bearer secret"}
        url = f"http://127.0.0.1:{self.port}{path}"
        async with asyncio.timeout(TIMEOUT), self.session.get(url, headers=headers, read_bufsize=2**22) as answer:
            text = b""
            async for line in answer.content:
                text += line
                if until in text:
                    return text
        raise AssertionError(f"{until!r} is not in {text!r}")

    async def readiness(self) -> str:
        """Status and text of ``/readyz``; empty until the port is open."""
        try:
            async with self.session.get(f"http://127.0.0.1:{self.health}/readyz") as answer:
                return f"{answer.status} {await answer.text()}"
        except aiohttp.ClientConnectorError:
            return ""


@asynccontextmanager
async def replica(cluster: AgentCluster, *, tls: Path | None = None) -> AsyncIterator[Replica]:
    health = free_port()
    listening = asyncio.get_running_loop().create_future()
    options = PageOptions(
        address="127.0.0.1",
        port=0,
        http_port=health,
        tls_folder=tls,
        on_listening=lambda _, port: listening.set_result(port),
    )
    page = PageReplica(options, cluster.client(), SystemClock(), random.Random(1))
    running = asyncio.create_task(page.run())
    try:
        async with aiohttp.ClientSession() as session:
            yield Replica(session, await listening, health, page)
    finally:
        running.cancel()
        await asyncio.wait([running])


@pytest.fixture
def cluster() -> AgentCluster:
    found = AgentCluster()
    found.server.identities.static["secret"] = UserInfo(name="ann", groups=("system:masters",))
    found.server.identities.static["robot"] = UserInfo(
        name="system:serviceaccount:team:robot", groups=("system:masters",)
    )
    return found


async def test_a_visitor_sees_cards_that_the_account_has_read(cluster: AgentCluster) -> None:
    await cluster.begin()
    await cluster.add_agent("n1", NodeUsage(node="n1", cards=(card(),), leases=(lease("alpha"),)))
    async with replica(cluster) as page:
        text = await page.read("/feed", b"alpha")
        assert b'"card/n1/GPU-1"' in text


async def add_waiting_pod(cluster: AgentCluster) -> None:
    waiting = pod("waits")
    waiting["spec"]["containers"][0]["resources"] = {"limits": {"nvidia.com/gpu": "1"}}
    await cluster.api("POST", "/api/v1/namespaces/default/pods", waiting)


async def test_a_waiting_pod_is_explained_from_what_the_page_mirrors(cluster: AgentCluster) -> None:
    await cluster.begin()
    await add_waiting_pod(cluster)
    async with replica(cluster) as page:
        await page.read("/feed", b'"waits"')
        assert b"not-offered" in await page.read("/why/default/waits", b"not-offered")
        assert b"not found" in await page.read("/why/default/gone", b"not found")


async def test_one_who_asks_for_reasons_without_end_takes_no_answer_from_another(cluster: AgentCluster) -> None:
    await cluster.begin()
    await add_waiting_pod(cluster)
    async with replica(cluster) as page:
        await page.read("/feed", b'"waits"')
        url = f"http://127.0.0.1:{page.port}/why/default/waits"

        async def ask(token: str) -> int:
            async with page.session.get(url, headers={"Authorization": f"Bearer {token}"}) as answer:
                return answer.status

        async def ask_again_and_again() -> None:
            while True:
                await ask("robot")

        crowd = [asyncio.create_task(ask_again_and_again()) for _ in range(2 * PAGE_EXPLANATIONS)]
        await ask("robot")
        assert [await ask("secret") for _ in range(20)] == [200] * 20
        for each in crowd:
            each.cancel()
        await asyncio.wait(crowd)


async def test_the_replica_is_ready_once_it_has_read_the_cluster(cluster: AgentCluster) -> None:
    await cluster.begin(kind=False)
    async with replica(cluster) as page:
        async with asyncio.timeout(TIMEOUT):
            while "instaslices" not in (text := await page.readiness()):  # noqa: ASYNC110 - a page has no event
                await asyncio.sleep(0.01)
        assert text == f"503 instaslices are not read yet: {KIND_MISSING}\n"


async def test_a_mounted_certificate_makes_the_page_https(cluster: AgentCluster, tmp_path: Path) -> None:
    await cluster.begin()
    made = issue(["127.0.0.1"], SystemClock().now(), days=1)
    (tmp_path / "tls.crt").write_bytes(made.certificate)
    (tmp_path / "tls.key").write_bytes(made.key)
    async with replica(cluster, tls=tmp_path) as page:
        url = f"https://localhost:{page.port}"
        async with page.session.get(f"{url}/", ssl=False, headers={"Origin": url}) as answer:
            assert answer.status == 200
