"""One lease and those who want it, on virtual time: a server with compare-and-swap, wires that fail, participants."""

import asyncio
import json
import random
from collections import deque
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

from tessera.clock import LoopClock
from tessera.kube.client import Client
from tessera.kube.leader_election import LeaderElector
from tessera.kube.requests import Request, Response, Stream

EPOCH = 1_700_000_000.0


class LeaseServer:
    """One lease with compare-and-swap; the time of each write is noted."""

    def __init__(self) -> None:
        self.lease: dict[str, Any] | None = None
        self.version = 0
        self.holders: list[tuple[float, str]] = []

    def handle(self, request: Request) -> Response:
        match request.method:
            case "GET" if self.lease is None:
                return refusal(404, "NotFound")
            case "POST" if self.lease is not None:
                return refusal(409, "AlreadyExists")
            case "POST":
                self.store({**json.loads(request.body), "metadata": {"name": "l", "namespace": "n"}})
            case "PATCH" if self.lease is None:
                return refusal(404, "NotFound")
            case "PATCH":
                patch = json.loads(request.body)
                if refused := _broken(patch["spec"]):
                    return refusal(422, "Invalid", refused)
                if patch["metadata"]["resourceVersion"] != str(self.version):
                    return refusal(409, "Conflict")
                assert self.lease
                self.store({**self.lease, "spec": {**self.lease["spec"], **patch["spec"]}})
        return Response(status=200, body=json.dumps(self.lease).encode())

    def store(self, lease: dict[str, Any]) -> None:
        self.version += 1
        self.lease = {**lease, "metadata": {**lease["metadata"], "resourceVersion": str(self.version)}}
        self.holders.append((now(), lease["spec"]["holderIdentity"]))


def _broken(spec: dict[str, Any]) -> str:
    """The reason for which kube-apiserver refuses a Lease (pkg/apis/coordination/validation; int32 fields), or ""."""
    if not 0 < spec.get("leaseDurationSeconds", 1) < 2**31:
        return "spec.leaseDurationSeconds: must be greater than 0"
    if not 0 <= spec.get("leaseTransitions", 0) < 2**31:
        return "spec.leaseTransitions: must be greater than or equal to 0"
    return ""


def refusal(code: int, reason: str, message: str = "", **headers: str) -> Response:
    body = {"code": code, "reason": reason, "message": message or reason}
    return Response(status=code, headers=headers, body=json.dumps(body).encode())


class Wire:
    """One participant's way to the server: ``up``, ``broken``, ``hung``, or ``deaf`` (acts, but the answer is lost).

    Attributes:
        state: one of these words.
        delay: seconds that an answer takes.
        refusals: answers that the next writes get; None for one that never comes.
    """

    def __init__(self, server: LeaseServer) -> None:
        self.state = "up"
        self.delay = 0.01
        self.refusals: deque[Response | None] = deque()
        self._server = server

    async def request(self, request: Request) -> Response:
        await asyncio.sleep(0.01)
        if request.method != "GET" and self.refusals:
            refused = self.refusals.popleft()
            if refused is not None:
                return refused
            await self._hang()
        if self.state == "hung":
            await self._hang()
        if self.state == "broken":
            raise ConnectionError("refused")
        answer = self._server.handle(request)
        await asyncio.sleep(self.delay)
        if self.state == "deaf":
            raise ConnectionError("reset")
        return answer

    async def _hang(self) -> None:
        await asyncio.sleep(60)
        raise TimeoutError

    def stream(self, request: Request) -> AbstractAsyncContextManager[Stream]:
        raise NotImplementedError(request)

    async def close(self) -> None:
        """Nothing is open."""


class Participant:
    """An elector, its wire, and the times at which its leader's task ran."""

    def __init__(self, server: LeaseServer, name: str, *, skew: float = 0.0, stopping: float = 0.0) -> None:
        self.wire = Wire(server)
        self.clock = LoopClock(EPOCH + skew)
        self.reigns: list[list[float]] = []
        self._stopping = stopping
        client = Client(self.wire, field_manager=name, clock=self.clock)
        self.elector = LeaderElector(
            client, namespace="n", name="l", identity=name, clock=self.clock, rng=random.Random(name)
        )
        self.task = asyncio.create_task(self.elector.run(self._lead))

    async def _lead(self) -> None:
        self.reigns.append([now()])
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(self._stopping)
            self.reigns[-1].append(now())

    @property
    def leads(self) -> bool:
        return bool(self.reigns) and len(self.reigns[-1]) == 1


def now() -> float:
    return asyncio.get_running_loop().time()


async def until(condition: Callable[[], bool], seconds: float = 120) -> None:
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110 - virtual time costs nothing
            await asyncio.sleep(0.05)
