"""Signing in to the page of a cluster, and what visitors with fewer rights see, with the real gate."""

import re
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Locator, expect
from tests.dashboard.browser.conftest import SHEET, LivePage, MakeGate, Visitor, Visits
from tests.dashboard.browser.scene import scene
from tests.dashboard.guarded import Guarded

from tessera.access.reviewer import Reviewer
from tessera.dashboard.feed import FeedGroup
from tessera.dashboard.visitors import Gate, Rights, TokenGate

NODES = "names of nodes, since you may not list nodes"
PODS = "of pods, since you may not list pods in their namespaces"


def gate(*, nameless: bool) -> MakeGate:
    """Ann may list nodes and pods, Bob the pods of one namespace, Eve nothing."""

    async def make(feeds: FeedGroup) -> Gate:
        cluster = Guarded("ann", "bob", "eve")
        await cluster.begin()
        await cluster.let("ann", "nodes")
        await cluster.let("ann", "pods")
        await cluster.let("bob", "pods", ["team"])
        reviewer = Reviewer(cluster.page)
        rights = Rights(reviewer, cluster.clock, lambda: feeds.about)
        return TokenGate(reviewer, rights, cluster.clock, nameless=nameless)

    return make


@pytest.fixture(scope="module")
def closed(browser: Browser) -> Iterator[LivePage]:
    """A page for visitors with a token."""
    found = LivePage(gate(nameless=False))
    found.publish(scene())
    yield found
    found.stop()


@pytest.fixture(scope="module")
def opened(browser: Browser) -> Iterator[LivePage]:
    """A page that shows itself without names to those without a token."""
    found = LivePage(gate(nameless=True))
    found.publish(scene())
    yield found
    found.stop()


@pytest.fixture
def visit(browser: Browser) -> Iterator[Visits]:
    visits = Visits(browser)
    yield visits
    visits.close()


def sign_in(visitor: Visitor, token: str) -> Locator:
    """Pastes a token into the form; returns the form."""
    form = visitor.page.get_by_role("form", name="Sign in")
    form.get_by_label("Token").fill(token)
    form.get_by_role("button", name="Sign in").click()
    return form


def refusals(visitor: Visitor) -> None:
    """The browser notes each answer 401, and nothing else."""
    assert visitor.errors
    assert all("401" in each for each in visitor.errors)
    visitor.errors.clear()


def test_a_page_that_wants_a_token_gets_it_in_a_header(visit: Visits, closed: LivePage) -> None:
    visitor = visit.before(closed)
    form = visitor.page.get_by_role("form", name="Sign in")
    expect(form.get_by_text("Sign in with a token of your account in the cluster.")).to_be_visible()
    expect(form.get_by_role("alert")).to_have_count(0)
    expect(form.get_by_text("kubectl create token")).to_be_visible()
    expect(visitor.link).to_have_text("not signed in")
    refusals(visitor)
    visitor.check_widths("live-page-signin")
    sign_in(visitor, "two words")
    expect(form.get_by_text("A token has no spaces")).to_be_visible()
    sign_in(visitor, "wrong")
    expect(form.get_by_text("the API server does not accept this token")).to_be_visible()
    sign_in(visitor, " Bearer token-ann ")
    visitor.await_live()
    expect(visitor.page.get_by_role("banner").get_by_text("ann")).to_be_visible()
    expect(visitor.page.get_by_text("Names that start with ~")).to_have_count(0)
    assert not [url for url in (*visitor.requests, visitor.page.url) if "token" in url]
    visitor.region("Waiting").get_by_role("button", name="why").first.click()
    expect(visitor.region("Waiting").get_by_text("a smaller slice has room now")).to_be_visible()


def test_signing_out_leaves_nothing(visit: Visits, closed: LivePage) -> None:
    visitor = visit.before(closed)
    sign_in(visitor, "token-ann")
    visitor.await_live()
    visitor.page.reload()
    visitor.await_live()
    visitor.page.get_by_role("button", name="sign out").click()
    expect(visitor.page.get_by_role("form", name="Sign in")).to_be_visible()
    expect(visitor.page.get_by_text("vllm")).to_have_count(0)
    left = "Object.values(sessionStorage).length + localStorage.length + document.cookie.length"
    assert visitor.page.evaluate(left) == 0


def test_who_may_list_pods_of_a_namespace_sees_their_names_only(visit: Visits, closed: LivePage) -> None:
    visitor = visit.before(closed)
    sign_in(visitor, "token-bob")
    visitor.await_live()
    note = visitor.page.get_by_text("Names that start with ~ are hidden")
    expect(note).to_contain_text(NODES)
    expect(note).to_contain_text(PODS)
    expect(note).to_contain_text("An administrator can give you the right")
    expect(visitor.region("Cards").get_by_text("vllm")).to_be_visible()
    expect(visitor.region("Your pods")).to_contain_text("team/big")
    expect(visitor.region("Use by namespace").get_by_text("hidden names")).to_be_visible()
    expect(visitor.page.get_by_text("gpu-1")).to_have_count(0)


def test_who_has_no_token_sees_tiles_without_names(visit: Visits, opened: LivePage) -> None:
    visitor = visit.before(opened).await_live()
    note = visitor.page.get_by_text("Names that start with ~ are hidden")
    expect(note).to_contain_text(NODES)
    expect(note).to_contain_text(PODS)
    for name in ("vllm", "gpu-1", "team"):
        expect(visitor.page.get_by_text(name)).to_have_count(0)
    expect(visitor.region("Broken").get_by_text("XID 48, a double-bit ECC error")).to_be_visible()
    expect(visitor.region("Cards").get_by_role("button", name="needs a reset: XID 48")).to_be_visible()
    visitor.region("Cards").get_by_role("button", name=re.compile("^card 0, A100.* 1 idle")).click()
    expect(visitor.page.get_by_role("complementary").get_by_text("The last 2 hours")).to_be_visible()
    visitor.check(SHEET)
    visitor.picture("live-page-hidden", whole=False)
    visitor.page.keyboard.press("Escape")
    note.get_by_role("button", name="Sign in").click()
    sign_in(visitor, "token-ann")
    expect(visitor.region("Cards").get_by_text("vllm")).to_be_visible()
    expect(note).to_have_count(0)
