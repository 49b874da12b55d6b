"""A scripted API server (real HTTP round trips), a loop on virtual time, and clocks that do not wait."""

import asyncio
import json
import random
import selectors
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from typing import Any, TypeVar
from urllib.parse import parse_qsl, urlsplit

import msgspec
import pytest

from tessera.kube.client import Client
from tessera.kube.cluster_config import ClusterConfig
from tessera.kube.credentials import StaticCredentials
from tessera.kube.http import HttpTransport

T = TypeVar("T")


class Call(msgspec.Struct, kw_only=True):
    """A request as the server saw it."""

    method: str
    path: str
    query: dict[str, str]
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


Reply = Callable[[asyncio.StreamWriter], Awaitable[None]]


class ScriptedServer:
    """Answers the n-th request with the n-th reply; after the last one it answers nothing any more."""

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self.script: deque[Reply] = deque()
        self.exhausted = asyncio.Event()
        self.url = ""
        self._writers: list[asyncio.StreamWriter] = []
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self, **options: Any) -> None:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0, **options)
        scheme = "https" if "ssl" in options else "http"
        self.url = f"{scheme}://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def stop(self) -> None:
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for writer in self._writers:
            writer.close()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task
        self._tasks.add(task)
        self._writers.append(writer)
        try:
            while True:
                self.calls.append(await _read_call(reader))
                if not self.script:
                    self.exhausted.set()
                    await asyncio.Event().wait()
                await self.script.popleft()(writer)
                await writer.drain()
                if writer.is_closing():
                    return
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            writer.close()

    # Replies

    def answers(self, body: Any, status: int = 200, **headers: str) -> "ScriptedServer":
        """The next request gets this JSON."""
        encoded = body if isinstance(body, bytes) else json.dumps(body).encode()
        more = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in headers.items())

        async def reply(writer: asyncio.StreamWriter) -> None:
            writer.write(f"HTTP/1.1 {status} X\r\ncontent-length: {len(encoded)}\r\n{more}\r\n".encode() + encoded)

        self.script.append(reply)
        return self

    def refuses(
        self, code: int, reason: str, message: str = "no", causes: Sequence[Any] = (), **headers: str
    ) -> "ScriptedServer":
        """The next request gets this Status."""
        body: dict[str, Any] = {"kind": "Status", "status": "Failure", "code": code, "reason": reason}
        body |= {"message": message, "details": {"causes": causes}}
        return self.answers(body, code, **headers)

    def lists(self, *items: Any, version: int = 100, token: str = "") -> "ScriptedServer":
        """The next request gets a list."""
        return self.answers({"metadata": {"resourceVersion": str(version), "continue": token}, "items": items})

    def streams(self, *lines: Any, then: str = "end", cut: int = 0) -> "ScriptedServer":
        """The next request gets watch lines in chunks of ``cut`` bytes, then an ``end``, ``reset`` or ``silence``."""
        data = b"".join((line if isinstance(line, bytes) else json.dumps(line).encode()) + b"\n" for line in lines)
        data = data.replace(b'{"type": "', b'{"type":"')
        size = cut or max(len(data), 1)

        async def reply(writer: asyncio.StreamWriter) -> None:
            writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")
            for start in range(0, len(data), size):
                piece = data[start : start + size]
                writer.write(b"%x\r\n%s\r\n" % (len(piece), piece))
                await writer.drain()
            if then == "end":
                writer.write(b"0\r\n\r\n")
            elif then == "reset":
                writer.write(b"ff\r\nhalf a chu")
                await writer.drain()
                writer.transport.abort()
            else:
                self.exhausted.set()
                await asyncio.Event().wait()

        self.script.append(reply)
        return self

    def breaks(self) -> "ScriptedServer":
        """The next request finds the connection closed without an answer."""

        async def reply(writer: asyncio.StreamWriter) -> None:
            writer.transport.abort()

        self.script.append(reply)
        return self


async def _read_call(reader: asyncio.StreamReader) -> Call:
    head = (await reader.readuntil(b"\r\n\r\n")).decode()
    first, *rest = head.rstrip().split("\r\n")
    method, target, _ = first.split(" ")
    headers = {name.lower(): value for name, value in (line.split(": ", 1) for line in rest)}
    body = await reader.readexactly(int(headers.get("content-length", "0")))
    url = urlsplit(target)
    return Call(method=method, path=url.path, query=dict(parse_qsl(url.query)), headers=headers, body=body)


class ImpatientClock:
    """Notes the pauses asked for and takes none; its time moves by them."""

    def __init__(self) -> None:
        self.pauses: list[float] = []
        self.time = 1_000_000.0

    def now(self) -> float:
        return self.time

    def monotonic(self) -> float:
        return self.time

    async def sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.time += seconds
        await asyncio.sleep(0)


class _JumpingSelector(selectors.DefaultSelector):
    loop: "VirtualLoop"

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if not ready and timeout is None:
            raise RuntimeError("everything waits and no timer runs: the test would hang")
        if not ready and timeout:
            self.loop.virtual_now += timeout
        return ready


class VirtualLoop(asyncio.SelectorEventLoop):
    """Time jumps to the next timer whenever nothing else is to do. Without sockets only."""

    def __init__(self) -> None:
        self.virtual_now = 1000.0
        selector = _JumpingSelector()
        selector.loop = self
        super().__init__(selector)

    def time(self) -> float:
        return self.virtual_now


def run_virtual(main: Coroutine[Any, Any, T]) -> T:
    """Runs a coroutine on a loop of its own with virtual time."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(main)


def status_line(code: int, reason: str) -> dict[str, Any]:
    """An ERROR in a watch."""
    return {"type": "ERROR", "object": {"kind": "Status", "code": code, "reason": reason, "message": reason}}


def pod(
    name: str, version: int, *, uid: str = "", node: str = "", namespace: str = "default", **more: Any
) -> dict[str, Any]:
    """A pod as JSON; the uid is the name's unless given."""
    metadata = {"name": name, "namespace": namespace, "uid": uid or f"uid-{name}", "resourceVersion": str(version)}
    return {"metadata": metadata, "spec": {"nodeName": node, "containers": []}, **more}


@pytest.fixture
async def server() -> AsyncIterator[ScriptedServer]:
    scripted = ScriptedServer()
    await scripted.start()
    yield scripted
    await scripted.stop()


@pytest.fixture
def clock() -> ImpatientClock:
    return ImpatientClock()


@pytest.fixture
def rng() -> random.Random:
    return random.Random(42)


@pytest.fixture
async def client(server: ScriptedServer, clock: ImpatientClock) -> AsyncIterator[Client]:
    transport = HttpTransport(ClusterConfig(server=server.url, credentials=StaticCredentials()))
    made = Client(transport, field_manager="tessera-test", clock=clock)
    yield made
    await made.close()


async def cancelled(*tasks: asyncio.Task[Any]) -> None:
    """Cancels tasks and waits for their end."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def names(items: Sequence[Any]) -> list[str]:
    """The names of decoded objects, in order."""
    return sorted(item.metadata.name for item in items)
