"""Serves the live page and its feed over HTTP.

Paths: ``/`` and ``/assets/…`` are the page, ``/feed`` its server-sent events, ``/why/NAMESPACE/POD`` the reason of a
wait as JSON, ``/healthz`` the state of the process.

Rules for every request:

1. The Host header names this server, and an Origin, if there is one, is this server's: another site that a visitor has
   open, or one whose name was pointed to the loopback address, gets 403.
2. Only GET and HEAD are answered.
3. A strict Content-Security-Policy forbids scripts, styles and connections of other hosts, and frames.
4. A reader of the feed has no queue: it gets the changes since its version, or a snapshot.
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection
from importlib.resources import files
from typing import NamedTuple

import msgspec
from aiohttp import web

from tessera.dashboard.feed import Feed, FeedGroup, TooManyViewsError, Update
from tessera.dashboard.visibility import FULL
from tessera.explain.explanation import ExplanationReport
from tessera.kube.client.errors import ApiError
from tessera.limits.processes import PAGE_READERS
from tessera.status_pages import JSON, TEXT, OnListening

#: Explains why a pod waits, by namespace and name.
Explain = Callable[[str, str], Awaitable[ExplanationReport]]

#: Seconds after which a feed without changes sends a comment, so that proxies keep the connection.
_HEARTBEAT = 15.0
_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:;"
        " base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
#: The files of the page by path, with their types.
ASSETS = {
    "/": ("index.html", "text/html"),
    "/assets/page.js": ("page.js", "text/javascript"),
    "/assets/page.css": ("page.css", "text/css"),
}


class PageAddress(NamedTuple):
    """Address and port of the page, and the names by which visitors may reach it."""

    host: str
    port: int
    names: Collection[str] = ("localhost", "127.0.0.1", "[::1]")


class PageServer:
    """Serves the page.

    Args:
        feeds: the documents of the page.
        explain: explains why a pod waits.
        address: where to listen.

    Attributes:
        readers: number of open connections to the feed.
    """

    def __init__(self, feeds: FeedGroup, explain: Explain, address: PageAddress) -> None:
        self.readers = 0
        self._feeds = feeds
        self._explain = explain
        self._address = address
        folder = files("tessera.dashboard") / "assets"
        self._files = {path: ((folder / name).read_bytes(), kind) for path, (name, kind) in ASSETS.items()}
        self._hosts: frozenset[str] = frozenset()

    async def run(self, on_listening: OnListening | None = None) -> None:
        """Serves until cancelled.

        Raises:
            OSError: the port is taken.
        """
        app = web.Application(middlewares=[self._guard])
        app.add_routes([web.get("/feed", self._serve_feed), web.get("/why/{namespace}/{pod}", self._serve_reason)])
        app.add_routes([web.get("/healthz", _serve_health), *(web.get(path, self._serve_file) for path in self._files)])
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0)
        await runner.setup()
        try:
            await web.TCPSite(runner, self._address.host, self._address.port).start()
            host, port = runner.addresses[0][:2]
            self._hosts = frozenset(f"{name}:{port}" for name in self._address.names)
            if on_listening is not None:
                on_listening(host, port)
            await asyncio.Event().wait()
        finally:
            await runner.cleanup()

    @web.middleware
    async def _guard(
        self, request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        origin = request.headers.get("Origin")
        if request.host not in self._hosts or (origin is not None and origin != f"http://{request.host}"):
            return web.Response(status=403, text="this page is not served under this name\n", headers=_HEADERS)
        try:
            answer = await handler(request)
        except web.HTTPException as error:
            error.headers.update(_HEADERS)
            raise
        if not answer.prepared:
            answer.headers.update(_HEADERS)
        return answer

    async def _serve_file(self, request: web.Request) -> web.Response:
        body, kind = self._files[request.path]
        return web.Response(body=body, content_type=kind, charset="utf-8")

    async def _serve_reason(self, request: web.Request) -> web.Response:
        try:
            report = await self._explain(request.match_info["namespace"], request.match_info["pod"])
        except ApiError as error:
            return _problem(error.status.code or 502, str(error))
        except OSError as error:
            return _problem(502, f"the API server does not answer: {error}")
        return web.Response(body=msgspec.json.encode(report), content_type=JSON)

    async def _serve_feed(self, request: web.Request) -> web.StreamResponse:
        if self.readers >= PAGE_READERS:
            return _problem(503, f"this page has {self.readers} readers already")
        self.readers += 1
        try:
            with self._feeds.join(FULL) as feed:
                return await self._stream(request, feed)
        except TooManyViewsError:
            return _problem(503, "readers with too many different rights look at this page")
        finally:
            self.readers -= 1

    async def _stream(self, request: web.Request, feed: Feed) -> web.StreamResponse:
        response = web.StreamResponse(headers={**_HEADERS, "Content-Type": "text/event-stream"})
        try:
            await response.prepare(request)
            version = _parse_event_id(feed, request.headers.get("Last-Event-ID", ""))
            while True:
                update = feed.read(version)
                if update is None:
                    await _wait(feed, response, version)
                    continue
                version = update.version
                await response.write(_event(feed, update))
        except ConnectionError:
            pass  # the reader is gone; that is the normal end
        return response


async def _wait(feed: Feed, response: web.StreamResponse, version: int | None) -> None:
    try:
        async with asyncio.timeout(_HEARTBEAT):
            await feed.wait(version)
    except TimeoutError:
        await response.write(b": still here\n\n")


def _event(feed: Feed, update: Update) -> bytes:
    first = update.version - len(update.texts) + 1
    return b"".join(
        b"id: %s.%d\nevent: %s\ndata: %s\n\n" % (feed.name.encode(), number, update.event.encode(), text)
        for number, text in enumerate(update.texts, first)
    )


def _parse_event_id(feed: Feed, text: str) -> int | None:
    """The version in an event id of this feed; None for any other text."""
    name, _, number = text.partition(".")
    return int(number[:15]) if name == feed.name and number.isascii() and number.isdecimal() else None


async def _serve_health(_request: web.Request) -> web.Response:
    return web.Response(text="ok\n", content_type=TEXT)


def _problem(code: int, text: str) -> web.Response:
    return web.Response(status=code, body=msgspec.json.encode({"error": text}), content_type=JSON)
