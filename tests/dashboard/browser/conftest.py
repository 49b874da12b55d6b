"""The live page in a real browser, fed with documents that the production code makes of simulated cards."""

import asyncio
import os
import threading
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping
from contextlib import AsyncExitStack, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Self

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, BrowserContext, Locator, Page, expect
from tests.dashboard.browser.scene import NOW, explanations, nodes
from tests.dashboard.test_past import StandIn, at
from tests.support.browsers import running_browser

from tessera.dashboard.access.provider import Provider
from tessera.dashboard.access.visitors import Gate
from tessera.dashboard.aliases import Objects
from tessera.dashboard.documents import Document
from tessera.dashboard.explainer import OF_NODES, explain_node_of
from tessera.dashboard.feed import FeedGroup
from tessera.dashboard.names import PageNames
from tessera.dashboard.past import PastReader, Prometheus
from tessera.dashboard.pod_events import PodEvent
from tessera.dashboard.server import PageAddress, PageServer
from tessera.explain.explanation import ExplanationReport
from tessera.visibility import Visibility

#: Where the pictures go; without the variable they are not kept.
PICTURES = os.environ.get("TESSERA_PICTURES", "")


async def explain(namespace: str, pod: str, _visible: Visibility, _key: str) -> ExplanationReport:
    if namespace == OF_NODES:
        return explain_node_of(Objects(now=NOW, pods=(), nodes=nodes(), instaslices=()), pod)
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
THOROUGH = {"light": (1280,), "dark": (390,)}


#: How many controls are between the one that has the focus and a later one: where each is, need not be asked.
TABS_BETWEEN = """target => {
  const controls = [...document.querySelectorAll('a[href], button, input, select, summary, [tabindex]')]
    .filter(each => each.tabIndex >= 0 && !each.disabled && each.getClientRects().length);
  return Math.max(0, controls.indexOf(target) - controls.indexOf(document.activeElement) - 1);
}"""


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
        theme: ``light`` or ``dark``.
        errors: what the browser complained about: scripts, the Content-Security-Policy, connections.
        requests: addresses that the page asked for.
    """

    def __init__(self, context: BrowserContext, url: str, theme: str) -> None:
        self.page: Page = context.new_page()
        self.theme = theme
        self.errors: list[str] = []
        self.requests: list[str] = []
        self.page.on("console", lambda message: self.errors.append(message.text) if message.type == "error" else None)
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.clock.set_fixed_time(datetime.fromtimestamp(NOW, UTC))
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
        """Goes to a control by Tab alone, and presses a key there."""
        target.wait_for()
        for _ in range(target.evaluate(TABS_BETWEEN)):
            self.page.keyboard.press("Tab")
        for _ in range(400):
            if target.evaluate("element => element === document.activeElement"):
                self.page.keyboard.press(key)
                return
            self.page.keyboard.press("Tab")
        raise AssertionError(f"no Tab leads to {target}")

    def check(self, colours: str | None = "") -> None:
        """The page keeps nobody out, fits its width, asks no other host, and the browser has nothing to complain.

        Args:
            colours: selects what has the contrast of its texts looked at, which takes three quarters of the time; all
                if it is empty, nothing if it is None.
        """
        self.check_fit()
        self._look({"rules": {"color-contrast": {"enabled": colours == ""}}})
        if colours:
            self._look({"runOnly": ["color-contrast"]}, colours)
        assert {url.split("/")[2] for url in self.requests} == {self.page.url.split("/")[2]}
        assert self.errors == []

    def _look(self, rules: Mapping[str, object], at: str | None = None) -> None:
        found = Axe().run(self.page, context=at, options={"resultTypes": ["violations"], **rules})
        assert found.response["passes"], "axe looked at nothing"
        assert found.violations_count == 0, found.generate_report()

    def check_widths(self, name: str, at: Locator | None = None, thorough: Collection[int] | None = None) -> None:
        """Looks at the page on a phone, a tablet and a laptop; keeps a picture of each.

        Args:
            name: of the pictures.
            at: the region that the pictures show; the top of the page if it is None. Only there and in an open sheet
                are contrasts looked at: other stories look at the whole page.
            thorough: the widths for :meth:`check`, which takes a second for a full page; those of :data:`THOROUGH`
                if it is None. The first of them has contrasts looked at.
        """
        colours: str | None = ""
        if at is not None:
            colours = f'[aria-label="{at.get_attribute("aria-label")}"], aside'
        for width in WIDTHS:
            self.page.set_viewport_size({"width": width, "height": 800})
            if width in (THOROUGH[self.theme] if thorough is None else thorough):
                self.check(colours)
                colours = None
            self.check_fit()
            if at is not None:
                at.evaluate("element => element.scrollIntoView()")
            self.picture(f"{name}-{width}-{self.theme}", whole=False)

    def check_fit(self) -> None:
        """Nothing is wider than the window, and no value runs into the next one."""
        assert self.page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        values = "[...document.querySelectorAll('.figure dd')]"
        assert self.page.evaluate(f"{values}.every(each => each.scrollWidth <= each.clientWidth)")

    def picture_of(self, part: Locator, name: str) -> None:
        """Keeps a picture of a part of the page, where pictures are wanted."""
        if PICTURES:
            part.screenshot(path=Path(PICTURES) / f"{name}-{self.theme}.png")

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
    """Opens the page with a width and a theme.

    Args:
        browser: the browser.
        live: the page to open; None if each visit names one.
    """

    def __init__(self, browser: Browser, live: LivePage | None = None) -> None:
        self._browser = browser
        self._live = live
        self._contexts: list[BrowserContext] = []

    def __call__(self, part: str = "", *, width: int = 1280, theme: str = "light") -> Visitor:
        assert self._live is not None
        return self.before(self._live, part, width=width, theme=theme).await_live()

    def before(self, live: LivePage, part: str = "", *, width: int = 1280, theme: str = "light") -> Visitor:
        """A visitor whose page may not show the cluster yet."""
        return self.at(live.url + part, width=width, theme=theme)

    def at(self, url: str, *, width: int = 1280, theme: str = "light") -> Visitor:
        """A visitor at an address."""
        context = self._browser.new_context(
            viewport={"width": width, "height": 800},
            color_scheme="dark" if theme == "dark" else "light",
            reduced_motion="reduce",
        )
        self._contexts.append(context)
        return Visitor(context, url, theme)

    def close(self) -> None:
        for each in self._contexts:
            each.close()
