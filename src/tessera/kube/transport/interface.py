"""The transport protocol below the API client: one request with one answer, or one stream of bytes.

Two implementations exist: :mod:`tessera.kube.transport.http` speaks HTTP through aiohttp, and the lab calls its API
server in the same process without sockets. Neither interprets the bytes.

:class:`FencedTransport` sends writes only while its process leads. A write that was right when it was decided may be
sent later: after the pause of a 429, or after the whole process stood still. So it checks leadership at the last
moment, for every write of a leader.
"""

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Protocol

import msgspec


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """One API request.

    Attributes:
        method: ``GET``, ``POST``, ``PUT``, ``PATCH`` or ``DELETE``.
        path: absolute path, percent-encoded, without query.
        query: parameters in order; the transport encodes them.
        headers: names in lower case; credentials are the transport's business. With ``authorization`` the request is
            that of another user, and no proof of the transport's own goes with it.
        body: the encoded body, empty for none.
    """

    method: str
    path: str
    query: Sequence[tuple[str, str]] = ()
    headers: Mapping[str, str] = {}
    body: bytes = b""


class Response(msgspec.Struct, frozen=True, kw_only=True):
    """One API answer; header names are in lower case."""

    status: int
    headers: Mapping[str, str] = {}
    body: bytes = b""


class Stream(Protocol):
    """An answer whose body arrives in pieces (a watch). ``chunks`` ends when the server ends the stream."""

    status: int
    headers: Mapping[str, str]

    def chunks(self) -> AsyncIterator[bytes]:
        """Pieces of the body as they arrive, cut anywhere, never empty.

        Raises:
            ConnectionError: the connection broke or stayed silent for too long.
        """
        ...

    async def read(self) -> bytes:
        """The whole rest of the body: for an error answer to a watch request."""
        ...


class Transport(Protocol):
    """Carries requests to one API server under one identity."""

    async def request(self, request: Request) -> Response:
        """Sends a request and reads the whole answer, whatever its status.

        Raises:
            ConnectionError: no answer was received; it is unknown if the server acted.
            TimeoutError: no answer came in time; it is unknown if the server acted.
        """
        ...

    def stream(self, request: Request) -> AbstractAsyncContextManager[Stream]:
        """Sends a request whose answer is read piece by piece; leaving the context ends it.

        Raises:
            ConnectionError: no answer was received.
        """
        ...

    async def close(self) -> None:
        """Ends all streams and frees the connections."""
        ...


class FencedTransport:
    """Sends reads always, and writes only while ``may_act()`` is true.

    Args:
        inner: carries the requests; closed with this one.
        may_act: returns True while this process may write; must be cheap.
    """

    def __init__(self, inner: Transport, may_act: Callable[[], bool]) -> None:
        self._inner = inner
        self._may_act = may_act

    async def request(self, request: Request) -> Response:
        """Sends a request and reads the whole answer.

        Raises:
            ConnectionError: a write, and this process may not act any more; or no answer was received.
            TimeoutError: none came in time.
        """
        if request.method != "GET" and not self._may_act():
            raise ConnectionError("this replica does not lead any more; nothing was sent")
        return await self._inner.request(request)

    def stream(self, request: Request) -> AbstractAsyncContextManager[Stream]:
        """Sends a request whose answer is read piece by piece."""
        return self._inner.stream(request)

    async def close(self) -> None:
        """Closes the inner transport."""
        await self._inner.close()
