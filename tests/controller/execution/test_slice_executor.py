"""Writes as they are sent: by a leader only, to the very object that was meant, and what their answers do."""

import asyncio
import json
import logging
import random
from contextlib import AbstractAsyncContextManager
from typing import Any, get_args

import pytest
from tests.support.slicer_cluster import SlicerCluster

from tessera.api.names import NodeName, PodUid
from tessera.clock import LoopClock
from tessera.controller.base import ControllerMetrics
from tessera.controller.execution import _AT_ONCE, SliceExecutor
from tessera.controller.objects.pod_info import KindOfRequest, Record
from tessera.controller.slicing.kinds import RequestKind
from tessera.controller.slicing.slicer import KINDS, Slicer
from tessera.controller.slicing.state.events import InstasliceDeleted, WriteRefused
from tessera.controller.slicing.state.instructions import (
    DeleteObject,
    Evict,
    Instruction,
    PatchRecord,
    PatchRequests,
    ReportNodeCondition,
    Ungate,
    Write,
)
from tessera.controller.slicing.state.slicer_state import SlicerState
from tessera.kube.client import Client
from tessera.kube.event_recorder import EventRecorder
from tessera.kube.requests import Request, Response, Stream
from tessera.kube.resources import CONFIGMAPS
from tessera_lab.simulation.virtual_time import run_virtual

pytestmark = pytest.mark.usefixtures("virtual_time")


class Wire:
    """A server that answers as it was told, each answer once ``open``; the last one stays."""

    def __init__(self, *answers: Response) -> None:
        self.requests: list[Request] = []
        self.open = asyncio.Event()
        self.open.set()
        self._answers = list(answers)

    async def request(self, request: Request) -> Response:
        self.requests.append(request)
        await self.open.wait()
        return self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]

    def stream(self, request: Request) -> AbstractAsyncContextManager[Stream]:
        raise AssertionError("nothing is watched here")

    async def close(self) -> None:
        pass


def refusal(code: int, reason: str) -> Response:
    return Response(status=code, body=json.dumps({"code": code, "reason": reason, "message": reason}).encode())


def stored(**item: Any) -> Response:
    return Response(status=200, body=json.dumps(item).encode())


class Desk:
    """An executor, and when it woke the machine's loop."""

    def __init__(self, cluster: SlicerCluster, wire: Wire, *, leads: bool = True) -> None:
        clock, rng = LoopClock(0), random.Random(0)
        client = Client(wire, field_manager="test", clock=clock).fence_writes(lambda: leads)
        self.woken: list[float] = []
        self.executor = SliceExecutor(
            client,
            cluster.slicer,
            events=EventRecorder(client, component="test", clock=clock, rng=rng),
            metrics=ControllerMetrics(),
            wake=lambda: self.woken.append(clock.monotonic()),
            clock=clock,
            rng=rng,
        )

    async def do(self, instruction: Instruction) -> None:
        """Carries one out, without the pause after a failure."""
        async with asyncio.TaskGroup() as group:
            self.executor.start(instruction, group)


def requested(cluster: SlicerCluster) -> PatchRequests:
    """The first write of a pod's life."""
    cluster.slicer.decide()
    (write,) = cluster.slicer.pop_writes()
    assert isinstance(write, PatchRequests)
    return write


def ungating(cluster: SlicerCluster) -> Ungate:
    """Does everything up to the ungating of a pod."""
    while True:
        cluster.slicer.decide()
        for write in cluster.slicer.pop_writes():
            if isinstance(write, Ungate):
                return write
            cluster.answer(write)


class Notes(RequestKind):
    """A kind of request whose places ConfigMaps record."""

    kind = KindOfRequest("notes", "notes", Record.OTHER)
    records = CONFIGMAPS

    def __init__(self, _state: SlicerState) -> None:
        self.observed: list[Any] = []

    def observe(self, item: Any, *, deleted: bool) -> None:
        self.observed.append((item.data, deleted))


async def test_a_further_kind_of_request_has_its_record_written_and_is_told_what_the_server_has() -> None:
    cluster = SlicerCluster()
    cluster.slicer = Slicer(kinds=(*KINDS, Notes))
    wire = Wire(stored(metadata={"name": "one", "namespace": "default"}, data={"node": "n1"}))
    write = PatchRecord(
        kind="notes",
        node=NodeName("n1"),
        uid=PodUid("uid-a"),
        namespace="default",
        name="one",
        object_uid="uid-one",
        patch={"data": {"node": "n1"}},
    )
    await Desk(cluster, wire).do(write)
    (request,) = wire.requests
    assert request.path == "/api/v1/namespaces/default/configmaps/one"
    assert json.loads(request.body or b"") == {"data": {"node": "n1"}, "metadata": {"uid": "uid-one"}}
    assert cluster.slicer.kinds.by_name["notes"].observed == [({"node": "n1"}, False)]


async def test_who_does_not_lead_any_more_sends_nothing(cluster: SlicerCluster) -> None:
    cluster.node("n1")
    cluster.pod("a", "1g.5gb")
    wire = Wire(stored())
    desk = Desk(cluster, wire, leads=False)
    await desk.do(requested(cluster))
    await desk.do(
        Ungate(uid=cluster.slicer.state.cluster.pods["uid-a"].uid, namespace="default", name="a", hostname="n1")
    )
    await desk.do(DeleteObject(node=NodeName("n1"), uid="object-n1"))
    desk.executor.stop()
    assert wire.requests == []


async def test_writes_name_the_life_of_the_object_that_they_mean(cluster: SlicerCluster) -> None:
    cluster.node("n1")
    pod = cluster.pod("a", "1g.5gb")
    wire = Wire(refusal(409, "Conflict"))
    desk = Desk(cluster, wire)
    await desk.do(ungating(cluster))
    await desk.do(DeleteObject(node=NodeName("n1"), uid="object-n1"))
    desk.executor.stop()
    ungate, delete = (json.loads(request.body) for request in wire.requests)
    assert ungate["metadata"]["uid"] == pod.uid
    assert delete["preconditions"]["uid"] == "object-n1"


@pytest.mark.parametrize("kind", ["pod", "object"])
async def test_an_answer_that_comes_after_the_deletion_was_seen_brings_nothing_back(
    cluster: SlicerCluster, kind: str
) -> None:
    cluster.node("n1")
    pod = cluster.pod("a", "1g.5gb")
    write = ungating(cluster) if kind == "pod" else requested(cluster)
    name = "a" if kind == "pod" else "n1"
    wire = Wire(stored(metadata={"name": name, "namespace": "default", "uid": pod.uid, "resourceVersion": "99"}))
    wire.open.clear()
    desk = Desk(cluster, wire)
    task = asyncio.create_task(desk.do(write))
    await asyncio.sleep(1)
    if kind == "pod":
        cluster.remove(pod)
    else:
        cluster.slicer.handle(InstasliceDeleted(NodeName("n1")))
    wire.open.set()
    await task
    assert pod.uid not in cluster.slicer.state.cluster.pods or kind == "object"
    assert "n1" not in cluster.slicer.state.cluster.objects or kind == "pod"


async def test_pauses_grow_with_failures_and_are_short_again_after_a_success(cluster: SlicerCluster) -> None:
    cluster.node("n1")
    cluster.pod("a", "1g.5gb")
    write = requested(cluster)
    busy, fine = refusal(500, "InternalError"), stored(metadata={"name": "n1", "namespace": "n", "uid": "u"})
    desk = Desk(cluster, Wire(*[busy] * 6, fine, busy))
    pauses = []
    for _ in range(8):
        desk.woken.clear()
        await desk.do(write)
        await asyncio.sleep(600)
        pauses.append(desk.woken[-1] - desk.woken[0])
    assert pauses[5] > 4 * pauses[0] > 0
    assert pauses[6] == 0
    assert pauses[7] < pauses[5] / 4


async def test_a_pod_that_cannot_be_ungated_is_tried_again_much_later(cluster: SlicerCluster) -> None:
    cluster.node("n1")
    pod = cluster.pod("a", "1g.5gb")
    desk = Desk(cluster, Wire(refusal(422, "Invalid")))
    await desk.do(ungating(cluster))
    cluster.settle()
    assert cluster.empty()
    await asyncio.sleep(3600)
    cluster.settle()
    assert cluster.states(pod) == ("ungated", "created")


def test_each_write_has_its_bound() -> None:
    kinds = [kind for kinds, _ in _AT_ONCE for kind in kinds]
    assert len(kinds) == len(set(kinds))
    assert set(kinds) == set(get_args(Write))


async def test_writes_that_hang_keep_those_of_other_kinds_not_waiting(cluster: SlicerCluster) -> None:
    class Hanging(Wire):
        async def request(self, request: Request) -> Response:
            self.requests.append(request)
            await asyncio.Event().wait()
            raise AssertionError

    wire = Hanging(stored(metadata={"name": "a", "namespace": "default", "uid": "uid-a"}))
    desk = Desk(cluster, wire)
    slices = [DeleteObject(node=NodeName(f"n{number}"), uid=f"object-{number}") for number in range(300)]
    others = [
        Evict(uid=PodUid(f"other-{number}"), namespace="default", name=f"e{number}", version=1) for number in range(300)
    ]
    pods = [
        Ungate(uid=PodUid(f"uid-{number}"), namespace="default", name=f"p{number}", hostname="n1")
        for number in range(300)
    ]
    sent: list[int] = []
    async with asyncio.TaskGroup() as group:
        for kind in (others, slices, pods):
            for each in kind:
                desk.executor.start(each, group)
            await asyncio.sleep(0.1)
            sent.append(len(wire.requests))
        assert sent == [16, 48, 112], "16 evictions, 32 writes of Instaslice objects, 64 of pods"
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()


def test_a_node_is_told_of_its_object_under_a_field_manager_of_its_own(cluster: SlicerCluster) -> None:
    wire = Wire(stored(metadata={"name": "n1", "uid": "node-1"}))

    async def story() -> None:
        await Desk(cluster, wire).do(ReportNodeCondition(node=NodeName("n1"), text="it is wrong"))

    run_virtual(story())
    (request,) = wire.requests
    assert request.path == "/api/v1/nodes/n1/status"
    assert dict(request.query)["fieldManager"] == "tessera-instaslices"
    (condition,) = json.loads(request.body)["status"]["conditions"]
    assert (condition["type"], condition["status"]) == ("GpuInstasliceValid", "False")
    assert (condition["reason"], condition["message"]) == ("InstasliceInvalid", "it is wrong")


def test_an_outage_is_logged_once_whatever_number_of_writes_it_fails(
    cluster: SlicerCluster, caplog: pytest.LogCaptureFixture
) -> None:
    """Thousands of pods may wait for a write, and each write is tried again and again."""
    caplog.set_level(logging.INFO)

    async def story() -> None:
        wire = Wire(refusal(503, "ServiceUnavailable"))
        desk = Desk(cluster, wire)
        async with asyncio.TaskGroup() as group:
            for number in range(500):
                pod = cluster.pod(f"p{number}", "1g.5gb")
                desk.executor.start(Ungate(uid=pod.uid, namespace="default", name=pod.name, hostname="n1"), group)
        desk.executor.stop()
        assert len(wire.requests) == 500

    run_virtual(story())
    (line,) = caplog.messages
    assert line.startswith("writes of slices and pods fail, further failures are counted until they succeed: ")


@pytest.mark.parametrize(
    ("answer", "reasons"),
    [
        (refusal(429, "TooManyRequests"), ["TooManyRequests"]),
        (refusal(403, "Forbidden"), ["Forbidden"]),
        (refusal(404, "NotFound"), []),
        (Response(status=429, headers={"retry-after": "1"}, body=b"Too many requests, please try again later."), []),
    ],
    ids=["budget", "policy", "gone", "busy server"],
)
async def test_the_reason_of_a_refused_eviction_reaches_the_slicer(
    cluster: SlicerCluster, monkeypatch: pytest.MonkeyPatch, answer: Response, reasons: list[str]
) -> None:
    pod = cluster.pod("a", "1g.5gb", gates=())
    handled: list[object] = []
    monkeypatch.setattr(cluster.slicer, "handle", handled.append)
    desk = Desk(cluster, Wire(answer))
    await desk.do(Evict(uid=pod.uid, namespace="default", name="a", version=0))
    desk.executor.stop()
    assert [each.reason for each in handled if isinstance(each, WriteRefused)] == reasons
