"""The task that answers admission checks, beside the task of the slicer and a cluster that changes."""

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace

import msgspec
from tests.kueue.test_check_decisions import spec, workload
from tests.support.api_user import ManualClock
from tests.support.slicer_cluster import SlicerCluster

from tessera.api.names import NodeName
from tessera.clock import LoopClock
from tessera.controller.slicing.state.events import NodeObserved
from tessera.kube.client import Client
from tessera.kube.requests import Request, Response, Stream
from tessera.kueue.check_decisions import PATIENCE
from tessera.kueue.objects import CHECK_CONTROLLER
from tessera.kueue.satellite import AdmissionChecks
from tessera_lab.simulation.virtual_time import run_virtual

CHECK = {
    "metadata": {"name": "packable"},
    "spec": {"controllerName": CHECK_CONTROLLER},
    "status": {"conditions": [{"type": "Active", "status": "True"}]},
}


class OneWorkload:
    """An API server with one Workload, whose check is pending.

    Args:
        listed: called when the Workload is listed.

    Attributes:
        written: the states of answers.
    """

    def __init__(self, listed: Callable[[], None]) -> None:
        self._listed = listed
        self.written: list[str] = []
        self.answered = asyncio.Event()

    async def request(self, request: Request) -> Response:
        if request.path.endswith("/workloads"):
            self._listed()
        if request.method == "PATCH":
            body = msgspec.json.decode(request.body)
            self.written += [each["state"] for each in body["status"]["admissionChecks"]]
            self.answered.set()
        items = {"workloads": [workload("a", (1, spec("1g.5gb")))], "admissionchecks": [CHECK]}
        found = {"metadata": {"resourceVersion": "1"}, "items": items.get(request.path.rpartition("/")[2], [])}
        group = {"preferredVersion": {"version": "v1beta1"}}
        body = msgspec.json.encode(group if request.path.count("/") == 2 else found)
        return Response(status=200, headers={"content-type": "application/json"}, body=body)

    @asynccontextmanager
    async def stream(self, request: Request) -> AsyncIterator[Stream]:
        await asyncio.get_running_loop().create_future()  # nothing changes
        yield NotImplemented

    async def close(self) -> None:
        pass


class BusyClock(ManualClock):
    """A clock in whose pauses something changes, early enough for others to act, and once more at the end."""

    def __init__(self, change: Callable[[], None]) -> None:
        super().__init__()
        self._change = change

    async def sleep(self, seconds: float) -> None:
        self._change()
        for _ in range(20):
            await super().sleep(seconds / 20)
        self._change()


async def test_a_workload_is_answered_while_a_node_changes_all_the_time() -> None:
    cluster = SlicerCluster()
    cluster.node("n")
    cluster.run()
    changes = 0
    steps: set[asyncio.Task[None]] = set()
    after_step: set[asyncio.Event] = set()

    async def step() -> None:
        for _ in range(9):  # others have their turns first
            await asyncio.sleep(0)
        cluster.slicer.decide()
        for each in after_step:
            each.set()

    def change() -> None:
        nonlocal changes
        changes += 1
        assert changes < 100, "it is put off for ever"
        node = cluster.nodes[NodeName("n")]
        cluster.slicer.handle(NodeObserved(replace(node, allocatable={**node.allocatable, "cpu": 64_000 + changes})))
        steps.add(asyncio.create_task(step()))

    server, clock = OneWorkload(change), BusyClock(change)
    client = Client(server, field_manager="test", clock=clock)
    checks = AdmissionChecks(
        client,
        cluster.slicer,
        count=lambda _: None,
        after_step=after_step,
        nodes_may_come=lambda: False,
        clock=clock,
        rng=random.Random(0),
    )
    task = asyncio.create_task(checks.run())
    waiting = asyncio.create_task(server.answered.wait())
    await asyncio.wait((task, waiting), return_when=asyncio.FIRST_COMPLETED)
    task.cancel()
    assert server.written == ["Ready"]


def test_room_that_comes_while_an_answer_is_written_is_seen_at_once() -> None:
    """The slicer's step may be the last for a long time."""

    async def scene() -> float:
        cluster, clock = SlicerCluster(), LoopClock(epoch=0)
        cluster.node("n")
        full = cluster.pod("full", "7g.40gb")
        cluster.settle()
        after_step: set[asyncio.Event] = set()

        class FreesRoom(OneWorkload):
            async def request(self, request: Request) -> Response:
                if request.method == "PATCH" and full.uid in cluster.pods:
                    cluster.remove(full)
                    cluster.settle()
                    for each in after_step:
                        each.set()
                return await super().request(request)

        server = FreesRoom(lambda: None)
        checks = AdmissionChecks(
            Client(server, field_manager="test", clock=clock),
            cluster.slicer,
            count=lambda _: None,
            after_step=after_step,
            nodes_may_come=lambda: False,
            clock=clock,
            rng=random.Random(0),
        )
        task = asyncio.create_task(checks.run())
        async with asyncio.timeout(100):
            while server.written[-1:] != ["Ready"]:
                server.answered.clear()
                await server.answered.wait()
        task.cancel()
        assert server.written == ["Pending", "Ready"]
        return clock.monotonic()

    assert run_virtual(scene()) < PATIENCE
