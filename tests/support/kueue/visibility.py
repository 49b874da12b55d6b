"""Kueue's visibility API in front of the lab: positions of pending Workloads, in the order of the stand-in.

In a cluster it is an aggregated API, which Kueue's own process serves; here a transport answers for it.
"""

import re
from contextlib import AbstractAsyncContextManager
from typing import Any

import msgspec
from tests.support.kueue.stand_in import is_true, kind, order

from tessera.clock import Clock
from tessera.kube.client.client import Client
from tessera.kube.transport.interface import Request, Response, Stream, Transport
from tessera.kueue.names import VISIBILITY_GROUP

_QUEUE = re.compile(rf"/apis/{VISIBILITY_GROUP}/([a-z0-9]+)/namespaces/([^/]+)/localqueues/([^/]+)/pendingworkloads")


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
        self._admin = admin
        self._version = version
        self._allowed = allowed

    async def request(self, request: Request) -> Response:
        """Answers for the visibility API; sends everything else on."""
        if request.path == f"/apis/{VISIBILITY_GROUP}":
            version = {"groupVersion": f"{VISIBILITY_GROUP}/{self._version}", "version": self._version}
            return _answer(200, {"kind": "APIGroup", "preferredVersion": version})
        found = _QUEUE.fullmatch(request.path)
        if found is None:
            return await self._inner.request(request)
        if not self._allowed:
            return _answer(403, {"kind": "Status", "status": "Failure", "reason": "Forbidden", "code": 403})
        assert found[1] == self._version
        items, query = await self._pending(found[2], found[3]), dict(request.query)
        offset, limit = int(query.get("offset", "0")), int(query.get("limit", "1000"))
        return _answer(200, {"kind": "PendingWorkloadsSummary", "items": items[offset : offset + limit]})

    async def _pending(self, namespace: str, queue: str) -> list[dict[str, Any]]:
        listed = (await self._admin.list(kind("workloads", "Workload", self._version, namespaced=True))).items
        waiting = sorted((each for each in listed if not is_true(each, "QuotaReserved")), key=order)
        own = [
            (at, each)
            for at, each in enumerate(waiting)
            if (each["metadata"]["namespace"], each["spec"]["queueName"]) == (namespace, queue)
        ]
        return [
            {
                "metadata": {"name": each["metadata"]["name"], "namespace": namespace},
                "priority": each["spec"].get("priority", 0),
                "localQueueName": queue,
                "positionInClusterQueue": at,
                "positionInLocalQueue": number,
            }
            for number, (at, each) in enumerate(own)
        ]

    def stream(self, request: Request) -> AbstractAsyncContextManager[Stream]:
        """Sends a watch on."""
        return self._inner.stream(request)

    async def close(self) -> None:
        """Closes the inner transport."""
        await self._inner.close()


def reader(inner: Transport, admin: Client, version: str, clock: Clock, *, allowed: bool = True) -> Client:
    """A client of a user for whom the visibility API is served."""
    return Client(VisibilityTransport(inner, admin, version, allowed=allowed), field_manager="user", clock=clock)


def _answer(status: int, body: dict[str, Any]) -> Response:
    return Response(status=status, headers={"content-type": "application/json"}, body=msgspec.json.encode(body))
