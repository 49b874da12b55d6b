"""A reflector against a server that keeps a true history and fails in every way, in any order."""

import asyncio
import json
import random
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, Literal

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.kube.conftest import cancelled, pod, run_virtual
from tests.support.searching import examples

from tessera.clock import LoopClock
from tessera.kube.cache import EventKind, WatchEvent
from tessera.kube.client import Client
from tessera.kube.reflector import Reflector
from tessera.kube.requests import Request, Response, Stream
from tessera.kube.resources import PODS, Pod

Fault = Literal["", "end", "reset", "expire", "error", "refuse", "compact", "bookmark"]


class Step(msgspec.Struct, frozen=True):
    """A change of one object on the server, and what goes wrong with the watch after it."""

    name: str
    delete: bool
    poison: bool
    fault: Fault


class FaultyServer:
    """Pods with a history. ``floor`` is the oldest version that a watch may start from."""

    def __init__(self) -> None:
        self.version = 100
        self.floor = 0
        self.pods: dict[str, dict[str, Any]] = {}
        self.history: list[tuple[int, bytes]] = []
        self.refusals = 0
        self.fault: Fault = ""
        self.changed = asyncio.Event()

    def take(self, step: Step) -> None:
        self._change(step)
        match step.fault:
            case "compact":
                self.floor = self.version
            case "refuse":
                self.refusals += 2
            case "bookmark":
                self.history.append((self.version, line("BOOKMARK", pod("", self.version))))
        self.fault = step.fault
        self.changed.set()

    def _change(self, step: Step) -> None:
        old = self.pods.get(step.name)
        if step.delete and old is None:
            return
        self.version += 1
        uid = old["metadata"]["uid"] if old else f"uid-{self.version}"
        new = pod(step.name, self.version, uid=uid)
        if step.poison:
            new["spec"] = 7
        kind = "DELETED" if step.delete else "MODIFIED" if old else "ADDED"
        if step.delete:
            del self.pods[step.name]
        else:
            self.pods[step.name] = new
        self.history.append((self.version, line(kind, new)))

    async def request(self, request: Request) -> Response:
        await asyncio.sleep(0)
        assert request.method == "GET"
        if self.refusals:
            self.refusals -= 1
            return Response(status=500, body=b"busy")
        body = {"metadata": {"resourceVersion": str(self.version)}, "items": list(self.pods.values())}
        return Response(status=200, body=json.dumps(body).encode())

    @asynccontextmanager
    async def stream(self, request: Request) -> AsyncIterator[Stream]:
        await asyncio.sleep(0)
        since = int(dict(request.query)["resourceVersion"])
        if self.refusals:
            self.refusals -= 1
            raise ConnectionError("refused")
        yield FaultyStream(self, since)

    async def close(self) -> None:
        """Nothing is open."""


class FaultyStream:
    """A watch from a version on."""

    def __init__(self, server: FaultyServer, since: int) -> None:
        self.status = 410 if since < server.floor and server.version % 2 else 200
        self.headers: Mapping[str, str] = {}
        self._server = server
        self._since = since

    async def read(self) -> bytes:
        return json.dumps({"code": 410, "reason": "Expired", "message": "too old"}).encode()

    async def chunks(self) -> AsyncIterator[bytes]:
        if self._since < self._server.floor:
            yield error_line(410)
            return
        position = next((n for n, (at, _) in enumerate(self._server.history) if at > self._since), None)
        sent = len(self._server.history) if position is None else position
        while True:
            for _, data in self._server.history[sent:]:
                yield data[:20]
                yield data[20:]
            sent = len(self._server.history)
            fault, self._server.fault = self._server.fault, ""
            match fault:
                case "end":
                    return
                case "reset":
                    yield b'{"type":"MODI'
                    raise ConnectionError("reset")
                case "expire":
                    yield error_line(410)
                    return
                case "error":
                    yield error_line(500)
                    return
            self._server.changed.clear()
            await self._server.changed.wait()


def line(kind: str, item: dict[str, Any]) -> bytes:
    return json.dumps({"type": kind, "object": item}, separators=(",", ":")).encode() + b"\n"


def error_line(code: int) -> bytes:
    return line("ERROR", {"code": code, "reason": "Expired" if code == 410 else "InternalError", "message": "m"})


class Listener:
    """Replays what it is told and minds that every event fits the state before it."""

    def __init__(self) -> None:
        self.state: dict[str, Pod] = {}

    def object_changed(self, event: WatchEvent[Pod]) -> None:
        name = event.object.metadata.name
        assert event.old == self.state.get(name)
        match event.kind:
            case EventKind.ADDED:
                self.state[name] = event.object
            case EventKind.MODIFIED:
                assert event.old is not None
                assert event.old.metadata.uid == event.object.metadata.uid
                self.state[name] = event.object
            case EventKind.DELETED:
                del self.state[name]

    def object_unreadable(self, key: str, error: str | None) -> None:
        pass

    def versions_went_back(self) -> None:
        pass

    def kind_missing(self, *, missing: bool) -> None:
        pass


steps = st.lists(
    st.tuples(
        st.builds(
            Step,
            name=st.sampled_from("abc"),
            delete=st.booleans(),
            poison=st.sampled_from([False, False, False, True]),
            fault=st.sampled_from(["", "", "end", "reset", "expire", "error", "refuse", "compact", "bookmark"]),
        ),
        st.sampled_from([0.0, 0.001, 1.0, 40.0]),
    ),
    max_size=25,
)


@settings(max_examples=examples(200), deadline=None)
@given(steps)
def test_whatever_fails_the_mirror_ends_equal_and_tells_a_consistent_history(
    script: list[tuple[Step, float]],
) -> None:
    """Each fault strikes with changes seen before it, unseen behind it, or both, as the pauses fall."""

    async def main() -> None:
        server, listener = FaultyServer(), Listener()
        clock = LoopClock(0)
        client = Client(server, field_manager="test", clock=clock)
        reflector = Reflector(client, PODS, listener=listener, clock=clock, rng=random.Random(1))
        task = asyncio.create_task(reflector.run())
        for step, pause in script:
            server.take(step)
            await clock.sleep(pause)
        await clock.sleep(300)
        assert not task.done()
        assert {item.metadata.name: item for item in reflector.cache.values()} == listener.state
        healthy = {name: item["metadata"]["uid"] for name, item in server.pods.items() if item["spec"] != 7}
        versions = {name: item["metadata"]["resourceVersion"] for name, item in server.pods.items()}
        for name, uid in healthy.items():
            assert listener.state[name].metadata.uid == uid
            assert listener.state[name].metadata.resource_version == versions[name]
        # Nothing is left that the server does not have; a poisoned object keeps at most its own last good state.
        for name, item in listener.state.items():
            assert item.metadata.uid == server.pods[name]["metadata"]["uid"]
        await cancelled(task)

    run_virtual(main())
