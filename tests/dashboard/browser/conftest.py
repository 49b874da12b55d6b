"""The live page in a real browser, fed with documents that the production code makes of simulated cards."""

import asyncio
import os
import threading
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import AsyncExitStack, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal, Self

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, BrowserContext, Locator, Page, expect
from tests.dashboard.browser.scene import NOW, explanations, nodes
from tests.dashboard.test_past import StandIn, at
from tests.support.browsers import running_browser

from tessera.dashboard.answers import NOT_MIRRORED
from tessera.dashboard.documents import Document
from tessera.dashboard.explainer import OF_NODES, PodEvent, explain_node_of
from tessera.dashboard.feed import FeedGroup
from tessera.dashboard.origins import PageNames, Provider
from tessera.dashboard.past import PastReader, Prometheus
from tessera.dashboard.server import PageAddress, PageServer
from tessera.dashboard.visitors import Gate
from tessera.explain.explanation import ExplanationReport
from tessera.explain.snapshot import Snapshot
from tessera.visibility import Visibility

#: Where the pictures go; without the variable they are not kept.
PICTURES = os.environ.get("TESSERA_PICTURES", "")


async def explain(namespace: str, pod: str, _visible: Visibility, _key: str) -> ExplanationReport:
    if namespace == OF_NODES:
        return explain_node_of(Snapshot(now=NOW, nodes=nodes(), forbidden=NOT_MIRRORED), pod)
    answer = explanations()[f"{namespace}/{pod}"]
    return ExplanationReport(kind="pod", namespace=namespace, name=pod, answers=(answer,))


async def read_events(_namespace: str, pod: str, _authorization: str | None) -> list[PodEvent]:
    """The events of a pod that waits; others have none."""
    text = "Position 1 of 2. Starts between 10:30 and 10:35 UTC."
    waits = PodEvent(type="Warning", reason="SliceWaiting", message=text, last=NOW - 120, count=3)
    return [waits] if pod == "big" else []


# A busy machine is no failure.
expect.set_options(timeout=60_000)

#: Of a phone, a tablet and a laptop.
WIDTHS = (390, 768, 1280)

#: The width at which a story is looked at thoroughly, by theme. Colours do not depend on the width, nor places on them.
THOROUGH: Mapping[Literal["light", "dark"], int] = {"light": 1280, "dark": 390}


#: Gives the focus to the control before a target, in the order of Tab.
FOCUS_BEFORE = """target => {
  const controls = [...document.querySelectorAll('a[href], button, input, select, summary, [tabindex]')]
    .filter(each => each.tabIndex >= 0 && !each.disabled && each.getClientRects().length);
  controls[controls.indexOf(target) - 1].focus();
}"""


#: Selects the sheet of a card, a pod or a node.
SHEET = "aside"

#: Makes the gate of a page; it runs on the event loop of the page's server.
MakeGate = Callable[[FeedGroup], Awaitable[Gate]]


class LivePage:
    """A page's server on an event loop of its own.

    Args:
        make_gate: lets visitors in; without one, everybody sees everything.
        provider: by which they may sign in.
        prometheus: has the past; None without one.

    Attributes:
        url: the page's address.
    """

    def __init__(
        self,
        make_gate: MakeGate | None = None,
        provider: Provider | None = None,
        prometheus: StandIn | None = None,
    ) -> None:
        self._prometheus = prometheus
        self._clock_of_past = at(NOW)
        self._make_gate = make_gate
        self._provider = provider
        self._port = 0
        self._listening = threading.Event()
        self._feeds = FeedGroup()
        self.start()

    @property
    def url(self) -> str:
        return f"http://localhost:{self._port}/"

    def start(self) -> None:
        """Starts the server, the second time on the port that it had."""
        self._listening.clear()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        assert self._listening.wait(60)

    def stop(self) -> None:
        assert self._task is not None
        self._loop.call_soon_threadsafe(self._task.cancel)
        self._thread.join(60)

    def forget_past(self) -> None:
        """Lets an hour pass for the curves, so that all are asked for again: answers are kept for their step."""
        self._clock_of_past.seconds += 3600

    def publish(self, documents: Mapping[str, Document]) -> None:
        """Makes these the documents of the page."""
        done = threading.Event()

        def now() -> None:
            self._feeds.publish(dict(documents))
            done.set()

        self._loop.call_soon_threadsafe(now)
        assert done.wait(60)

    def _run(self) -> None:
        with suppress(asyncio.CancelledError):
            asyncio.run(self._serve())

    async def _serve(self) -> None:
        self._loop, self._task = asyncio.get_running_loop(), asyncio.current_task()
        self._feeds = FeedGroup()
        gate = await self._make_gate(self._feeds) if self._make_gate is not None else None
        names = PageNames(loopback=True)
        address = PageAddress("127.0.0.1", self._port, names, provider=self._provider)

        def announce(_: str, port: int) -> None:
            self._port = port
            self._listening.set()

        async with AsyncExitStack() as stack:
            past = None
            if self._prometheus is not None:
                await stack.enter_async_context(self._prometheus.serve())
                past = PastReader(Prometheus(self._prometheus.url), self._clock_of_past)
            server = PageServer(self._feeds, explain, address, gate, events=read_events, past=past)
            await server.run(announce)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with running_browser() as found:
        yield found


@pytest.fixture(scope="module")
def live(browser: Browser) -> Iterator[LivePage]:
    found = LivePage()
    yield found
    found.stop()


class Visitor:
    """Somebody who looks at the page.

    Attributes:
        page: the browser's page.
        errors: what the browser complained about: scripts, the Content-Security-Policy, connections.
        requests: addresses that the page asked for.
    """

    def __init__(self, context: BrowserContext, url: str, width: int) -> None:
        self.page: Page = context.new_page()
        self.page.set_viewport_size({"width": width, "height": 800})
        self.errors: list[str] = []
        self.requests: list[str] = []
        self.page.on("console", lambda message: self.errors.append(message.text) if message.type == "error" else None)
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.goto(url)

    @property
    def link(self) -> Locator:
        """The state of the connection, as the page shows it."""
        return self.page.get_by_role("banner").get_by_role("status")

    def await_live(self) -> Self:
        """Waits until the page shows the cluster."""
        expect(self.link).to_have_text("live")
        expect(self.page.get_by_role("region", name="Cards", exact=True)).to_be_visible()
        return self

    def region(self, name: str) -> Locator:
        return self.page.get_by_role("region", name=name, exact=True)

    def press_on(self, target: Locator, key: str = "Enter") -> None:
        """Goes to a control by Tab from the one before it, and presses a key there."""
        target.evaluate(FOCUS_BEFORE)
        self.page.keyboard.press("Tab")
        expect(target).to_be_focused()
        self.page.keyboard.press(key)

    def check(self, part: str = "") -> None:
        """The page keeps nobody out, fits its width, asks no other host, and the browser has nothing to complain.

        Args:
            part: selects what is looked at, since a full page takes a second; all of it if it is empty.
        """
        self.check_fit()
        self._look(part)
        assert {url.split("/")[2] for url in self.requests} == {self.page.url.split("/")[2]}
        assert self.errors == []

    def _look(self, part: str = "", **options: object) -> None:
        found = Axe().run(self.page, context=part or None, options={"resultTypes": ["violations"], **options})
        assert found.response["passes"], "axe looked at nothing"
        assert found.violations_count == 0, found.generate_report()

    def check_widths(self, name: str, at: Locator | None = None, *, everywhere: bool = False) -> None:
        """Looks at the page on a phone, a tablet and a laptop, and in both themes; keeps a picture of each.

        Args:
            name: of the pictures.
            at: the region that the pictures show; the top of the page if it is None. It and an open sheet are looked
                at alone: other stories look at the whole page.
            everywhere: :meth:`check` looks at each width, not only at those of :data:`THOROUGH`.
        """
        part = "" if at is None else f'[aria-label="{at.get_attribute("aria-label")}"], {SHEET}'
        for theme, thorough in THOROUGH.items():
            self.page.emulate_media(color_scheme=theme)
            for width in WIDTHS if theme == "light" or PICTURES else (thorough,):
                self.page.set_viewport_size({"width": width, "height": 800})
                if theme == "light" and width == thorough:
                    self.check(part)
                elif width == thorough:
                    self._look(part, runOnly=["color-contrast"])
                elif everywhere:
                    self._look(part, rules={"color-contrast": {"enabled": False}})
                self.check_fit()
                if at is not None:
                    at.evaluate("element => element.scrollIntoView()")
                self.picture(f"{name}-{width}-{theme}", whole=False)
        self.page.emulate_media(color_scheme="light")

    def check_fit(self) -> None:
        """Nothing is wider than the window, and no value runs into the next one."""
        assert self.page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        values = "[...document.querySelectorAll('.figure dd')]"
        assert self.page.evaluate(f"{values}.every(each => each.scrollWidth <= each.clientWidth)")

    def picture_of(self, part: Locator, name: str) -> None:
        """Keeps a picture of a part of the page, where pictures are wanted."""
        if PICTURES:
            part.screenshot(path=Path(PICTURES) / f"{name}-light.png")

    def picture(self, name: str, *, whole: bool = True) -> None:
        """Keeps a picture of the whole page or of what fits the window, where pictures are wanted."""
        if PICTURES:
            self.page.screenshot(path=Path(PICTURES) / f"{name}.png", full_page=whole)


@pytest.fixture
def visit(browser: Browser, live: LivePage) -> Iterator["Visits"]:
    visits = Visits(browser, live)
    yield visits
    visits.close()


class Visits:
    """Opens the page with a width.

    Args:
        browser: the browser.
        live: the page to open; None if each visit names one.
    """

    def __init__(self, browser: Browser, live: LivePage | None = None) -> None:
        self._browser = browser
        self._live = live

    def __call__(self, part: str = "", *, width: int = 1280) -> Visitor:
        assert self._live is not None
        return self.before(self._live, part, width=width).await_live()

    def before(self, live: LivePage, part: str = "", *, width: int = 1280) -> Visitor:
        """A visitor whose page may not show the cluster yet."""
        return self.at(live.url + part, width=width)

    def at(self, url: str, *, width: int = 1280) -> Visitor:
        """A visitor at an address."""
        context = next((each for each in self._browser.contexts if len(each.pages) == 1), None) or self._new_context()
        keeper = context.pages[0]
        keeper.goto(url)
        keeper.evaluate("localStorage.clear()")
        return Visitor(context, url, width)

    def _new_context(self) -> BrowserContext:
        """One with an empty page that stays: the next pages run in its process, which has compiled their scripts."""
        context = self._browser.new_context(color_scheme="light", reduced_motion="reduce")
        context.clock.set_fixed_time(datetime.fromtimestamp(NOW, UTC))
        context.new_page().route("**", lambda route: route.fulfill(body=""))
        return context

    def close(self) -> None:
        """Leaves the contexts to later visits."""
        for context in self._browser.contexts:
            context.clear_cookies()
            for page in context.pages[1:]:
                page.close()
