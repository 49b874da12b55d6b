"""Pages that name pods over real HTTP: who gets them, who does not, and what strangers can cost."""

import base64
import logging

import pytest
from tests.access.conftest import guarded

from tessera.access.page_reader import AGENT_AUDIENCE, CONTROLLER_AUDIENCE, PAGE_REFUSAL_LIFE, names_audience
from tessera.access.reviewer import PAGE_ANSWER_LIFE, READER_REVIEWS

SECRET = "merger-with-acme"


@pytest.mark.parametrize("path", ["/metrics", "/usage"])
async def test_a_stranger_gets_no_name_and_is_told_what_is_missing(path: str) -> None:
    async with guarded() as process:
        for headers in ({}, {"Authorization": "Basic dTpw"}, {"Authorization": "Bearer "}, {"tessera-token": ""}):
            status, text = await process.ask(path, **headers)
            assert (status, SECRET in text) == (401, False)
            assert f"{path} names pods, so it needs a token" in text
        assert process.asked == []


@pytest.mark.parametrize("path", ["/healthz", "/readyz"])
async def test_probes_are_for_everybody(path: str) -> None:
    async with guarded() as process:
        assert await process.ask(path) == (200, "ok\n")
        assert process.asked == []


async def test_an_account_with_the_right_reads_a_page_by_its_token() -> None:
    async with guarded() as process:
        await process.bind("tessera-metrics-reader", "ann", "")
        status, text = await process.ask("/metrics", "token-ann")
        assert (status, SECRET in text) == (200, True)
        assert await process.ask("/usage", "token-ann") == (
            403,
            "ann may not get /usage: bind the ClusterRole tessera-reader to it\n",
        )
        status, text = await process.ask("/metrics", "token-eve")
        assert status == 403
        assert "eve may not get /metrics: bind the ClusterRole tessera-metrics-reader to it" in text


@pytest.mark.parametrize(
    ("audiences", "status"),
    [((), 200), ((AGENT_AUDIENCE,), 200), ((AGENT_AUDIENCE, "other"), 200), ((CONTROLLER_AUDIENCE,), 401)],
)
async def test_a_token_is_for_the_api_server_or_for_this_process(audiences: tuple[str, ...], status: int) -> None:
    async with guarded() as process:
        token = await process.token("tessera-reader", *audiences)
        assert (await process.ask("/usage", token))[0] == status
        assert (await process.ask("/usage", tessera_token=token))[0] == status


async def test_a_token_for_this_process_opens_nothing_at_the_api_server() -> None:
    async with guarded() as process:
        token = await process.token("tessera-reader", AGENT_AUDIENCE)
        assert process.server.identities.authenticate(token) is None
        assert process.server.identities.authenticate(await process.token("tessera-reader")) is not None


CLAIMS = base64.urlsafe_b64encode(b'{"aud": "agents.tessera.dev"}').decode()


@pytest.mark.parametrize("token", ["forged", "a.b.c", "..", "é.é.é", f"a.{CLAIMS}.c"])
async def test_a_forged_token_is_refused(token: str) -> None:
    async with guarded() as process:
        status, text = await process.ask("/usage", tessera_token=token)
        assert (status, text) == (
            401,
            "the API server does not accept this token; send a valid one of an account that may get this page\n",
        )


async def test_while_the_api_server_is_silent_nobody_new_gets_a_page() -> None:
    async with guarded() as process:
        token = await process.token("tessera-reader", AGENT_AUDIENCE)
        process.silent = True
        status, text = await process.ask("/usage", token)
        assert (status, SECRET in text) == (503, False)
        process.silent = False
        assert (await process.ask("/usage", token))[0] == 200


async def test_a_reader_who_is_known_reads_on_for_the_life_of_the_answer() -> None:
    async with guarded() as process:
        await process.bind("tessera-metrics-reader", "ann", "")
        assert (await process.ask("/metrics", "token-ann"))[0] == 200
        process.silent = True
        process.clock.seconds += PAGE_ANSWER_LIFE - 1
        assert (await process.ask("/metrics", "token-ann"))[0] == 200
        process.clock.seconds += 1
        assert (await process.ask("/metrics", "token-ann"))[0] == 503


async def test_a_right_counts_within_seconds_and_one_that_is_withdrawn_ends() -> None:
    async with guarded() as process:
        assert (await process.ask("/metrics", "token-ann"))[0] == 403
        await process.bind("tessera-metrics-reader", "ann", "")
        process.clock.seconds += PAGE_REFUSAL_LIFE
        assert (await process.ask("/metrics", "token-ann"))[0] == 200
        bindings = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings"
        await process.admin("DELETE", f"{bindings}/ann-tessera-metrics-reader")
        process.clock.seconds += PAGE_ANSWER_LIFE / 2
        assert (await process.ask("/metrics", "token-ann"))[0] == 403


async def test_scrapes_cost_two_reviews_in_two_minutes() -> None:
    async with guarded() as process:
        await process.bind("tessera-metrics-reader", "ann", "")
        for _ in range(8):
            assert (await process.ask("/metrics", "token-ann"))[0] == 200
            process.clock.seconds += 15
        assert process.asked == ["tokenreviews", "subjectaccessreviews"]


async def test_strangers_with_many_tokens_cost_few_reviews_and_take_no_page_from_a_reader() -> None:
    async with guarded() as process:
        guard, token = process.guard(), await process.token("tessera-reader", AGENT_AUDIENCE)
        assert await guard.refuse("/usage", token, "10.0.0.1") is None
        process.asked.clear()
        pages = [await guard.refuse("/usage", f"forged-{number}", "10.0.0.6") for number in range(1_000)]
        assert [page.status for page in pages if page is not None].count(401) == READER_REVIEWS / 2
        assert len(process.asked) == READER_REVIEWS / 2
        assert await guard.refuse("/usage", token, "10.0.0.1") is None
        process.clock.seconds += 1
        for number in range(1_000, 2_000):
            await guard.refuse("/usage", f"forged-{number}", "10.0.0.6")
        other = await process.token("tessera-reader", AGENT_AUDIENCE, "other")
        process.clock.seconds += 1
        assert await guard.refuse("/usage", other, "10.0.0.1") is None


async def test_where_an_administrator_opens_the_metrics_other_pages_stay_guarded() -> None:
    async with guarded(open_metrics=True) as process:
        assert (await process.ask("/metrics"))[0] == 200
        assert (await process.ask("/usage"))[0] == 401


async def test_no_token_stands_in_a_log_or_an_answer(caplog: pytest.LogCaptureFixture) -> None:
    async with guarded() as process:
        with caplog.at_level(logging.DEBUG):
            texts = [(await process.ask("/usage", token))[1] for token in ("token-ann", "token-forged")]
        assert "token-" not in "".join(texts)
        assert "token-ann" not in caplog.text.replace("token-ann'", "")


@pytest.mark.parametrize(
    ("claims", "named"),
    [
        (b'{"aud": ["agents.tessera.dev", "x"]}', True),
        (b'{"aud": "agents.tessera.dev"}', True),
        (b'{"aud": ["agents.tessera.de"]}', False),
        (b'{"aud": 5}', False),
        (b"[" * 10_000, False),
        (b"\xff", False),
        (b"{}", False),
        (b"", False),
    ],
)
def test_a_token_is_only_looked_at_for_its_audience(claims: bytes, named: bool) -> None:
    text = base64.urlsafe_b64encode(claims).decode().rstrip("=")
    assert names_audience(f"head.{text}.signature", AGENT_AUDIENCE) is named
    assert not names_audience(f"head.{text}", AGENT_AUDIENCE)
