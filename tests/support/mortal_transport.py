"""Ways to the API server that a test changes: one forwards all, one ends at a given write."""

from contextlib import AbstractAsyncContextManager

from tessera.kube.requests import Request, Response, Stream, Transport


class KilledError(Exception):
    """The process is dead from here on."""


class ForwardingTransport:
    """Forwards all to another transport; a test overrides what it changes."""

    def __init__(self, inner: Transport) -> None:
        self._inner = inner

    async def request(self, request: Request) -> Response:
        return await self._inner.request(request)

    def stream(self, request: Request) -> AbstractAsyncContextManager[Stream]:
        return self._inner.stream(request)

    async def close(self) -> None:
        await self._inner.close()


class TransportUntilWrite(ForwardingTransport):
    """The transport of a process that dies at one write.

    Args:
        inner: the way to the API server.
        last: number of writes before the fatal one.
        applied: the server carries the fatal write out; the process never sees the response.
    """

    def __init__(self, inner: Transport, *, last: int, applied: bool) -> None:
        super().__init__(inner)
        self._left = last
        self._applied = applied

    @property
    def dead(self) -> bool:
        """True from the fatal write on."""
        return self._left < 0

    async def request(self, request: Request) -> Response:
        self._check()
        if request.method != "GET":
            self._left -= 1
            if not self._applied:
                self._check()
        response = await self._inner.request(request)
        self._check()
        return response

    def stream(self, request: Request) -> AbstractAsyncContextManager[Stream]:
        self._check()
        return self._inner.stream(request)

    def _check(self) -> None:
        if self.dead:
            raise KilledError
