"""Visits of the page over HTTP, by token: what each visitor's feed has, and hostile ones."""

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import aiohttp
import pytest
from tests.dashboard.guarded import Guarded
from tests.dashboard.test_server import event, explain

from tessera.access.reviewer import Reviewer
from tessera.dashboard import feed as feed_module
from tessera.dashboard.documents import CardDocument, LeaseDocument, SummaryDocument
from tessera.dashboard.feed import FeedGroup
from tessera.dashboard.origins import PageNames
from tessera.dashboard.server import PAGE_HEADER, PAGE_HEADERS, PageAddress, PageServer
from tessera.dashboard.visitors import PERSON_READERS, RIGHTS_LIFE, Rights, TokenGate

TIMEOUT = 60.0
FORGED = {"Authorization": "Bearer forged"}


def card(node: str, namespace: str, pod: str) -> CardDocument:
    lease = LeaseDocument(
        namespace=namespace,
        pod=pod,
        container="main",
        owner="",
        kind="whole",
        share=1.0,
        state="busy",
        evidence="",
        held=1.0,
        wasted=0.0,
    )
    return CardDocument(
        node=node, index=0, uuid=f"GPU-{pod}", model="H100", mig=False, slots=0, held=1.0, leases=(lease,)
    )


def cards_in(text: str) -> int:
    """The number of cards in a snapshot."""
    return sum(key.startswith("card/") for key in json.loads(text)["set"])


class Visits:
    """A page in a cluster with two teams, each with a pod on a card of its own."""

    def __init__(
        self, port: int, session: aiohttp.ClientSession, cluster: Guarded, server: PageServer, feeds: FeedGroup
    ) -> None:
        self.port = port
        self.feeds = feeds
        self.cluster = cluster
        self.server = server
        self.session = session

    def get(self, path: str, user: str = "", **headers: str) -> "aiohttp.client._RequestContextManager":
        token = {"Authorization": f"Bearer token-{user}"} if user else {}
        given = {name.replace("_", "-"): value for name, value in headers.items()}
        return self.session.get(f"http://127.0.0.1:{self.port}{path}", headers={**token, **given})

    async def feed(self, user: str = "") -> str:
        """The first event of a visitor's feed."""
        async with self.get("/feed", user) as answer:
            assert answer.status == 200
            return (await event(answer))["data"]

    async def until(self, condition: Any) -> None:
        async with asyncio.timeout(TIMEOUT):
            while not condition():  # noqa: ASYNC110 - the server tells nobody
                await asyncio.sleep(0.01)


@asynccontextmanager
async def visits(*others: str, nameless: bool = False, cards: int = 0) -> AsyncIterator[Visits]:
    cluster = Guarded("admin", "ann", "bob", "eve", *others)
    await cluster.begin()
    await cluster.let("admin", "nodes")
    await cluster.let("admin", "pods")
    await cluster.let("ann", "pods", ["team-a"])
    await cluster.let("bob", "pods", ["team-b"])
    feeds = FeedGroup()
    shown = {"card/n1/a": card("node-1", "team-a", "alpha"), "card/n2/b": card("node-2", "team-b", "beta")}
    shown |= {f"card/n3/{number}": card("node-3", "team-c", f"more-{number}") for number in range(cards)}
    summary = SummaryDocument(nodes=2, cards=2, pods=2, waiting=0, held=2.0, measured=0)
    feeds.publish({**shown, "summary": summary})
    reviewer = Reviewer(cluster.page)
    rights = Rights(reviewer, cluster.clock, lambda: feeds.about)
    gate = TokenGate(reviewer, rights, cluster.clock, nameless=nameless)
    address = PageAddress("127.0.0.1", 0, PageNames(["https://gpu.example.com"], loopback=True))
    server, listening = PageServer(feeds, explain, address, gate, 0.01), asyncio.get_running_loop().create_future()
    running = asyncio.create_task(server.run(lambda _, port: listening.set_result(port)))
    try:
        async with aiohttp.ClientSession() as session:
            yield Visits(await listening, session, cluster, server, feeds)
    finally:
        running.cancel()
        await asyncio.wait([running])


@pytest.mark.parametrize(
    ("user", "names", "hidden"),
    [
        ("admin", ["node-1", "node-2", "alpha", "beta", "team-a", "team-b"], []),
        ("ann", ["alpha", "team-a"], ["beta", "team-b", "node-1", "node-2"]),
        ("bob", ["beta", "team-b"], ["alpha", "team-a", "node-1", "node-2"]),
        ("eve", [], ["alpha", "beta", "team-a", "team-b", "node-1", "node-2"]),
    ],
)
async def test_each_visitor_sees_all_cards_and_the_names_that_its_rights_allow(
    user: str, names: list[str], hidden: list[str]
) -> None:
    async with visits() as page:
        text = await page.feed(user)
        assert cards_in(text) == 2
        assert all(name in text for name in names)
        assert not any(name in text for name in hidden)


async def test_without_a_token_the_page_asks_to_log_in() -> None:
    async with visits() as page:
        for headers in ({}, FORGED):
            async with page.get("/feed", **headers) as answer:
                assert (answer.status, answer.headers["WWW-Authenticate"]) == (401, "Bearer")
                body = await answer.json()
                assert (body["login"], bool(body["error"])) == (True, True)
        async with page.get("/") as answer:
            assert answer.status == 200


async def test_where_it_is_allowed_visitors_without_a_token_see_cards_without_names() -> None:
    async with visits(nameless=True) as page:
        text = await page.feed()
        assert cards_in(text) == 2
        assert not any(name in text for name in ("alpha", "beta", "team-", "node-"))
        async with page.get("/feed", **FORGED) as answer:
            assert answer.status == 401


async def test_a_right_that_is_withdrawn_hides_names_on_an_open_feed() -> None:
    async with visits() as page, page.get("/feed", "ann") as answer:
        assert "alpha" in (await event(answer))["data"]
        await page.cluster.forbid("ann", "pods", "team-a")
        page.cluster.clock.seconds += RIGHTS_LIFE / 2
        async with asyncio.timeout(TIMEOUT):
            after = await event(answer)
        assert after["event"] == "snapshot"
        assert "alpha" not in after["data"]


async def test_a_right_that_is_given_shows_names_on_an_open_feed() -> None:
    async with visits() as page, page.get("/feed", "eve") as answer:
        assert "beta" not in (await event(answer))["data"]
        await page.cluster.let("eve", "pods", ["team-b"])
        page.cluster.clock.seconds += RIGHTS_LIFE / 2
        async with asyncio.timeout(TIMEOUT):
            assert "beta" in (await event(answer))["data"]


async def test_a_token_that_is_withdrawn_ends_an_open_feed() -> None:
    async with visits() as page, page.get("/feed", "ann") as answer:
        await event(answer)
        page.cluster.server.identities.static.clear()
        page.cluster.clock.seconds += RIGHTS_LIFE / 2
        async with asyncio.timeout(TIMEOUT):
            assert await answer.content.read() == b""


async def test_an_event_id_of_one_who_may_see_more_brings_no_more() -> None:
    async with visits() as page:
        async with page.get("/feed", "admin") as answer:
            seen = await event(answer)
        async with page.get("/feed", "eve", Last_Event_ID=seen["id"]) as answer:
            text = await event(answer)
            assert (text["event"], "alpha" in text["data"]) == ("snapshot", False)


async def test_why_is_for_those_who_may_list_the_pods() -> None:
    async with visits() as page:
        for user, namespace, status in (("ann", "team-a", 200), ("ann", "team-b", 403), ("eve", "team-a", 403)):
            async with page.get(f"/why/{namespace}/a", user) as answer:
                assert answer.status == status, (user, namespace)
        async with page.get("/why/team-a/a") as answer:
            assert answer.status == 401


async def test_a_visitor_is_told_who_it_is() -> None:
    async with visits() as page, page.get("/whoami", "ann") as answer:
        assert await answer.json() == {"user": "ann", "nodes": False, "namespaces": ["team-a"], "past": []}


@pytest.mark.parametrize("query", ["token=x", "access_token=x", "a=b&Token=x", "bearer=x"])
async def test_a_token_in_the_address_is_refused(query: str) -> None:
    async with visits() as page, page.get(f"/feed?{query}", "ann") as answer:
        assert answer.status == 400
        assert "Authorization: Bearer" in (await answer.json())["error"]


@pytest.mark.parametrize("user", ["", "ann"])
async def test_a_name_that_was_pointed_to_the_page_is_refused_with_and_without_a_token(user: str) -> None:
    async with visits(nameless=True) as page:
        for headers in ({"Host": "evil.example"}, {"Origin": "https://evil.example"}):
            async with page.get("/feed", user, **headers) as answer:
                assert answer.status == 403
        async with page.get("/feed", user, Host="gpu.example.com", Origin="https://gpu.example.com") as answer:
            assert answer.status == 200


async def test_headers_are_bounded_in_size_and_number() -> None:
    async with visits() as page:
        async with page.get("/feed", "x" * (PAGE_HEADER + 1)) as answer:
            assert answer.status == 400
        many = {f"X-{number}": "1" for number in range(PAGE_HEADERS + 1)}
        async with page.get("/feed", "ann", **many) as answer:
            assert answer.status == 400
        assert "alpha" in await page.feed("ann")


async def test_one_user_cannot_take_the_places_of_all() -> None:
    async with visits() as page:
        opened = [await page.get("/feed", "ann") for _ in range(PERSON_READERS)]
        async with page.get("/feed", "ann") as answer:
            assert (answer.status, answer.headers["Retry-After"]) == (429, "5")
        assert "beta" in await page.feed("bob")
        opened[0].close()
        await page.until(lambda: page.server.readers < PERSON_READERS)
        assert "alpha" in await page.feed("ann")
        for each in opened:
            each.close()


async def test_service_accounts_with_odd_rights_close_the_page_for_nobody() -> None:
    teams = [f"team-{letter}" for letter in "abcdef"]
    robots = [f"system:serviceaccount:team-e:robot-{number}" for number in range(20)]
    robots += [f"system:serviceaccount:team-f:robot-{number}" for number in range(20)]
    async with visits(*robots) as page, AsyncExitStack() as open_feeds:
        page.feeds.publish({f"card/n/{team}": card("node-1", team, f"pod-of-{team}") for team in teams})
        for number, robot in enumerate(robots):
            rights = [team for bit, team in enumerate(teams) if number + 1 >> bit & 1]
            await page.cluster.let(robot, "pods", rights)
            page.cluster.clock.seconds += 1
            if number % 20 < PERSON_READERS:
                answer = await open_feeds.enter_async_context(page.get("/feed", robot))
                assert answer.status == 200
        for user in ("admin", "ann", "bob", "eve"):
            assert cards_in(await page.feed(user)) == len(teams)


async def test_who_has_most_feeds_open_gives_one_up_to_another(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tessera.dashboard.server.PAGE_READERS", 3)
    async with visits() as page, AsyncExitStack() as open_feeds:
        crowd = [await open_feeds.enter_async_context(page.get("/feed", "ann")) for _ in range(3)]
        mine = await open_feeds.enter_async_context(page.get("/feed", "bob"))
        await event(mine)
        async with asyncio.timeout(TIMEOUT):
            with pytest.raises(aiohttp.ClientPayloadError):
                await crowd[-1].read()
        async with page.get("/feed", "ann") as answer:
            assert answer.status == 503
        assert page.server.readers == 3


async def test_a_reader_that_takes_nothing_is_cut_off_and_disturbs_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feed_module, "PAGE_WRITE_TIME", 200)
    request = b"GET /feed HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer token-ann\r\n\r\n"
    async with visits(cards=20_000) as page:
        with socket.socket() as sock:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            sock.setblocking(False)
            loop = asyncio.get_running_loop()
            await loop.sock_connect(sock, ("127.0.0.1", page.port))
            await loop.sock_sendall(sock, request)
            await page.until(lambda: page.server.readers == 1)
            async with page.get("/whoami", "bob") as answer:
                assert answer.status == 200
            await page.until(lambda: page.server.readers == 0)


async def test_a_body_is_not_read() -> None:
    async with visits() as page:
        reader, writer = await asyncio.open_connection("127.0.0.1", page.port)
        writer.write(b"GET / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000000000\r\n\r\n")
        async with asyncio.timeout(TIMEOUT):
            assert b" 200 " in await reader.readline()
        writer.transport.abort()
