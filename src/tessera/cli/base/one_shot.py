"""The transport of a command that asks a few times and ends: HTTP/1.1 on asyncio's streams.

aiohttp costs 90 ms of CPU time to import, more than all else that most commands do (``bench/cli.py``). The standard
library's ``http.client`` blocks its thread, so that Ctrl-C would wait for the server. Watches, WebSockets and servers
behind a proxy are left to :class:`~tessera.kube.http.HttpTransport`, which is imported only for these.

A connection costs about 10 ms of CPU time, at both ends, most of it for TLS: more than most requests. Requests at the
same time share one, and another is made for a request that has waited as long as that is worth. Answers that do not
come, as of a node that hangs behind the API server's proxy, hold their connections and delay no other request for long.
"""

import asyncio
import os
import re
import socket
import ssl
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import urlencode, urlsplit

from tessera.kube.cluster_config import ClusterConfig, TlsContexts, describe_certificate_error
from tessera.kube.credentials import Credential
from tessera.kube.requests import Request, Response, Stream

if TYPE_CHECKING:
    from tessera.kube.http import HttpTransport

#: Seconds to connect.
_CONNECT_TIMEOUT = 10.0
#: Seconds that a request waits for a connection that is in use or being made, before it makes its own.
_PATIENCE = 0.025
#: Connections from which on a request waits :data:`_LONG_PATIENCE` times as long before it makes a further one, and
#: those from which on it makes none; a command has fewer requests at a time.
_CONNECTIONS, _LONG_PATIENCE, _ALL_CONNECTIONS = 8, 10, 64
#: Most bytes of an answer's head, or of one line of it.
_HEAD = 2**18
#: Status by which proxies end a connection that was idle: they send it instead of the answer to the next request.
_TOO_LATE = 408
_ERRNO = re.compile(r"\[Errno (\d+)\]")


class _Connection:
    """One connection: a request at a time.

    Args:
        reader: what the server sends.
        writer: what it gets.
        credential: whose client certificate it was made with.
    """

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, credential: Credential) -> None:
        self._reader = reader
        self._writer = writer
        self._certificate = credential.certificate
        self.reusable = False

    def serves(self, credential: Credential) -> bool:
        """True if the server has not closed it since its last answer, and knows it by this credential's certificate."""
        ended = self._reader.at_eof() or self._writer.is_closing()
        return not ended and self._certificate == credential.certificate

    async def ask(self, head: bytes, body: bytes) -> Response:
        """Sends a request and reads the whole answer.

        Raises:
            EOFError: the connection ended before the answer did.
            ValueError: the answer is not HTTP.
        """
        self.reusable = False
        self._writer.write(head + body)
        found = await self._read_head()
        while found.status < 200:
            found = await self._read_head()
        content = await self._read_body(found)
        # An answer without a length ends with its connection.
        self.reusable = found.keeps and found.status != _TOO_LATE and not self._reader.at_eof()
        return Response(status=found.status, headers=found.headers, body=content)

    async def _read_head(self) -> "_Head":
        return _parse_head(await self._reader.readuntil(b"\r\n\r\n"))

    async def _read_body(self, head: "_Head") -> bytes:
        if head.status in {204, 304}:
            return b""
        if head.headers.get("transfer-encoding", "").lower() == "chunked":
            return b"".join([chunk async for chunk in self._chunks()])
        if (length := head.headers.get("content-length")) is not None:
            return await self._reader.readexactly(int(length))
        return await self._reader.read()

    async def _chunks(self) -> AsyncIterator[bytes]:
        while size := int((await self._reader.readuntil(b"\r\n")).partition(b";")[0], 16):
            yield (await self._reader.readexactly(size + 2))[:-2]
        while await self._reader.readuntil(b"\r\n") != b"\r\n":
            pass  # trailers

    def abort(self) -> None:
        """Ends the connection at once."""
        self._writer.transport.abort()


class _Head(NamedTuple):
    """Status and headers of an answer; ``keeps`` is False if the server closes the connection after it."""

    status: int
    headers: dict[str, str]
    keeps: bool


def _parse_head(head: bytes) -> _Head:
    first, *lines = head.decode("latin-1").split("\r\n")[:-2]
    version, code, *_ = first.split(" ", 2)
    if not version.startswith("HTTP/1."):
        raise ValueError(first[:40])
    pairs = (line.partition(":") for line in lines)
    headers = {name.strip().lower(): value.strip() for name, _, value in pairs}
    return _Head(int(code), headers, version == "HTTP/1.1" and headers.get("connection", "").lower() != "close")


class _Connections:
    """The connections of a transport, and the requests that wait for one.

    Args:
        patience: seconds that a request waits before it makes its own.
    """

    def __init__(self, patience: float) -> None:
        self._patience = patience
        self._idle: list[_Connection] = []
        self._open = 0  # idle, in use, or being made
        self._waiting: deque[asyncio.Future[_Connection | None]] = deque()
        self._closed = False

    async def take(self) -> _Connection | None:
        """Returns a connection that was used before; None if the caller makes one.

        Raises:
            OSError: the only connection could not be made, as another request has found.
        """
        if self._idle:
            return self._idle.pop()
        if not self._open:
            self._open += 1
            return None
        loop = asyncio.get_running_loop()
        turn: asyncio.Future[_Connection | None] = loop.create_future()
        self._waiting.append(turn)
        timers = [
            loop.call_later(self._patience, self._end_wait, turn, _CONNECTIONS),
            loop.call_later(self._patience * _LONG_PATIENCE, self._end_wait, turn, _ALL_CONNECTIONS),
        ]
        try:
            return await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled() and turn.exception() is None:
                self.give_back(turn.result())
            raise
        finally:
            for timer in timers:
                timer.cancel()

    def _end_wait(self, turn: "asyncio.Future[_Connection | None]", most: int) -> None:
        if not turn.done() and self._open < most:
            self._open += 1
            turn.set_result(None)

    def give_back(self, connection: _Connection | None) -> None:
        """Takes a connection back after its use; None for one that has ended."""
        if connection is not None and (self._closed or not connection.reusable):
            connection.abort()
            connection = None
        if (turn := self._next_waiting()) is not None:
            turn.set_result(connection)
        elif connection is not None:
            self._idle.append(connection)
        else:
            self._open -= 1

    def fail(self, error: BaseException) -> None:
        """Takes note that a connection could not be made; if there is no other one, all waiting requests fail."""
        if self._open > 1 or not isinstance(error, OSError):
            self.give_back(None)
            return
        self._open -= 1
        while (turn := self._next_waiting()) is not None:
            turn.set_exception(error)

    def _next_waiting(self) -> "asyncio.Future[_Connection | None] | None":
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                return turn
        return None

    def close(self) -> None:
        """Ends the idle ones, and later those that are in use."""
        self._closed = True
        while self._idle:
            self._open -= 1
            self._idle.pop().abort()


class OneShotTransport:
    """Carries requests to one API server.

    Args:
        config: the server and the credentials.
        patience: seconds that a request waits for a connection of another one, before it makes its own.
    """

    def __init__(self, config: ClusterConfig, *, patience: float = _PATIENCE) -> None:
        self._config = config
        self._base = config.server.rstrip("/")
        self._tls = TlsContexts(config)
        self._connections = _Connections(patience)
        self._whole: HttpTransport | None = None

    async def request(self, request: Request) -> Response:
        """Sends a request and reads the whole answer.

        Raises:
            ConnectionError: no answer was received.
            TimeoutError: none came in time.
            CredentialError: no credentials are available.
        """
        if self._config.proxy:
            return await self._http().request(request)
        credential = await self._config.credential_of(request)
        answer = await self._send(request, credential)
        if answer.status == 401 and self._config.credentials.reject(credential):
            answer = await self._send(request, await self._config.credential_of(request))
        return answer

    @asynccontextmanager
    async def stream(self, request: Request) -> AsyncIterator[Stream]:
        """Sends a request whose answer is read piece by piece."""
        async with self._http().stream(request) as found:
            yield found

    async def close(self) -> None:
        """Ends all streams and frees the connections."""
        self._connections.close()
        await asyncio.sleep(0)  # asyncio closes the sockets in its next round, and the loop may end with this call
        if self._whole is not None:
            await self._whole.close()

    def _http(self) -> "HttpTransport":
        from tessera.kube.http import HttpTransport

        self._whole = self._whole or HttpTransport(self._config)
        return self._whole

    async def _send(self, request: Request, credential: Credential) -> Response:
        head = self._head(request, credential)
        try:
            async with asyncio.timeout(self._config.timeout):
                while True:
                    kept = await self._connections.take()
                    if kept is not None and not kept.serves(credential):
                        kept.abort()
                        kept = None  # its place is that of the next
                    try:
                        answer = await self._ask(kept or await self._connect(credential), head, request.body)
                    except (EOFError, ConnectionError):
                        if kept is None or _may_change(request):
                            raise  # the server may have acted; a kept connection that had ended is no reason to repeat
                    else:
                        if kept is None or answer.status != _TOO_LATE:
                            return answer
        except TimeoutError as error:
            raise TimeoutError(f"{self._base} did not answer in time") from error
        except (OSError, EOFError, ValueError, asyncio.LimitOverrunError) as error:
            raise ConnectionError(f"{self._base}: {_describe_error(error, self._base)}") from error

    async def _ask(self, connection: _Connection, head: bytes, body: bytes) -> Response:
        try:
            return await connection.ask(head, body)
        finally:
            self._connections.give_back(connection)

    async def _connect(self, credential: Credential) -> _Connection:
        url = urlsplit(self._base)
        try:
            context = self._tls.of(credential)
            port = url.port or (443 if context else 80)
            name = (self._config.server_name or None) if context else None
            async with asyncio.timeout(_CONNECT_TIMEOUT):
                reader, writer = await asyncio.open_connection(
                    url.hostname, port, ssl=context, server_hostname=name, limit=_HEAD
                )
            return _Connection(reader, writer, credential)
        except BaseException as error:
            self._connections.fail(error)
            raise

    def _head(self, request: Request, credential: Credential) -> bytes:
        url = urlsplit(self._base)
        query = f"?{urlencode(request.query)}" if request.query else ""
        headers = [
            ("host", url.netloc.rpartition("@")[2]),
            ("accept-encoding", "identity"),
            *request.headers.items(),
            *self._config.own_headers(credential),
        ]
        if request.body or request.method not in {"GET", "HEAD"}:
            headers.append(("content-length", str(len(request.body))))
        lines = [f"{request.method} {url.path}{request.path}{query} HTTP/1.1", *map(": ".join, headers)]
        if any("\r" in line or "\n" in line for line in lines):
            raise ConnectionError("a header or the path of the request holds a line break; nothing was sent")
        return "\r\n".join([*lines, "", ""]).encode()


def _may_change(request: Request) -> bool:
    """True for a request that is not sent twice: it may change something. Reviews, tokens and dry runs do not."""
    asks = request.path.endswith(("reviews", "/token")) or ("dryRun", "All") in request.query
    return request.method != "GET" and not asks


def _describe_error(error: Exception, base: str) -> str:
    """Describes an error in plain words, or in the system's."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return describe_certificate_error(error)
    if isinstance(error, socket.gaierror):
        return f"no address is known for the name {urlsplit(base).hostname}; is it right, and is the network up?"
    if isinstance(error, EOFError):
        return "the connection ended before the answer"
    if isinstance(error, (ValueError, asyncio.LimitOverrunError)):
        return "the answer is not HTTP"
    # Of several addresses of a name, each with its failure, the first one counts.
    numbers = [] if isinstance(error, ssl.SSLError) else [getattr(error, "errno", 0), *_ERRNO.findall(str(error))]
    number = next((int(each) for each in numbers if each), 0)
    return os.strerror(number).lower() if number > 0 else str(error) or type(error).__name__
