"""Requests to an API server in this process, in JSON values."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec

from tessera.kube.requests import Request, Response
from tessera_lab.apiserver.interfaces import UserInfo
from tessera_lab.apiserver.main.inprocess_transport import InProcessTransport
from tessera_lab.apiserver.main.server import ApiServer

ADMIN = UserInfo(name="admin", groups=("system:masters", "system:authenticated"))


class ManualClock:
    """A clock that a test sets."""

    def __init__(self) -> None:
        self.seconds = 1_700_000_000.0

    def now(self) -> float:
        return self.seconds

    def monotonic(self) -> float:
        return self.seconds

    async def sleep(self, seconds: float) -> None:
        self.seconds += seconds
        await asyncio.sleep(0)


class ApiUser:
    """Sends requests of one user in JSON values; ``headers`` are those of the last answer."""

    def __init__(self, server: ApiServer, user: UserInfo = ADMIN) -> None:
        self.server = server
        self.transport = InProcessTransport(server, user)
        self.headers: dict[str, str] = {}

    async def raw(
        self, method: str, url: str, body: Any = None, content: str = "application/json", **headers: str
    ) -> Response:
        path, _, query = url.partition("?")
        pairs = [(k, v) for k, _, v in (part.partition("=") for part in query.split("&") if part)]
        sent = {"content-type": content, "user-agent": "test/1", **{k.replace("_", "-"): v for k, v in headers.items()}}
        encoded = body if isinstance(body, bytes) else b"" if body is None else msgspec.json.encode(body)
        return await self.transport.request(Request(method=method, path=path, query=pairs, headers=sent, body=encoded))

    async def __call__(
        self, method: str, url: str, body: Any = None, content: str = "application/json", **headers: str
    ) -> Any:
        """Returns the answer as a JSON value; a refusal is a Status with its ``code``."""
        answer = await self.raw(method, url, body, content, **headers)
        self.headers = dict(answer.headers)
        return msgspec.json.decode(answer.body)

    async def merge(self, url: str, patch: Any, **headers: str) -> Any:
        return await self("PATCH", url, patch, "application/merge-patch+json", **headers)

    @asynccontextmanager
    async def watch(self, url: str, **headers: str) -> AsyncIterator["WatchEvents"]:
        path, _, query = url.partition("?")
        pairs = [("watch", "1")] + [(k, v) for k, _, v in (part.partition("=") for part in query.split("&") if part)]
        async with self.transport.stream(Request(method="GET", path=path, query=pairs, headers=headers)) as stream:
            yield WatchEvents(stream.chunks())


class WatchEvents:
    """Reads a watch's events one by one."""

    def __init__(self, chunks: AsyncIterator[bytes]) -> None:
        self._chunks = chunks
        self._lines: list[bytes] = []

    async def next(self) -> tuple[str, Any]:
        while not self._lines:
            async with asyncio.timeout(60):
                self._lines = (await anext(self._chunks)).splitlines()
        event = msgspec.json.decode(self._lines.pop(0))
        return event["type"], event["object"]

    async def names(self, count: int) -> list[str]:
        """``TYPE name`` of the next events."""
        events = [await self.next() for _ in range(count)]
        return [f"{kind} {obj['metadata'].get('name', '')}" for kind, obj in events]


def pod(name: str = "", **spec: Any) -> dict[str, Any]:
    """A pod with one container."""
    container = {"name": "main", "image": "busybox"}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name} if name else {"generateName": "pod-"},
        "spec": {"containers": [container], **spec},
    }


def config_map(name: str, **data: str) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": data}
