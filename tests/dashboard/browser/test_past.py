"""The time range of the live page's curves: what a stand-in of Prometheus answers is drawn, or said in a sentence."""

import math
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest
from aiohttp import web
from playwright.sync_api import Browser, expect
from tests.dashboard.browser.conftest import SHEET, LivePage, Visits
from tests.dashboard.browser.scene import scene
from tests.dashboard.test_past import StandIn, matrix

Answer = Callable[[Mapping[str, Any]], web.Response]

#: Height of the curve by a part of its query.
HEIGHTS = {"share_ratio": 9.0, "busy": 0.6, "power": 2400.0, "waiting": 3.0, "wasted": 1.5, "memory": 0.7, "temper": 61}


def draw(form: Mapping[str, Any]) -> web.Response:
    """A curve that goes up and down each day, with a gap."""
    start, end, step = (int(form[name]) for name in ("start", "end", "step"))
    height = next(value for part, value in HEIGHTS.items() if part in form["query"])
    times = [time for time in range(start, end + 1, step) if not 0.3 < (time - start) / (end - start) < 0.36]
    return web.Response(body=matrix([(time, str(height * (0.6 + 0.4 * math.sin(time / 13_751)))) for time in times]))


@pytest.fixture(scope="module")
def prometheus() -> StandIn:
    found = StandIn()
    found.answer = draw
    return found


@pytest.fixture(scope="module")
def live(browser: Browser, prometheus: StandIn) -> Iterator[LivePage]:
    found = LivePage(prometheus=prometheus)
    found.publish(scene())
    yield found
    found.stop()


@pytest.fixture
def answer(live: LivePage, prometheus: StandIn) -> Iterator[Callable[[Answer], None]]:
    """Sets what Prometheus answers in this test."""

    def use(made: Answer) -> None:
        live.forget_past()
        prometheus.answer = made

    yield use
    prometheus.answer = draw
    live.forget_past()


def test_a_range_is_chosen_by_the_keyboard_and_stands_in_the_address(visit: Visits) -> None:
    visitor = visit()
    past = visitor.region("The last hours")
    expect(past.get_by_role("img", name=re.compile("^busy: "))).to_be_visible()
    past.get_by_role("button", name="7 d", exact=True).press("Enter")
    expect(past.get_by_role("heading", name="The last 7 d")).to_be_visible()
    named = r"^power: [\d.]+ k?W at \w{3},? \d+ \w{3},? \d\d:\d\d, .* in 7 days$"
    expect(past.get_by_role("img", name=re.compile(named))).to_be_visible()
    assert "t=7d" in visitor.page.url
    visitor.check_widths("live-page-past", past)
    again = visit(visitor.page.url.rpartition("/")[2])
    chosen = again.region("The last hours").get_by_role("button", name="7 d", exact=True)
    expect(chosen).to_have_attribute("aria-pressed", "true")
    chosen.page.get_by_role("button", name="as seen here").click()
    expect(again.region("The last hours").get_by_role("img", name=re.compile("^busy: "))).to_be_visible()


def test_the_curves_follow_a_filter_that_names_a_namespace(visit: Visits, prometheus: StandIn) -> None:
    visitor = visit("#t=1h&q=ns:research")
    past = visitor.region("The last hours")
    expect(past).to_contain_text("Of the pods of namespace research.")
    expect(past.get_by_role("img", name=re.compile("^cards computing: "))).to_be_visible()
    asked = [form["query"] for form, _ in prometheus.asked]
    assert 'sum(tessera_pod_gpu_share_ratio{namespace="research"})' in asked
    visitor.page.get_by_role("searchbox").fill("ns:research pod:a")
    expect(past).to_contain_text("Of the whole cluster, whatever the filter.")
    expect(past.get_by_role("img", name=re.compile("^pods waiting: "))).to_be_visible()


def test_a_card_has_its_past(visit: Visits) -> None:
    visitor = visit()
    visitor.region("Cards").get_by_role("button", name=re.compile("^card 0, H100")).click()
    sheet = visitor.page.get_by_role("complementary", name="Card")
    sheet.get_by_role("button", name="24 h", exact=True).press("Enter")
    expect(sheet.get_by_role("img", name=re.compile(r"^heat: \d+ °C at "))).to_be_visible()
    expect(sheet.get_by_role("img", name=re.compile("^memory: "))).to_be_visible()
    visitor.check(SHEET)
    visitor.picture("live-page-past-card", whole=False)


@pytest.mark.parametrize(
    ("status", "body", "sentence"),
    [
        (503, b"{}", "Prometheus answers with status 503."),
        (401, b"", "Prometheus refuses the page (401): its Secret tessera-dashboard-prometheus needs a token"),
        (200, matrix(), "Prometheus has no value of this time: it does not scrape Tessera, or did not then."),
    ],
)
def test_why_there_are_no_curves(
    status: int, body: bytes, sentence: str, visit: Visits, answer: Callable[[Answer], None]
) -> None:
    answer(lambda _: web.Response(status=status, body=body))
    expect(visit("#t=6h").region("The last hours")).to_contain_text(sentence)


def test_what_no_card_measures_is_not_available(visit: Visits, answer: Callable[[Answer], None]) -> None:
    answer(lambda form: web.Response(body=matrix()) if "busy" in form["query"] else draw(form))
    past = visit("#t=15m").region("The last hours")
    expect(past).to_contain_text("busy n/a")
    expect(past).to_contain_text("n/a: no card measures it, or Prometheus lacks Tessera's recording rules.")
