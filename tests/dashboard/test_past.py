"""The past from Prometheus: its queries, what a stand-in of Prometheus may answer, its bounds, and who may see what.

tests/monitoring/test_boards.py asks a real Prometheus the same queries.
"""

import asyncio
import gzip
import json
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from tests.dashboard.test_server import explain
from tests.support.api_user import ManualClock

from tessera.dashboard.feed import FeedGroup
from tessera.dashboard.past import RANGES, PastError, PastReader, Prometheus, Subject, make_prometheus, queries
from tessera.dashboard.server import PageAddress, PageServer
from tessera.dashboard.visitors import NotNowError, Visitor
from tessera.visibility import FULL, Visibility

NOW = 1_000_000_007.0
CLUSTER = Subject()


def at(now: float) -> ManualClock:
    clock = ManualClock()
    clock.seconds = now
    return clock


def matrix(*series: list[tuple[float, str]]) -> bytes:
    result = [{"metric": {}, "values": values} for values in series]
    return json.dumps({"status": "success", "data": {"resultType": "matrix", "result": result}}).encode()


class StandIn:
    """Answers as Prometheus does.

    Attributes:
        asked: the form and the headers of each query.
        answer: makes the answer to a form.
        may_answer: answers are sent while it is set.
    """

    def __init__(self) -> None:
        self.asked: list[tuple[Mapping[str, Any], Mapping[str, str]]] = []
        self.answer: Callable[[Mapping[str, Any]], web.Response] = lambda _: web.Response(body=matrix())
        self.may_answer = asyncio.Event()
        self.may_answer.set()
        self.url = ""

    async def _take(self, request: web.Request) -> web.Response:
        form = dict(await request.post())
        self.asked.append((form, dict(request.headers)))
        answer = self.answer(form)
        await self.may_answer.wait()
        return answer

    @asynccontextmanager
    async def serve(self) -> AsyncIterator["StandIn"]:
        app = web.Application()
        app.router.add_post("/prom/api/v1/query_range", self._take)
        runner = web.AppRunner(app)
        await runner.setup()
        place = web.TCPSite(runner, "127.0.0.1", 0)
        await place.start()
        self.url = f"http://127.0.0.1:{runner.addresses[0][1]}/prom"
        try:
            yield self
        finally:
            await runner.cleanup()


@pytest.fixture
async def stand_in() -> AsyncIterator[StandIn]:
    async with StandIn().serve() as found:
        yield found


def reader(stand_in: StandIn, folder: Path | None = None, now: float = NOW) -> PastReader:
    return PastReader(Prometheus(stand_in.url, folder), at(now))


@pytest.mark.parametrize("span", RANGES)
async def test_a_range_has_its_values_at_their_places_and_none_where_there_is_none(
    span: str, stand_in: StandIn
) -> None:
    seconds, step = RANGES[span]

    def answer(form: Mapping[str, Any]) -> web.Response:
        start, end = int(form["start"]), int(form["end"])
        assert (end - start, int(form["step"]), end % step) == (seconds, step, 0)
        assert NOW - step < end <= NOW
        return web.Response(body=matrix([(start, "1.5"), (start + step, "NaN"), (end, "2")]))

    stand_in.answer = answer
    found = await reader(stand_in).read(span, CLUSTER, "ana")
    assert set(found.curves) == {"held", "busy", "power", "waiting"}
    for values in found.curves.values():
        assert len(values) == seconds // step + 1 <= 169
        assert (values[0], values[-1]) == (1.5, 2.0)
        assert set(values[1:-1]) == {None}
    assert (found.step, found.until % step) == (step, 0)


async def test_an_answer_is_kept_for_its_step_and_asked_for_once(stand_in: StandIn) -> None:
    clock = at(NOW)
    past = PastReader(Prometheus(stand_in.url), clock)
    await asyncio.gather(*(past.read("1h", CLUSTER, user) for user in "abcdef"))
    assert len(stand_in.asked) == 4
    await past.read("1h", Subject(namespace="team-a"), "a")
    assert len(stand_in.asked) == 8
    clock.seconds += 30
    await past.read("1h", CLUSTER, "a")
    assert len(stand_in.asked) == 12


async def test_a_user_waits_for_few_answers_at_a_time(stand_in: StandIn) -> None:
    past = reader(stand_in)
    asked = [past.read("1h", Subject(namespace=f"n-{each}"), "ana") for each in range(9)]
    found = await asyncio.gather(*asked, return_exceptions=True)
    assert sum(isinstance(each, NotNowError) and each.code == 429 for each in found) == 6
    assert (await past.read("1h", CLUSTER, "ana")).curves


def test_queries_name_the_subject_and_the_labels_of_the_cluster() -> None:
    labels = (("cluster", "prod"),)
    for subject, own in (
        (CLUSTER, ""),
        (Subject(namespace="team-a"), ',namespace="team-a"'),
        (Subject(card="GPU-1a2b-3c"), ',gpu="GPU-1a2b-3c"'),
    ):
        for query in queries(subject, labels).values():
            assert f'{{cluster="prod"{own}}}' in query
            assert query.count("{") == query.count(f'{{cluster="prod"{own}}}')


@pytest.mark.parametrize("name", ['a"} or up{x="', "a b", "", "-", "A", "a" * 64, "team\n", "~"])
def test_no_text_that_is_no_name_enters_a_query(name: str) -> None:
    for subject in (Subject(namespace=name), Subject(card=name)):
        if name:
            with pytest.raises(PastError, match="this is no"):
                queries(subject)


@pytest.mark.parametrize(
    ("status", "body", "text", "detail"),
    [
        (401, b"", "refuses the page (401): its Secret tessera-dashboard-prometheus needs a token", ""),
        (403, b"", "refuses the page (403)", ""),
        (302, b"", "answers with status 302", ""),
        (
            422,
            b'{"status":"error","error":"out of\\u001b[31m memory"}',
            "answers with status 422",
            "out of [31m memory",
        ),
        (503, b"<html>" + b"x" * 10_000, "answers with status 503", "<html>xxx"),
        (200, b"<html>", "the address answers, but not as a Prometheus does", ""),
        (200, b'{"data":{"resultType":"matrix","result":[{"values":[[1,"x"]]}]}}', "not as a Prometheus does", ""),
        (200, b'{"data":{"resultType":"matrix","result":[{"values":[[1e999,"1"]]}]}}', "not as a Prometheus does", ""),
        (200, matrix([(1, "1")], [(1, "2")]), "several series", ""),
        (200, b" " * 300_000, "more than these curves can have", ""),
        (200, b'{"data":{"x":' + b"[" * 100_000, "not as a Prometheus does", ""),
        (422, b"[" * 100_000, "answers with status 422", "[[["),
    ],
)
async def test_what_is_no_curve_is_said_in_a_sentence_and_asked_for_again(
    status: int, body: bytes, text: str, detail: str, stand_in: StandIn
) -> None:
    stand_in.answer = lambda _: web.Response(status=status, body=body, headers={"Location": "http://127.0.0.1:1/"})
    clock = at(NOW)
    past = PastReader(Prometheus(stand_in.url), clock)
    with pytest.raises(PastError) as caught:
        await past.read("15m", CLUSTER, "ana")
    assert text in str(caught.value)
    assert caught.value.detail.startswith(detail)
    assert len(caught.value.detail) <= 200
    stand_in.answer = lambda _: web.Response(body=matrix())
    clock.seconds += 5
    assert set((await past.read("15m", CLUSTER, "ana")).curves["held"]) == {None}


async def test_a_visitor_who_asks_in_a_loop_asks_a_failing_prometheus_once_in_five_seconds(
    stand_in: StandIn, caplog: pytest.LogCaptureFixture
) -> None:
    stand_in.answer = lambda _: web.Response(status=503)
    clock = at(NOW)
    past = PastReader(Prometheus(stand_in.url), clock)
    for seconds in (0.0, 0.0, 4.9, 0.1):
        clock.seconds += seconds
        with pytest.raises(PastError, match="status 503"):
            await past.read("1h", CLUSTER, "ana")
    assert len(stand_in.asked) <= 2 * 4
    assert [each.name for each in caplog.records].count("tessera.dashboard.past") == 2


async def test_an_answer_that_would_grow_when_unpacked_is_not_unpacked(stand_in: StandIn) -> None:
    packed = gzip.compress(b" " * 50_000_000)
    assert len(packed) < 60_000
    stand_in.answer = lambda _: web.Response(body=packed, headers={"Content-Encoding": "gzip"})
    with pytest.raises(PastError, match="the address answers, but not as a Prometheus does"):
        await reader(stand_in).read("1h", CLUSTER, "ana")


async def test_no_visitor_waits_for_ever_behind_the_curves_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    async def never(*_: object) -> bytes:
        await asyncio.Event().wait()
        return b""

    monkeypatch.setattr("tessera.dashboard.past._fetch", never)
    monkeypatch.setattr("tessera.dashboard.past._ALL_SECONDS", 0.01)
    past = PastReader(Prometheus("http://127.0.0.1:1"), at(NOW))
    asked = [past.read("1h", Subject(namespace=f"n-{each}"), str(each)) for each in range(9)]
    found = await asyncio.gather(*asked, return_exceptions=True)
    assert {str(each) for each in found} == {
        "Prometheus does not answer in time: others ask for curves, too; ask again in a moment"
    }


async def test_a_failure_that_its_visitor_did_not_wait_for_is_no_answer_for_the_next_one(stand_in: StandIn) -> None:
    """A browser may leave at once, and an answer of seven days is kept for an hour."""
    asked = asyncio.Event()

    def refuse(_: Mapping[str, Any]) -> web.Response:
        asked.set()
        return web.Response(status=503)

    clock = at(NOW)
    past = PastReader(Prometheus(stand_in.url), clock)
    stand_in.answer = refuse
    stand_in.may_answer.clear()
    left = asyncio.create_task(past.read("7d", CLUSTER, "ana"))
    await asked.wait()
    left.cancel()
    making = [each for each in asyncio.all_tasks() if "PastReader._ask_all at" in str(each.get_coro())]
    stand_in.may_answer.set()
    assert [type(each) for each in await asyncio.gather(left, *making, return_exceptions=True)] == [
        asyncio.CancelledError,
        PastError,
    ]
    stand_in.answer = lambda _: web.Response(body=matrix())
    clock.seconds += 5
    assert set((await past.read("7d", CLUSTER, "ben")).curves["held"]) == {None}


async def test_nobody_at_the_address() -> None:
    past = PastReader(Prometheus("http://127.0.0.1:1"), at(NOW))
    with pytest.raises(PastError, match=r"^Prometheus does not answer$"):
        await past.read("15m", CLUSTER, "ana")


async def test_the_token_is_read_for_each_query_and_goes_to_no_other_machine_by_plain_http(
    stand_in: StandIn, tmp_path: Path
) -> None:
    clock = at(NOW)
    past = PastReader(Prometheus(stand_in.url, tmp_path), clock)
    for token in ("first", "second"):
        (tmp_path / "token").write_text(f"{token}\n", encoding="ascii")
        clock.seconds += 60
        await past.read("15m", CLUSTER, "ana")
        assert stand_in.asked[-1][1]["Authorization"] == f"Bearer {token}"
    for text, problem in (("two words", "blanks"), ("ü", "cannot be read")):
        (tmp_path / "token").write_text(text, encoding="utf-8")
        clock.seconds += 60
        with pytest.raises(PastError, match=problem):
            await past.read("15m", CLUSTER, "ana")
    (tmp_path / "token").write_text("good", encoding="ascii")
    away = PastReader(Prometheus("http://prometheus.example.com:9090", tmp_path), clock)
    with pytest.raises(PastError, match="HTTPS alone"):
        await away.read("15m", CLUSTER, "ana")
    (tmp_path / "ca.crt").write_text("none", encoding="ascii")
    with pytest.raises(PastError, match="cannot be read"):
        await past.read("1h", CLUSTER, "ana")


@pytest.mark.parametrize(
    "url",
    ["prometheus:9090", "ftp://a", "http://", "http://a:b@c", "http://a?q", "http://a#f", "http://a b", "http://a:x"],
)
def test_an_address_that_is_none(url: str) -> None:
    with pytest.raises(ValueError, match="is no address of a Prometheus; write"):
        make_prometheus(url, None, ())


@pytest.mark.parametrize("label", ["cluster", "=a", "a=", 'a="b"', "1a=b", "a=b}"])
def test_a_label_that_is_none(label: str) -> None:
    with pytest.raises(ValueError, match="is no label with its value"):
        make_prometheus("http://a", None, [label])
    with pytest.raises(ValueError, match="needs --prometheus"):
        make_prometheus(None, None, ["cluster=prod"])


class OneVisitor:
    """Everybody is one visitor with these rights."""

    def __init__(self, rights: Visibility) -> None:
        self._rights = rights

    async def visibility(self) -> Visibility:
        return self._rights

    async def admit(self, _authorization: str | None, _address: str) -> Visitor:
        return Visitor("ana", "ana", 4, self.visibility)


@asynccontextmanager
async def page(rights: Visibility, past: PastReader | None) -> AsyncIterator[Callable[[str], Any]]:
    address = PageAddress("127.0.0.1", 0)
    server = PageServer(FeedGroup(), explain, address, OneVisitor(rights), past=past)
    listening: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    running = asyncio.create_task(server.run(lambda _, port: listening.set_result(port)))
    try:
        async with aiohttp.ClientSession() as session:
            port = await listening

            async def get(path: str) -> tuple[int, Any]:
                async with session.get(f"http://127.0.0.1:{port}{path}") as answer:
                    return answer.status, await answer.json(content_type=None) if answer.status != 404 else None

            yield get
    finally:
        running.cancel()
        await asyncio.wait([running])


TENANT = Visibility(namespaces=frozenset({"team-a"}))


async def test_a_tenant_sees_the_past_of_the_own_namespaces_and_of_no_card(stand_in: StandIn) -> None:
    async with page(TENANT, reader(stand_in)) as get:
        assert (await get("/past/1h"))[0] == 200
        assert (await get("/past/1h/namespace/team-a"))[0] == 200
        asked = len(stand_in.asked)
        assert await get("/past/1h/namespace/team-b") == (
            403,
            {"error": "you may not list pods in the namespace 'team-b'"},
        )
        assert (await get("/past/1h/card/GPU-1"))[0] == 403
        assert len(stand_in.asked) == asked


async def test_who_sees_everything_reads_what_prometheus_said(stand_in: StandIn) -> None:
    stand_in.answer = lambda _: web.Response(status=422, body=b'{"error":"bad matcher"}')
    async with page(FULL, reader(stand_in)) as get:
        assert await get("/past/1h") == (502, {"error": "Prometheus answers with status 422: bad matcher"})
        assert (await get("/whoami"))[1]["past"] == list(RANGES)
        for path in ("/past/1h/card/", "/past/1h/namespace", "/past/1h/pod/a", "/past/1h/card/GPU-1/x"):
            assert (await get(path))[0] == 404
    async with page(TENANT, reader(stand_in)) as get:
        assert await get("/past/1h") == (502, {"error": "Prometheus answers with status 422"})


async def test_a_wrong_range_or_name_is_the_visitors_error_and_asks_prometheus_nothing(stand_in: StandIn) -> None:
    async with page(FULL, reader(stand_in)) as get:
        text = "there is no such range; take one of 15m, 1h, 6h, 24h, 7d"
        assert await get("/past/1y") == (400, {"error": text})
        for path in ("/past/1h/namespace/Team-A", "/past/1h/card/a"):
            assert (await get(path))[0] == 404
    assert not stand_in.asked


async def test_without_prometheus_the_page_offers_no_range() -> None:
    async with page(FULL, None) as get:
        assert (await get("/whoami"))[1]["past"] == []
        assert (await get("/past/1h"))[0] == 404
