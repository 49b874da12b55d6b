"""Kueue's API as plain answers, for more Workloads than the lab makes in a test: lists, and places in queues."""

from contextlib import AbstractAsyncContextManager
from typing import Any

import msgspec

from tessera.clock import Clock
from tessera.kube.client import Client
from tessera.kube.requests import Request, Response, Stream
from tessera.kueue.objects import GROUP, VISIBILITY_GROUP

#: An answer of a proxy in front of the API server.
HTML = Response(status=200, headers={"content-type": "text/html"}, body=b"<html>Sign in</html>")


class KueueAnswers:
    """An API server with nothing but Kueue.

    Args:
        namespaces: the number of Workloads by namespace; all are in the LocalQueue ``q`` of their namespace.

    Attributes:
        answers: the answer by a part of the path, instead of the usual one; None refuses.
        admitted: the namespaces whose Workloads do not wait.
        places: the number of pending Workloads in each queue; None for those of its namespace.
        asked: the paths of all requests.
    """

    def __init__(self, namespaces: dict[str, int]) -> None:
        self.namespaces = namespaces
        self.answers: dict[str, Response | None] = {}
        self.admitted: set[str] = set()
        self.places: int | None = None
        self.asked: list[str] = []

    def client(self, clock: Clock) -> Client:
        """A client of it."""
        return Client(self, field_manager="test", clock=clock)

    async def request(self, request: Request) -> Response:
        """Answers."""
        self.asked.append(request.path)
        for part, answer in self.answers.items():
            if part in request.path:
                return answer or _answer({"kind": "Status", "reason": "Forbidden", "code": 403}, 403)
        query = dict(request.query)
        match request.path.strip("/").split("/"):
            case ["apis", group] if group in {GROUP, VISIBILITY_GROUP}:
                return _answer({"preferredVersion": {"version": "v1beta1"}})
            case [_, _, _, "namespaces", namespace, "localqueues", "q", "pendingworkloads"]:
                return _answer({"items": self._places(namespace, query)})
            case [_, _, _, *scope, "workloads"]:
                return self._list(scope, query)
            case [_, _, _, *scope, "localqueues"]:
                names = [scope[1]] if scope else self.namespaces
                return _answer({"items": [{"metadata": {"name": "q", "namespace": name}} for name in names]})
        return _answer({"kind": "Status", "reason": "NotFound", "code": 404}, 404)

    def _list(self, scope: list[str], query: dict[str, str]) -> Response:
        names = [scope[1]] if scope else sorted(self.namespaces)
        every = [(name, number) for name in names for number in range(self.namespaces[name])]
        begin, limit = int(query.get("continue", "0")), int(query.get("limit", str(len(every))))
        admitted = {"conditions": [{"type": "Admitted", "status": "True"}]}
        items = [
            {
                "metadata": {"name": f"w{number:05}", "namespace": name},
                "spec": {"queueName": "q"},
                "status": admitted if name in self.admitted else {},
            }
            for name, number in every[begin : begin + limit]
        ]
        more = {"continue": str(begin + limit)} if begin + limit < len(every) else {}
        return _answer({"metadata": more, "items": items})

    def _places(self, namespace: str, query: dict[str, str]) -> list[dict[str, Any]]:
        offset, limit = int(query.get("offset", "0")), int(query.get("limit", "1000"))
        count = self.namespaces[namespace] if self.places is None else self.places
        return [
            {
                "metadata": {"name": f"w{number:05}", "namespace": namespace},
                "localQueueName": "q",
                "positionInLocalQueue": number,
                "positionInClusterQueue": number,
            }
            for number in range(offset, min(count, offset + limit))
        ]

    def stream(self, request: Request) -> AbstractAsyncContextManager[Stream]:
        """Nothing is watched."""
        raise NotImplementedError(request.path)

    async def close(self) -> None:
        """Nothing is open."""


def _answer(body: dict[str, Any], status: int = 200) -> Response:
    return Response(status=status, headers={"content-type": "application/json"}, body=msgspec.json.encode(body))
