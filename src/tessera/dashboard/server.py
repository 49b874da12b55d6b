"""Serves the live page and its feed over HTTP.

Paths: ``/`` and ``/assets/…`` are the page, ``/feed`` its server-sent events, ``/why/NAMESPACE/POD`` the reason of a
wait as JSON, ``/events/NAMESPACE/POD`` a pod's events, with ``-`` as namespace those of a node, ``/whoami`` what the
visitor may see, ``/past/RANGE``, ``/past/RANGE/namespace/NAME`` and ``/past/RANGE/card/UUID`` curves from Prometheus,
``/login`` the provider by which visitors may sign in, ``/healthz`` the state of the process.

Rules for every request:

1. The Host header names this server, and an Origin, if there is one, is this server's: another site that a visitor has
   open, or one whose name was pointed to the loopback address, gets 403.
2. Only GET and HEAD are answered. A token belongs in the header Authorization: one in the address is refused, since
   addresses stand in logs and histories.
3. A strict Content-Security-Policy forbids scripts, styles and frames of other hosts, and connections to hosts other
   than that of the provider.
4. The page itself is for everybody; what it shows is for those whom a gate lets in. 401 comes as JSON with
   ``"login": true``.
5. A reader of the feed has no queue: it gets the changes since its version, or a snapshot.
"""

import ssl
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.resources import files
from typing import NamedTuple

import msgspec
from aiohttp import web

from tessera.dashboard.explainer import OF_NODES, PodEvent
from tessera.dashboard.feed import RECHECK, FeedGroup, FeedStream, TooManyViewsError
from tessera.dashboard.origins import LOOPBACK, PageNames, Provider
from tessera.dashboard.past import RANGES, PastError, PastReader, Subject
from tessera.dashboard.visitors import Gate, LoginNeededError, NotNowError, OwnRights, Visitor
from tessera.explain.explanation import ExplanationReport
from tessera.kube.errors import ApiError
from tessera.serving.bounded_port import Bounds, ConnectionPort
from tessera.serving.connection import Connection
from tessera.serving.fair_shares import find_giver
from tessera.serving.status_server import listening_socket
from tessera.status_pages import JSON, TEXT, OnListening
from tessera.visibility import Visibility

#: Most bytes: requests that the page's port holds, all connections together; the feed's requests count while they are
#: served. 8 KiB for each connection; a browser sends 2 KiB, with a large token 10.
PAGE_BYTES = 4 * 2**20
#: Most headers of a request to the page. Browsers send 15, and ingresses add 10.
PAGE_HEADERS = 64
#: Most bytes: the request line, or one header, of a request to the page. Tokens of OpenID Connect with many groups have
#: 8 KiB.
PAGE_HEADER = 16_384

#: Most connections to the page; beyond them, the address with the most loses its longest silent one. Twice the readers
#: of the feed.
PAGE_CONNECTIONS = 512
#: Most ms: handshake and headers of a request to the page. A slow phone needs less.
PAGE_HEADER_TIME = 10_000
#: Most readers: open connections to the feed of the live page. Each costs a task and a socket; the next one takes the
#: place of one of the user with most, or is refused with 503.
PAGE_READERS = 256

#: Explains why a pod waits, or a node, by namespace and name (see :mod:`tessera.dashboard.explainer`), for a visitor
#: who may see so much and has this key.
Explain = Callable[[str, str, Visibility, str], Awaitable[ExplanationReport]]
#: Reads the events of a pod, by namespace and name, for a visitor with this header Authorization, which may be missing.
ReadEvents = Callable[[str, str, str | None], Awaitable[Sequence[PodEvent] | None]]


async def no_events(_namespace: str, _pod: str, _authorization: str | None) -> None:
    """Reads no events."""


PAGE_BOUNDS = Bounds(
    connections=PAGE_CONNECTIONS,
    bytes=PAGE_BYTES,
    headers=PAGE_HEADERS,
    header=PAGE_HEADER,
    header_time=PAGE_HEADER_TIME,
    cancels=True,
)
_POLICY, _OWN = "Content-Security-Policy", "connect-src 'self'"
_HEADERS = {
    _POLICY: (
        f"default-src 'none'; script-src 'self'; style-src 'self'; {_OWN}; img-src 'self' data:;"
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
    "/assets/login.js": ("login.js", "text/javascript"),
    "/assets/icon.svg": ("icon.svg", "image/svg+xml"),
}
#: The answer under a name that is none of the page's; it repeats nothing that the request has.
_NOT_SERVED = (
    b"this page is not served under this name. Open it as localhost, or let an administrator add the name:\n"
    b"tessera install --dashboard --dashboard-origin https://NAME (in the chart: tessera.dashboard.origins)\n"
)
#: Parameters of an address in which people put tokens.
_TOKEN_PARAMETERS = frozenset({"token", "access_token", "id_token", "bearer", "authorization"})


class PageAddress(NamedTuple):
    """Address and port of the page, the names by which visitors may reach it, and where they may sign in.

    Attributes:
        host: address to listen on; None for all.
        port: TCP port; 0 picks a free one.
        names: None for this machine's names with this port.
        tls: for HTTPS; None for plain HTTP.
        provider: by which visitors may sign in; None if by a pasted token, or a proxy's, alone.
    """

    host: str | None
    port: int
    names: PageNames | None = None
    tls: ssl.SSLContext | None = None
    provider: Provider | None = None


class PageServer:
    """Serves the page.

    Args:
        feeds: the documents of the page.
        explain: explains why a pod waits.
        address: where to listen.
        gate: lets visitors in; None takes everybody for the user of the kubeconfig.
        recheck: seconds between two looks at a reader's rights.
        events: reads the events of a pod.
        past: asks Prometheus; None without one.
    """

    def __init__(
        self,
        feeds: FeedGroup,
        explain: Explain,
        address: PageAddress,
        gate: Gate | None = None,
        recheck: float = RECHECK,
        *,
        events: ReadEvents = no_events,
        past: PastReader | None = None,
    ) -> None:
        self._feeds = feeds
        self._explain = explain
        self._events = events
        self._past = past
        self._address = address
        self._gate = gate or OwnRights(PAGE_READERS)
        self._recheck = recheck
        folder = files("tessera.dashboard") / "assets"
        self._files = {path: ((folder / name).read_bytes(), kind) for path, (name, kind) in ASSETS.items()}
        self._policy = {_POLICY: _HEADERS[_POLICY]}
        if address.provider is not None:
            self._policy[_POLICY] = self._policy[_POLICY].replace(_OWN, f"{_OWN} {address.provider.origin}")
        self._names = address.names or PageNames()
        #: The connections of open feeds by user, the oldest first. No user without any.
        self._readers: dict[str, dict[Connection, None]] = {}

    @property
    def readers(self) -> int:
        """Number of open connections to the feed."""
        return sum(len(held) for held in self._readers.values())

    async def run(self, on_listening: OnListening | None = None) -> None:
        """Serves until cancelled.

        Raises:
            OSError: the port is taken.
        """
        listener = listening_socket(self._address.host, self._address.port)
        host, port = listener.getsockname()[:2]
        if self._address.names is None:
            self._names = PageNames([f"http://{name}:{port}" for name in LOOPBACK])
        if on_listening is not None:
            on_listening(host, port)
        await PagePort(self.respond, self._address.tls).serve(listener)

    async def respond(self, request: web.BaseRequest, connection: Connection) -> web.StreamResponse:
        """The answer to a request; a feed is the answer until its reader goes."""
        if not self._names.admit(request.headers.get("Host", ""), request.headers.get("Origin")):
            return _answer(403, _NOT_SERVED, TEXT)
        if request.method not in {"GET", "HEAD"}:
            return _answer(405, b"only GET and HEAD are answered\n", TEXT, Allow="GET, HEAD")
        if _TOKEN_PARAMETERS & {name.lower() for name in request.query}:
            return _problem(400, "a token does not belong in an address: send it as Authorization: Bearer TOKEN")
        if request.path in self._files:
            body, kind = self._files[request.path]
            return _answer(200, body, kind, **self._policy)
        if request.path == "/login":
            return _answer(200, msgspec.json.encode(self._address.provider), JSON)
        if request.path == "/healthz":
            return _answer(200, b"ok\n", TEXT)
        try:
            return await self._respond_to(request, connection)
        except LoginNeededError as error:
            return _login(str(error))
        except NotNowError as error:
            return _problem(error.code, str(error), **{"Retry-After": "1"})

    async def _respond_to(self, request: web.BaseRequest, connection: Connection) -> web.StreamResponse:
        match request.path.split("/"):
            case ["", "feed"] if request.method == "GET":
                return await self._serve_feed(request, connection, await self._admit(request, connection))
            case ["", "why", namespace, pod]:
                return await self._serve_reason(await self._admit(request, connection), namespace, pod)
            case ["", "events", namespace, pod]:
                visitor = await self._admit(request, connection)
                return await self._serve_events(visitor, namespace, pod, request.headers.get("Authorization"))
            case ["", "past", span, *about]:
                return await self._serve_past(await self._admit(request, connection), span, *about)
            case ["", "whoami"]:
                return await self._serve_identity(await self._admit(request, connection))
        return _answer(404, b"there is no such page\n", TEXT)

    async def _admit(self, request: web.BaseRequest, connection: Connection) -> Visitor:
        return await self._gate.admit(request.headers.get("Authorization"), connection.address)

    async def _serve_identity(self, visitor: Visitor) -> web.Response:
        visible = await visitor.visibility()
        namespaces = None if visible.namespaces is None else sorted(visible.namespaces)
        past = list(RANGES) if self._past is not None else []
        document = {"user": visitor.name, "nodes": visible.nodes, "namespaces": namespaces, "past": past}
        return _answer(200, msgspec.json.encode(document), JSON)

    async def _serve_reason(self, visitor: Visitor, namespace: str, pod: str) -> web.Response:
        visible = await visitor.visibility()
        if not _may_ask(visible, namespace):
            return _not_yours(namespace)
        return await _relay(self._explain(namespace, pod, visible, visitor.key))

    async def _serve_events(
        self, visitor: Visitor, namespace: str, pod: str, authorization: str | None
    ) -> web.Response:
        if not _may_ask(await visitor.visibility(), namespace):
            return _not_yours(namespace)
        return await _relay(self._events(namespace, pod, authorization))

    async def _serve_past(self, visitor: Visitor, span: str, *about: str) -> web.Response:
        visible = await visitor.visibility()
        match about:
            case []:  # sums of the cluster, which name nobody
                subject = Subject()
            case ["namespace", name] if name:
                if not visible.allows_pods(name):
                    return _not_yours(name)
                subject = Subject(namespace=name)
            case ["card", uuid] if uuid:
                if not visible.nodes:
                    return _problem(403, "curves of a card are for those who may list nodes")
                subject = Subject(card=uuid)
            case _:
                return _answer(404, b"there is no such page\n", TEXT)
        if self._past is None:
            return _problem(404, "this page has no Prometheus; tessera install --dashboard-prometheus URL names one")
        try:
            found = await self._past.read(span, subject, visitor.key)
        except PastError as error:
            return _problem(error.code, f"{error}: {error.detail}" if error.detail and visible.full else str(error))
        return _answer(200, msgspec.json.encode(found), JSON)

    async def _serve_feed(
        self, request: web.BaseRequest, connection: Connection, visitor: Visitor
    ) -> web.StreamResponse:
        if len(self._readers.get(visitor.key, ())) >= visitor.readers:
            return _problem(429, f"you have this page open {visitor.readers} times already", **{"Retry-After": "5"})
        if self.readers >= PAGE_READERS and not self._cut_off_one(visitor.key):
            return _problem(503, f"this page has {self.readers} readers already", **{"Retry-After": "5"})
        response = web.StreamResponse(headers={**_HEADERS, "Content-Type": "text/event-stream"})
        with self._reader(visitor.key, connection):
            visible = await visitor.visibility()
            try:
                with self._feeds.join(visible, visitor.key):
                    await response.prepare(request)
                    connection.clear_deadline()
                    stream = FeedStream(self._feeds, visitor, response, connection, self._recheck)
                    await stream.run(visible, request.headers.get("Last-Event-ID", ""))
            except (TooManyViewsError, LoginNeededError, NotNowError) as error:
                if response.prepared:  # the reader comes again, and is told why
                    return response
                if isinstance(error, TooManyViewsError):
                    return _problem(503, "readers with too many different rights look at this page")
                raise
            except ConnectionError:
                pass  # the reader is gone; that is the normal end
        return response

    def _cut_off_one(self, key: str) -> bool:
        """Ends the newest feed of the user with most, in favour of one with less; False if there is none such."""
        giver = find_giver({each: len(held) for each, held in self._readers.items()}, key)
        if giver is None:
            return False
        newest = list(self._readers[giver])[-1]
        self._forget(giver, newest)
        newest.cut_off("beyond the readers of all")
        return True

    @contextmanager
    def _reader(self, key: str, connection: Connection) -> Iterator[None]:
        self._readers.setdefault(key, {})[connection] = None
        try:
            yield
        finally:
            self._forget(key, connection)

    def _forget(self, key: str, connection: Connection) -> None:
        held = self._readers.get(key, {})
        held.pop(connection, None)
        if not held:
            self._readers.pop(key, None)


class PagePort(ConnectionPort):
    """The page's port; ``respond`` answers its requests."""

    def __init__(
        self,
        respond: Callable[[web.BaseRequest, Connection], Awaitable[web.StreamResponse]],
        tls: ssl.SSLContext | None,
    ) -> None:
        super().__init__("page", tls, PAGE_BOUNDS)
        self._respond = respond

    async def respond(self, request: web.BaseRequest, connection: Connection) -> web.StreamResponse:
        """See :meth:`ConnectionPort.respond`."""
        connection.set_deadline(PAGE_HEADER_TIME, "while its answer was made")
        return await self._respond(request, connection)


def _answer(code: int, body: bytes, kind: str, **headers: str) -> web.Response:
    kind = kind if kind == JSON else f"{kind}; charset=utf-8"
    return web.Response(status=code, body=body, headers={**_HEADERS, "Content-Type": kind, **headers})


def _problem(code: int, text: str, **headers: str) -> web.Response:
    return _answer(code, msgspec.json.encode({"error": text}), JSON, **headers)


def _may_ask(visible: Visibility, namespace: str) -> bool:
    return visible.full if namespace == OF_NODES else visible.allows_pods(namespace)


def _not_yours(namespace: str) -> web.Response:
    if namespace == OF_NODES:
        return _problem(403, "what is known of a node is for those who may list nodes, and pods of all namespaces")
    return _problem(403, f"you may not list pods in the namespace {namespace!r}")


async def _relay(asked: Awaitable[object]) -> web.Response:
    """What the API server says, or why it does not."""
    try:
        return _answer(200, msgspec.json.encode(await asked), JSON)
    except ApiError as error:
        return _problem(error.status.code or 502, str(error))
    except OSError as error:
        return _problem(502, f"the API server does not answer: {error}")


def _login(text: str) -> web.Response:
    body = msgspec.json.encode({"error": text, "login": True})
    return _answer(401, body, JSON, **{"WWW-Authenticate": "Bearer"})
