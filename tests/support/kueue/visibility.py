"""Kueue's visibility API in front of the lab, for one user.

In a cluster it is an aggregated API, which Kueue's own process serves; here a transport answers for it.
"""

from contextlib import AbstractAsyncContextManager

from tessera.clock import Clock
from tessera.kube.client import Client
from tessera.kube.requests import Request, Response, Stream, Transport
from tessera.kueue.objects import VISIBILITY_GROUP
from tessera_lab.kueue.manager import Visibility, respond


class VisibilityTransport:
    """Carries all other requests to the lab.

    Args:
        inner: the lab, as the user who asks.
        admin: the lab, as Kueue reads it.
        version: the version that is served.
        allowed: False refuses the user.
    """

    def __init__(self, inner: Transport, admin: Client, version: str, *, allowed: bool = True) -> None:
        self._inner = inner
        self._visibility = Visibility(admin, version)
        self._allowed = allowed

    async def request(self, request: Request) -> Response:
        """Answers for the visibility API; sends everything else on."""
        group = f"/apis/{VISIBILITY_GROUP}"
        if request.path != group and not request.path.startswith(f"{group}/"):
            return await self._inner.request(request)
        if request.path != group and not self._allowed:
            return respond(403, {"kind": "Status", "status": "Failure", "reason": "Forbidden", "code": 403})
        return await self._visibility.answer(request)

    def stream(self, request: Request) -> AbstractAsyncContextManager[Stream]:
        """Sends a watch on."""
        return self._inner.stream(request)

    async def close(self) -> None:
        """Closes the inner transport."""
        await self._inner.close()


def reader(inner: Transport, admin: Client, version: str, clock: Clock, *, allowed: bool = True) -> Client:
    """A client of a user for whom the visibility API is served."""
    return Client(VisibilityTransport(inner, admin, version, allowed=allowed), field_manager="user", clock=clock)
