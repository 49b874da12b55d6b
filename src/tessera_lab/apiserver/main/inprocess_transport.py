"""A :class:`~tessera.kube.requests.Transport` to the API server in the same process, without sockets.

One transport is one identity. Under a virtual event loop everything, timeouts and bookmarks included, runs on virtual
time.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

from tessera.kube.requests import Request, Response, Stream
from tessera_lab.apiserver.handlers.dispatch import Connected
from tessera_lab.apiserver.interfaces import UserInfo
from tessera_lab.apiserver.main.server import ApiServer, StreamResponse


class InProcessTransport:
    """Sends the requests of one user to one server."""

    def __init__(self, server: ApiServer, user: UserInfo) -> None:
        self._server = server
        self._user = user
        self._open: set[StreamResponse] = set()
        self._closed = False

    async def request(self, request: Request) -> Response:
        """Sends one request and returns its answer; reads a watch until it ends.

        Raises:
            ConnectionError: the transport is closed.
        """
        answer = await self._handle(request)
        if isinstance(answer, Response):
            return answer
        try:
            body = b"".join([chunk async for chunk in answer.chunks()])
        finally:
            answer.close()
        return Response(status=answer.status, headers=answer.headers, body=body)

    @asynccontextmanager
    async def stream(self, request: Request) -> AsyncIterator[Stream]:
        """Opens a watch; leaving the context ends it.

        Raises:
            ConnectionError: the transport is closed.
        """
        answer = await self._handle(request)
        if isinstance(answer, Response):
            yield _WholeAnswer(answer)
            return
        self._open.add(answer)
        try:
            yield _Open(answer)
        finally:
            self._open.discard(answer)
            answer.close()

    async def close(self) -> None:
        """Ends all streams; later requests fail."""
        self._closed = True
        for answer in list(self._open):
            answer.close()

    async def _handle(self, request: Request) -> Response | StreamResponse:
        if self._closed:
            raise ConnectionError("the transport is closed")
        await asyncio.sleep(0)  # as over a network, other tasks run between any two requests
        answer = await self._server.handle(request, self._user)
        assert not isinstance(answer, Connected), "only a WebSocket is connected"
        return answer


class _Open:
    """An open watch, read as a stream."""

    def __init__(self, answer: StreamResponse) -> None:
        self._answer = answer
        self.status = answer.status
        self.headers: Mapping[str, str] = answer.headers

    def chunks(self) -> AsyncIterator[bytes]:
        return self._answer.chunks()

    async def read(self) -> bytes:
        return b"".join([chunk async for chunk in self.chunks()])


class _WholeAnswer:
    """A plain answer read as a stream."""

    def __init__(self, answer: Response) -> None:
        self._body = answer.body
        self.status = answer.status
        self.headers: Mapping[str, str] = answer.headers

    async def chunks(self) -> AsyncIterator[bytes]:
        if self._body:
            yield self._body

    async def read(self) -> bytes:
        return self._body
