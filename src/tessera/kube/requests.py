"""API requests: the transport that carries them, their bodies and parameters, and their repetition after a 429.

Two transports exist: :mod:`tessera.kube.http` speaks HTTP through aiohttp, and the lab calls its API server
in the same process without sockets. Neither interprets the bytes.

:class:`FencedTransport` sends writes only while its process leads. A write that was right when it was decided may be
sent later: after the pause of a 429, or after the whole process stood still. So it checks leadership at the last
moment, for every write of a leader.
"""

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, Literal, Protocol

import msgspec

from tessera import __version__
from tessera.clock import Clock
from tessera.kube.errors import TooManyRequests, error_from_response
from tessera.kube.resources.meta import Wire


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


#: How often a request that the server answered 429 is sent at most.
_TRIES = 5
#: Longest pause before another try, seconds, whatever the server asks.
_LONGEST_PAUSE = 30.0

#: No headers besides those of every request.
NO_HEADERS: Mapping[str, str] = {}
JSON = "application/json"
MERGE_PATCH = "application/merge-patch+json"
APPLY_PATCH = "application/apply-patch+yaml"

Propagation = Literal["Orphan", "Background", "Foreground"]


class _Preconditions(Wire, frozen=True, kw_only=True):
    uid: str | None = None
    resource_version: str | None = None


class _DeleteOptions(Wire, frozen=True, kw_only=True):
    grace_period_seconds: int | None = None
    preconditions: _Preconditions = _Preconditions()
    propagation_policy: Propagation | None = None


def delete_body(
    uid: str | None, resource_version: str | None, grace_seconds: int | None, propagation: Propagation | None
) -> dict[str, Any]:
    """``DeleteOptions`` with these preconditions."""
    options = _DeleteOptions(
        grace_period_seconds=grace_seconds,
        preconditions=_Preconditions(uid=uid, resource_version=resource_version),
        propagation_policy=propagation,
    )
    return {"apiVersion": "v1", "kind": "DeleteOptions", **msgspec.to_builtins(options)}


def eviction_body(
    name: str, namespace: str, uid: str | None, resource_version: str | None, grace_seconds: int | None
) -> dict[str, Any]:
    """``Eviction`` of a pod with these preconditions."""
    preconditions = _Preconditions(uid=uid, resource_version=resource_version)
    options = _DeleteOptions(grace_period_seconds=grace_seconds, preconditions=preconditions)
    return {
        "apiVersion": "policy/v1",
        "kind": "Eviction",
        "metadata": {"name": name, "namespace": namespace},
        "deleteOptions": msgspec.to_builtins(options),
    }


def binding_body(name: str, namespace: str, node: str, uid: str | None) -> dict[str, Any]:
    """``Binding`` of a pod to a node."""
    identity = {"name": name, "namespace": namespace, **({"uid": uid} if uid else {})}
    target = {"apiVersion": "v1", "kind": "Node", "name": node}
    return {"apiVersion": "v1", "kind": "Binding", "metadata": identity, "target": target}


def selector_query(labels: str | None, fields: str | None) -> list[tuple[str, str]]:
    """Query parameters of the selectors that are not None."""
    pairs = (("labelSelector", labels), ("fieldSelector", fields))
    return [(name, value) for name, value in pairs if value]


def with_preconditions(patch: Mapping[str, Any], version: str | None, uid: str | None) -> Mapping[str, Any]:
    """A patch that the server applies only to this version, and only to the object with this UID."""
    pairs = (("resourceVersion", version), ("uid", uid))
    named = {name: value for name, value in pairs if value is not None}
    return {**patch, "metadata": {**patch.get("metadata", {}), **named}} if named else patch


class RequestSender:
    """Encodes requests and sends them; repeats a read, a patch or a delete that was answered 429.

    Args:
        transport: carries the requests.
        clock: for pauses after 429.
        component: shown in the user agent, ``tessera/<version> (<component>)``.
    """

    def __init__(self, transport: Transport, clock: Clock, component: str) -> None:
        self._transport = transport
        self._clock = clock
        self._agent = f"tessera/{__version__} ({component})"

    def headers(self, accept: str = JSON) -> dict[str, str]:
        """Returns the headers of every request."""
        return {"accept": accept, "user-agent": self._agent}

    async def send(
        self,
        method: str,
        path: str,
        *,
        query: Sequence[tuple[str, str]],
        body: object,
        content_type: str,
        accept: str,
        headers: Mapping[str, str] = NO_HEADERS,
    ) -> Response:
        """Sends a request; see :meth:`tessera.kube.client.Client.request`."""
        headers = {**self.headers(accept), **headers}
        encoded = b""
        if body is not None:
            headers["content-type"] = content_type
            encoded = msgspec.json.encode(body)
        return await self._repeat(Request(method=method, path=path, query=query, headers=headers, body=encoded))

    async def _repeat(self, request: Request) -> Response:
        tries = _TRIES if request.method in {"GET", "PATCH", "DELETE"} else 1
        while True:
            answer = await self._transport.request(request)
            if answer.status < 400:
                return answer
            error = error_from_response(answer.status, answer.headers, answer.body)
            tries -= 1
            if tries == 0 or not isinstance(error, TooManyRequests) or error.retry_after is None:
                raise error
            await self._clock.sleep(min(error.retry_after, _LONGEST_PAUSE))
