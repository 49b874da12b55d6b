"""Signing in by an OpenID Connect provider, and through a proxy that does it: with the real gate, on loopback."""

import json
import urllib.request
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, expect
from tests.dashboard.browser.conftest import LivePage, MakeGate, Visitor, Visits
from tests.dashboard.browser.loopback import CLIENT, LoopbackProvider, LoopbackProxy
from tests.dashboard.browser.scene import scene
from tests.dashboard.guarded import Guarded

from tessera.access.reviewer import Reviewer
from tessera.dashboard.feed import FeedGroup
from tessera.dashboard.origins import make_provider
from tessera.dashboard.visitors import Gate, Rights, TokenGate
from tessera_lab.apiserver.interfaces import UserInfo

#: What the tab keeps.
KEPT = "[Object.entries(sessionStorage), localStorage.length, document.cookie, location.href]"


class Cluster:
    """An API server that takes the provider's tokens for Ann's; ``tokens`` are those."""

    def __init__(self) -> None:
        self.guarded = Guarded("ann")
        self.tokens = self.guarded.server.identities.static

    def accept(self, token: str) -> None:
        self.tokens[token] = UserInfo(name="ann", groups=("people", "system:authenticated"))

    def gate(self) -> MakeGate:
        async def make(feeds: FeedGroup) -> Gate:
            await self.guarded.begin()
            for resource in ("nodes", "pods"):
                await self.guarded.let("ann", resource)
            reviewer = Reviewer(self.guarded.page)
            rights = Rights(reviewer, self.guarded.clock, lambda: feeds.about)
            return TokenGate(reviewer, rights, self.guarded.clock, nameless=False)

        return make


@pytest.fixture(scope="module")
def cluster() -> Cluster:
    return Cluster()


@pytest.fixture(scope="module")
def provider(cluster: Cluster) -> Iterator[LoopbackProvider]:
    with LoopbackProvider(cluster.accept).running() as found:
        yield found


@pytest.fixture(scope="module")
def page(browser: Browser, cluster: Cluster, provider: LoopbackProvider) -> Iterator[LivePage]:
    found = LivePage(cluster.gate(), make_provider(provider.url, CLIENT, ["groups"]))
    found.publish(scene())
    yield found
    found.stop()


@pytest.fixture
def visit(browser: Browser) -> Iterator[Visits]:
    visits = Visits(browser)
    yield visits
    visits.close()


def sign_in(visitor: Visitor) -> None:
    form = visitor.page.get_by_role("form", name="Sign in")
    form.get_by_role("button", name="Sign in by localhost").click()


def test_a_visitor_signs_in_by_the_provider_and_comes_back_to_the_same_view(
    visit: Visits, page: LivePage, provider: LoopbackProvider, cluster: Cluster
) -> None:
    visitor = visit.before(page, "#q=ns%3Ateam")
    expect(visitor.page.get_by_role("button", name="Sign in by localhost")).to_be_visible()
    assert all("401" in each for each in visitor.errors)
    visitor.errors.clear()
    visitor.check_widths("live-page-signin-provider")
    sign_in(visitor)
    visitor.await_live()
    expect(visitor.page.get_by_role("banner").get_by_text("ann", exact=True)).to_be_visible()
    expect(visitor.page.get_by_label("Filter")).to_have_value("ns:team")
    asked = provider.asked[-1]
    assert (asked["code_challenge_method"], asked["response_type"]) == ("S256", "code")
    assert asked["scope"] == "openid email groups"
    once = [each[name] for each in provider.asked for name in ("state", "nonce", "code_challenge")]
    assert len(set(once)) == len(once)
    entries, local, cookie, address = visitor.page.evaluate(KEPT)
    assert ([name for name, _ in entries], local, cookie) == (["tessera-token"], 0, "")
    assert "code" not in address
    token = entries[0][1]
    assert token in cluster.tokens
    assert not [url for url in visitor.requests if token in url]


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("state", 'unexpected "state" response parameter value'),
        ("nonce", 'unexpected ID Token "nonce" claim value'),
        ("audience", 'unexpected JWT "aud" (audience) claim value'),
        ("denied", "it answers access_denied"),
    ],
)
def test_an_answer_that_is_not_for_this_attempt_signs_nobody_in(
    fault: str, words: str, visit: Visits, page: LivePage, provider: LoopbackProvider
) -> None:
    visitor = visit.before(page)
    provider.fault = fault
    try:
        sign_in(visitor)
        alert = visitor.page.get_by_role("alert")
        expect(alert).to_contain_text(f"Signing in by {provider.url} failed: ")
        expect(alert).to_contain_text(words)
    finally:
        provider.fault = ""
    entries, local, _, address = visitor.page.evaluate(KEPT)
    assert (entries, local) == ([], 0)
    assert "state" not in address


def test_an_answer_that_this_tab_did_not_ask_for_signs_nobody_in(visit: Visits, page: LivePage) -> None:
    visitor = visit.before(page, "?code=stolen&state=given")
    expect(visitor.page.get_by_role("alert")).to_contain_text("it was begun in another tab, or is over already")
    assert visitor.page.evaluate("location.search") == ""


def test_a_token_that_is_over_brings_the_way_to_sign_in_again(visit: Visits, page: LivePage, cluster: Cluster) -> None:
    visitor = visit.before(page)
    sign_in(visitor)
    visitor.await_live()
    for token in [each for each in cluster.tokens if each != "token-ann"]:
        del cluster.tokens[token]
    cluster.guarded.clock.seconds += 120
    visitor.page.reload()
    expect(visitor.page.get_by_text("the API server does not accept this token")).to_be_visible()
    sign_in(visitor)
    visitor.await_live()


def test_only_a_page_with_a_provider_may_ask_another_host_and_only_that(
    page: LivePage, provider: LoopbackProvider
) -> None:
    with urllib.request.urlopen(page.url) as answer:
        policy = answer.headers["Content-Security-Policy"]
    assert f"connect-src 'self' {provider.url};" in policy
    with urllib.request.urlopen(page.url + "login") as answer:
        assert json.load(answer) == {"issuer": provider.url, "clientId": CLIENT, "scope": "openid email groups"}


def test_a_proxy_that_signs_its_visitors_in_needs_nothing_of_the_page(visit: Visits, page: LivePage) -> None:
    with LoopbackProxy(page.url, "token-ann").running() as proxy:
        visitor = visit.at(proxy.url)
        visitor.await_live()
        expect(visitor.page.get_by_role("banner").get_by_text("ann", exact=True)).to_be_visible()
        expect(visitor.page.get_by_role("button", name="sign out")).to_have_count(0)
        expect(visitor.page.get_by_text("vllm").first).to_be_visible()
        assert visitor.page.evaluate(KEPT)[:2] == [[], 0]
        proxy.sign_out()
        expect(visitor.link).to_contain_text("a proxy wants you to sign in again: reload the page")
