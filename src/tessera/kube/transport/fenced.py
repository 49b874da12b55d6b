"""A transport that sends writes only while its process leads.

A write that was right when it was decided may be sent later: after the pause of a 429, or after the whole process stood
still. So the transport checks leadership at the last moment, for every write of a leader.
"""

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager

from tessera.kube.transport.interface import Request, Response, Stream, Transport


class FencedTransport:
    """Sends reads always, and writes only while ``may_act()`` is true.

    Args:
        inner: carries the requests; closed with this one.
        may_act: returns whether this process may still write; must be cheap.
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
        """Closes the inner one."""
        await self._inner.close()
