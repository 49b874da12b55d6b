"""The page's server: names and origins, headers, the feed and its resumption, and its bound on readers."""

import asyncio
import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aiohttp
import pytest

from tessera.dashboard.documents import FailureDocument
from tessera.dashboard.feed import FeedGroup
from tessera.dashboard.server import ASSETS, PageAddress, PageServer
from tessera.explain.explanation import Explanation, ExplanationReport
from tessera.kube.errors import NotFound, Status
from tessera.visibility import Visibility


async def explain(namespace: str, pod: str, _visible: Visibility, _key: str) -> ExplanationReport:
    if pod == "gone":
        raise NotFound(Status(code=404, reason="NotFound", message=f'pods "{pod}" not found'))
    if pod == "offline":
        raise ConnectionRefusedError(111, "connection refused")
    answer = Explanation(case="full", verdict="waits for room")
    return ExplanationReport(kind="pod", namespace=namespace, name=pod, answers=(answer,))


class Site:
    """A running server, and a client for it."""

    def __init__(self, server: PageServer, session: aiohttp.ClientSession, port: int) -> None:
        self.server = server
        self.session = session
        self.port = port

    def get(self, path: str, **headers: str) -> "aiohttp.client._RequestContextManager":
        given = {name.replace("_", "-"): value for name, value in headers.items()}
        return self.session.get(f"http://127.0.0.1:{self.port}{path}", headers=given)


@asynccontextmanager
async def site(feed: FeedGroup) -> AsyncIterator[Site]:
    server, listening = (
        PageServer(feed, explain, PageAddress("127.0.0.1", 0)),
        asyncio.get_running_loop().create_future(),
    )
    running = asyncio.create_task(server.run(lambda _, port: listening.set_result(port)))
    try:
        async with aiohttp.ClientSession() as session:
            yield Site(server, session, await listening)
    finally:
        running.cancel()
        await asyncio.wait([running])


async def event(answer: aiohttp.ClientResponse) -> dict[str, str]:
    """The next event of a feed, by field."""
    fields: dict[str, str] = {}
    while True:
        line = (await answer.content.readline()).decode().rstrip("\n")
        if not line and fields:
            return fields
        if line and not line.startswith(":"):
            name, _, value = line.partition(": ")
            fields[name] = value


@pytest.mark.parametrize("path", list(ASSETS))
async def test_every_file_has_strict_headers(path: str) -> None:
    async with site(FeedGroup()) as page, page.get(path) as answer:
        assert (answer.status, answer.content_type) == (200, ASSETS[path][1])
        policy = answer.headers["Content-Security-Policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert answer.headers["X-Content-Type-Options"] == "nosniff"
        assert "http://" not in (await answer.text()).replace("http://www.w3.org", "")


@pytest.mark.parametrize(
    "headers",
    [
        {"Host": "evil.example"},
        {"Host": "127.0.0.1.evil.example:8088"},
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Host": "127.0.0.1:1"},
    ],
)
@pytest.mark.parametrize("path", ["/", "/feed", "/why/team/a", "/nothing"])
async def test_other_names_and_other_sites_are_refused(path: str, headers: dict[str, str]) -> None:
    async with site(FeedGroup()) as page, page.get(path, **headers) as answer:
        assert answer.status == 403
        assert "--dashboard-origin" in await answer.text()


async def test_its_own_origin_and_each_of_its_names_are_served() -> None:
    async with site(FeedGroup()) as page:
        for name in ("localhost", "127.0.0.1", "[::1]"):
            host = f"{name}:{page.port}"
            async with page.get("/", Host=host, Origin=f"http://{host}") as answer:
                assert answer.status == 200


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS"])
async def test_only_get_is_answered(method: str) -> None:
    async with site(FeedGroup()) as page, page.session.request(method, f"http://127.0.0.1:{page.port}/feed") as answer:
        assert answer.status == 405
        assert answer.headers["X-Content-Type-Options"] == "nosniff"


async def test_a_reader_gets_a_snapshot_then_changes_and_resumes_where_it_was() -> None:
    feed = FeedGroup()
    feed.publish({"failure/a": FailureDocument(node="a", reason="1")})
    async with site(feed) as page:
        async with page.get("/feed") as answer:
            first = await event(answer)
            assert first["event"] == "snapshot"
            feed.publish({"failure/a": FailureDocument(node="a", reason="2")})
            second = await event(answer)
            assert (second["event"], '"reason":"2"' in second["data"]) == ("change", True)
        feed.publish({"failure/a": FailureDocument(node="a", reason="3")})
        async with page.get("/feed", Last_Event_ID=second["id"]) as answer:
            assert '"reason":"3"' in (third := await event(answer))["data"]
            assert third["event"] == "change"


@pytest.mark.parametrize("given", ["", "x", "abc.5", "abc.-1", "." * 500])
async def test_an_event_id_of_another_process_brings_a_snapshot(given: str) -> None:
    feed = FeedGroup()
    feed.publish({"failure/a": FailureDocument(node="a", reason="1")})
    async with site(feed) as page, page.get("/feed", Last_Event_ID=given.encode("ascii", "replace").decode()) as answer:
        assert (await event(answer))["event"] == "snapshot"


async def test_readers_are_bounded_and_those_that_go_free_their_places(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tessera.dashboard.server.PAGE_READERS", 2)
    feed, numbers = FeedGroup(), itertools.count()
    async with site(feed) as page:
        async with page.get("/feed"), page.get("/feed"):
            async with page.get("/feed") as answer:
                assert answer.status == 429
            assert page.server.readers == 2
        while page.server.readers:
            feed.publish({f"failure/{page.server.readers}{next(numbers)}": FailureDocument(node="a", reason="1")})
            await asyncio.sleep(0.01)


@pytest.mark.parametrize(
    ("pod", "status", "words"), [("a", 200, "waits for room"), ("gone", 404, "not found"), ("offline", 502, "refused")]
)
async def test_the_reason_of_a_wait_is_json(pod: str, status: int, words: str) -> None:
    async with site(FeedGroup()) as page, page.get(f"/why/team/{pod}") as answer:
        assert (answer.status, answer.content_type) == (status, "application/json")
        assert words in await answer.text()
