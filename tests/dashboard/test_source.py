"""Reading of the cluster for the page: only while somebody looks, and a missing right is shown."""

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from contextlib import ExitStack
from typing import Any

import msgspec
import pytest
from tests.observe.conftest import AgentCluster, card
from tests.observe.test_agent_pages import Except

from tessera.api.instaslice import INSTASLICES, KIND_MISSING
from tessera.api.nodes.usage import NodeUsage
from tessera.clock import SystemClock
from tessera.dashboard import source as source_module
from tessera.dashboard.feed import FeedGroup
from tessera.dashboard.source import ClusterSource
from tessera.forecast.queue_page import QueuePage, SpareSlices
from tessera.kube.client import Client
from tessera.kube.resources import CRDS
from tessera.signals.page import Service, SignalsPage
from tessera.usage.record import RECORD_KEY, RECORD_NAME, UsageRecord, encode_record
from tessera.visibility import FULL
from tessera_lab.apiserver.interfaces import UserInfo

TIMEOUT = 60.0


async def play(
    cluster: AgentCluster,
    until: Callable[[bytes], Any],
    *,
    watched: bool = True,
    controller: QueuePage | None = None,
    record: str = "",
    user: UserInfo | None = None,
    steps: Sequence[tuple[Callable[[bytes], Any], Callable[[], Awaitable[None]]]] = (),
) -> None:
    """Runs a source until a snapshot of its feed is as wanted; before that, until each step is due, which is taken."""
    await cluster.begin()
    await cluster.add_agent("n1", NodeUsage(node="n1", cards=(card(),)))
    if record:
        data = {"metadata": {"name": RECORD_NAME}, "data": {RECORD_KEY: record}}
        await cluster.api("POST", "/api/v1/namespaces/tessera-system/configmaps", data)
    if controller is not None:
        await cluster.add_controller(controller)
    feeds, clock = FeedGroup(), SystemClock()
    client = cluster.client(user)
    source = ClusterSource(client, feeds, watched=lambda: watched, clock=clock, rng=random.Random(1))
    running, readers = asyncio.create_task(source.run()), ExitStack()
    try:
        async with asyncio.timeout(TIMEOUT):
            feed = readers.enter_context(feeds.join(FULL, "ann"))
            version: int | None = 0
            for is_due, act in (*steps, (until, None)):
                while True:
                    await feed.wait(version)
                    update = feed.read(None)
                    assert update is not None
                    version = update.version
                    if is_due(update.texts[0]):
                        break
                if act is not None:
                    await act()
    finally:
        readers.close()
        running.cancel()
        await asyncio.wait([running])


async def test_cards_of_the_agents_are_published(cluster: AgentCluster) -> None:
    await play(cluster, lambda text: b'"card/n1/GPU-1"' in text)


async def test_services_are_published_as_the_controller_tells_them(cluster: AgentCluster) -> None:
    service = Service(namespace="team", kind="Deployment", name="vllm", wanted=3, ready=2, placed=2)
    cluster.signals = msgspec.json.encode(SignalsPage(leads=True, services=(service,)))
    expected = b'"service/team/Deployment/vllm":{"namespace":"team","kind":"Deployment","name":"vllm","ready":2'
    await play(cluster, lambda text: expected in text and b"unserved" not in text, controller=QueuePage(leads=True))


async def test_spare_slices_teams_and_the_number_of_services_that_are_not_told_are_published(
    cluster: AgentCluster,
) -> None:
    cluster.signals = msgspec.json.encode(SignalsPage(leads=True, cut=3))
    spare = SpareSlices(queue="web", profile="1g.10gb", free=1, wanted=2)
    record = encode_record(UsageRecord(began=1.0, team_label="example.com/team", teams={"a": "red"}))
    expected = (
        b'"spare/web/1g.10gb":{"queue":"web","profile":"1g.10gb","free":1,"wanted":2',
        b'"team/a":{"namespace":"a","team":"red"}',
        b'"servicesCut":3',
    )
    queue = QueuePage(leads=True, spare=(spare,))
    await play(cluster, lambda text: all(each in text for each in expected), controller=queue, record=record)


async def test_a_controller_that_tells_no_services_is_named(cluster: AgentCluster) -> None:
    await play(cluster, lambda text: b'"unserved":true,"unservedDetail":"no controller runs in tessera-system;' in text)


async def test_a_missing_right_is_shown_on_the_page(cluster: AgentCluster) -> None:
    cluster.server.parts.authorizer = Except("pods", "proxy", None)
    await play(cluster, lambda text: b"ClusterRole tessera-usage-reader" in text)


async def test_a_user_without_rights_sees_what_is_refused(cluster: AgentCluster) -> None:
    await play(cluster, lambda text: b'"failure/pods"' in text and b"jane" in text, user=UserInfo(name="jane"))


async def test_a_kind_that_is_deleted_is_unknown_until_it_is_back(cluster: AgentCluster) -> None:
    lacks = KIND_MISSING.encode()

    async def delete() -> None:
        await cluster.client().delete(CRDS, INSTASLICES.label)

    def is_well(text: bytes) -> bool:
        return b'"card/n1/GPU-1"' in text and b'"failure/' not in text

    await play(cluster, is_well, steps=[(is_well, delete), (lambda text: lacks in text, cluster.add_kind)])


async def test_a_server_that_is_silent_is_told_until_it_answers(
    cluster: AgentCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its connections stay, as those of a stopped process or a lost machine do: watches break minutes later."""
    monkeypatch.setattr(source_module, "PERIOD", 0.1)
    monkeypatch.setattr(source_module, "PATIENCE", 0.1)
    answers, request = asyncio.Event(), Client.request
    answers.set()

    async def ask(client: Client, *arguments: Any, **options: Any) -> Any:
        await answers.wait()
        return await request(client, *arguments, **options)

    monkeypatch.setattr(Client, "request", ask)

    async def fall_silent() -> None:
        answers.clear()

    async def recover() -> None:
        answers.set()

    def is_well(text: bytes) -> bool:
        return b'"card/n1/GPU-1"' in text and b'"failure/' not in text

    silent = b"the API server has not answered for 0 s: what is shown may be old"
    await play(cluster, is_well, steps=[(is_well, fall_silent), (lambda text: silent in text, recover)])


async def test_agents_are_not_asked_while_nobody_looks(cluster: AgentCluster) -> None:
    cluster.pages.clear()
    await play(cluster, lambda text: b'"summary"' in text and b"card/" not in text, watched=False)


@pytest.fixture
def cluster() -> AgentCluster:
    return AgentCluster()
