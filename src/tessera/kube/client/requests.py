"""API requests: their bodies and query parameters, and the repetition of a request that the server answered 429."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import msgspec

from tessera import __version__
from tessera.clock import Clock
from tessera.kube.client.errors import TooManyRequests, error_from_response
from tessera.kube.resources.meta import Wire
from tessera.kube.transport.interface import Request, Response, Transport

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
        """Sends a request; see :meth:`tessera.kube.client.client.Client.request`."""
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
