"""The controller process against the lab's API server, in one process and on virtual time."""

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml
from tests.support.mortal_transport import TransportUntilWrite

from tessera.agent.inventory.sliceable_gpus import placements
from tessera.api.instaslice import INSTASLICES, AllocationStatus, Instaslice, make_result
from tessera.api.names import GATE, INSTASLICE_NAMESPACE, resource_of
from tessera.clock import Clock, LoopClock
from tessera.controller.main import run
from tessera.controller.satellite import ControllerOptions, Process, Task, Term
from tessera.kube.cache import WatchEvent
from tessera.kube.client import Client
from tessera.kube.informer import Informer
from tessera.kube.requests import Transport
from tessera.kube.resources import CRDS, EVENTS, LEASES, NAMESPACES, NODES, PODS, Pod
from tessera.mig.models import model_by_short_name
from tessera_lab.apiserver.interfaces import UserInfo
from tessera_lab.apiserver.main.inprocess_transport import InProcessTransport
from tessera_lab.apiserver.main.server import ApiServer

ADMIN = UserInfo(name="admin", groups=("system:masters", "system:authenticated"))
DEFINITIONS = [
    yaml.load((Path(__file__).parents[3] / "deploy" / "crds" / f"{name}.yaml").read_text(), yaml.CSafeLoader)
    for name in ("instaslices", "queues")
]


class Lab:
    """An API server with nodes whose agents follow the protocol."""

    def __init__(self) -> None:
        self.clock: Clock = LoopClock(1_700_000_000.0)
        self.server = ApiServer(self.clock)
        self.admin = self.client("admin")
        self.agents: set[asyncio.Task[None]] = set()
        self.slices = Counter[str]()

    def client(self, name: str, wrap: Callable[[Transport], Transport] = lambda inner: inner) -> Client:
        user = UserInfo(name=name, groups=ADMIN.groups)
        return Client(wrap(InProcessTransport(self.server, user)), field_manager=name, clock=self.clock)

    async def install(self) -> None:
        for definition in DEFINITIONS:
            await self.admin.create(CRDS, definition)
        for name in (INSTASLICE_NAMESPACE, "tessera-system", "team"):
            await self.admin.create(NAMESPACES, {"metadata": {"name": name}})

    async def node(self, name: str, cards: int = 1) -> None:
        labels = {"nvidia.com/mig.config": "dynamic", "kubernetes.io/hostname": name}
        await self.admin.create(NODES, {"metadata": {"name": name, "labels": labels}})
        status = {
            "allocatable": {"cpu": "64", "memory": "512Gi", "pods": "110", **_positions(cards)},
            "conditions": [{"type": "Ready", "status": "True"}],
        }
        await self.admin.merge_patch(NODES, name, {"status": status}, subresource="status")
        await self.agent(name, cards)

    async def agent(self, name: str, cards: int) -> None:
        """Creates the node's object and answers promises."""
        model = model_by_short_name("A100-40GB")
        table = msgspec.to_builtins(placements(model.geometry))
        gpus = [
            {"gpuUuid": f"GPU-{name}-{i}", "gpuName": model.product_name, "gpuMemory": "40Gi"} for i in range(cards)
        ]
        client = self.client("agent")
        await client.create(INSTASLICES, {"metadata": {"name": name}}, INSTASLICE_NAMESPACE)
        resources = {"nodeGpus": gpus, "migPlacement": table, "bootId": "b"}
        await self._status(client, name, {"nodeResources": resources})
        task = asyncio.create_task(self._answer(client, name))
        self.agents.add(task)

    async def _answer(self, client: Client, name: str) -> None:
        seen = asyncio.Event()

        def note(_event: WatchEvent[Instaslice]) -> None:
            seen.set()

        informer = Informer(client, INSTASLICES, namespace=INSTASLICE_NAMESPACE, clock=self.clock, rng=random.Random(1))
        informer.add_handler(note)
        async with asyncio.TaskGroup() as group:
            group.create_task(informer.run())
            while True:
                await seen.wait()
                seen.clear()
                item = informer.cache.get(f"{INSTASLICE_NAMESPACE}/{name}")
                states: dict[str, Any] = {}
                made = AllocationStatus(allocation_status_controller="ungated", allocation_status_daemonset="created")
                requests = item.spec.pod_allocation_requests if item else {}
                results = item.status.pod_allocation_results if item else {}
                for uid in requests.keys() - results.keys():
                    states[uid] = msgspec.to_builtins(make_result(uid, name, requests[uid].slices, made))
                for uid, result in results.items():
                    state = result.allocation_status
                    goal = "deleted" if state.allocation_status_controller == "deleting" else "created"
                    if uid not in requests:
                        states[uid] = None
                    elif state.allocation_status_daemonset != goal:
                        states[uid] = {"allocationStatus": {"allocationStatusDaemonset": goal}}
                if states:
                    await self._status(client, name, {"podAllocationResults": states})

    async def _status(self, client: Client, name: str, status: dict[str, Any]) -> None:
        await client.merge_patch(INSTASLICES, name, {"status": status}, INSTASLICE_NAMESPACE, subresource="status")

    async def pod(self, name: str, profile: str = "3g.20gb", count: int = 1) -> Pod:
        resources = {"limits": {f"nvidia.com/mig-{profile}": str(count)}, "requests": {"cpu": "100m"}}
        spec = {
            "schedulingGates": [{"name": GATE}],
            "containers": [{"name": "c", "image": "app", "resources": resources}],
        }
        return await self.admin.create(PODS, {"metadata": {"name": name}, "spec": spec}, "team")

    async def states(self) -> dict[str, tuple[str, str]]:
        """Controller's and agent's state of each pod on record, by pod name."""
        items = await self.admin.list(INSTASLICES, INSTASLICE_NAMESPACE)
        return {
            item.spec.pod_allocation_requests[uid].pod_ref.name if uid in item.spec.pod_allocation_requests else uid: (
                result.allocation_status.allocation_status_controller,
                result.allocation_status.allocation_status_daemonset,
            )
            for item in items.items
            for uid, result in item.status.pod_allocation_results.items()
        }

    async def positions(self) -> list[tuple[str, int]]:
        """Card and memory slot of everything promised."""
        items = await self.admin.list(INSTASLICES, INSTASLICE_NAMESPACE)
        return [
            (part.gpu_uuid, slot)
            for item in items.items
            for request in item.spec.pod_allocation_requests.values()
            for part in request.slices
            for slot in range(part.start, part.start + part.size)
        ]

    @asynccontextmanager
    async def controller(
        self, wrap: Callable[[Transport], Transport] = lambda inner: inner, **options: Any
    ) -> AsyncIterator[asyncio.Task[None]]:
        chosen = ControllerOptions(**{"identity": "c1", "http_port": None, "leader_election": False, **options})
        client = self.client("controller", wrap)
        task = asyncio.create_task(run(chosen, client, self.clock, rng=random.Random(7)))
        try:
            yield task
        finally:
            task.cancel()
            await asyncio.wait({task})

    async def rest(self, seconds: float = 1.0) -> None:
        """Virtual time passes, so everything that can happen happens."""
        await self.clock.sleep(seconds)

    async def stop(self) -> None:
        for task in self.agents:
            task.cancel()
        await asyncio.wait(self.agents)


def _positions(cards: int) -> dict[str, str]:
    """Returns the devices of the agent's plugins as kubelet publishes them: one for each legal start."""
    geometry = model_by_short_name("A100-40GB").geometry
    return {resource_of(row.name): str(len(row.starts) * cards) for row in geometry.profiles}


@pytest.fixture
async def lab(virtual_time: None) -> AsyncIterator[Lab]:
    lab = Lab()
    await lab.install()
    await lab.node("n1")
    yield lab
    await lab.stop()


async def test_a_pod_is_promised_pinned_ungated_and_released(lab: Lab) -> None:
    async with lab.controller():
        await lab.rest()
        pod = await lab.pod("web")
        await lab.rest()
        assert await lab.states() == {"web": ("ungated", "created")}
        found = await lab.admin.get(PODS, "web", "team")
        assert found.spec.scheduling_gates == ()
        assert found.spec.node_selector == {"kubernetes.io/hostname": "n1"}
        # Beside the record of the node's way, which is written on the node, and that of exempt namespaces.
        others = {"nodes", "configmaps"}
        writes = [e for e in lab.server.audit.writes(user="controller") if e.resource not in others]
        assert [(e.verb, e.resource, e.subresource) for e in writes] == [
            ("patch", "instaslices.inference.redhat.com", ""),
            ("patch", "pods", ""),
        ]
        await lab.admin.delete(PODS, "web", "team", uid=pod.metadata.uid, grace_seconds=0)
        await lab.rest()
        assert await lab.states() == {}
        assert await lab.positions() == []


async def test_a_burst_shares_its_writes(lab: Lab) -> None:
    for i in range(7):
        await lab.pod(f"p{i}", "1g.5gb")
    before = len(lab.server.audit.writes())
    async with lab.controller():
        await lab.rest()
        assert set((await lab.states()).values()) == {("ungated", "created")}
    writes = len(lab.server.audit.writes()) - before
    assert writes <= 7 + 4 + 7, "a pod patch each, and a few patches of the node for all of them"


async def test_a_pod_too_many_is_told_once_and_placed_when_one_ends(lab: Lab) -> None:
    async with lab.controller():
        await lab.pod("first", "7g.40gb")
        await lab.rest()
        await lab.pod("second", "7g.40gb")
        await lab.rest()
        assert set(await lab.states()) == {"first"}
        (event,) = (await lab.admin.list(EVENTS, "team")).items
        assert (event.involved_object.name, event.reason, event.count) == ("second", "SliceWaiting", 1)
        assert "team/first" in event.message
        began = lab.clock.monotonic()
        await lab.admin.delete(PODS, "first", "team", grace_seconds=0)
        while (await lab.admin.get(PODS, "second", "team")).spec.scheduling_gates:
            await lab.clock.sleep(0.01)
        assert lab.clock.monotonic() - began < 1.0


@pytest.mark.parametrize("applied", [False, True])
@pytest.mark.parametrize("last", range(5))
async def test_the_process_may_die_at_any_write(lab: Lab, last: int, applied: bool) -> None:
    """Two pods start, one of them ends; the first process dies at one of its writes, the second finishes."""
    async with lab.controller(lambda inner: TransportUntilWrite(inner, last=last, applied=applied)) as first:
        await lab.pod("stays", "3g.20gb")
        await lab.rest()
        await lab.pod("goes", "2g.10gb", count=2)
        await lab.rest()
        await lab.admin.delete(PODS, "goes", "team", grace_seconds=0)
        await lab.rest()
        assert isinstance(first.exception(), ExceptionGroup), "it made at least so many writes"
    async with lab.controller():
        await lab.pod("late", "2g.10gb")
        await lab.rest(5.0)
        assert await lab.states() == {"stays": ("ungated", "created"), "late": ("ungated", "created")}
        positions = await lab.positions()
        assert len(positions) == len(set(positions)) == 6
        for pod in (await lab.admin.list(PODS, "team")).items:
            assert pod.spec.scheduling_gates == ()
            await lab.admin.delete(PODS, pod.metadata.name, "team", grace_seconds=0)
        await lab.rest()
        assert await lab.states() == {}
        assert await lab.positions() == []


async def test_the_second_replica_takes_over_when_the_first_is_gone(lab: Lab) -> None:
    async with lab.controller(identity="a", leader_election=True):
        await lab.rest()
        await lab.pod("one", "1g.5gb")
        await lab.rest()
        async with lab.controller(identity="b", leader_election=True):
            await lab.rest(30.0)
    await lab.pod("two", "1g.5gb")
    async with lab.controller(identity="b", leader_election=True):
        await lab.rest(30.0)
        assert await lab.states() == {"one": ("ungated", "created"), "two": ("ungated", "created")}


async def test_an_object_deleted_by_hand_is_filled_again(lab: Lab) -> None:
    async with lab.controller():
        await lab.pod("web", "3g.20gb")
        await lab.rest()
        before = await lab.positions()
        await lab.admin.delete(INSTASLICES, "n1", INSTASLICE_NAMESPACE)
        await lab.rest()
        await lab.agent("n1", 1)
        await lab.rest()
        assert await lab.positions() == before
        assert await lab.states() == {"web": ("ungated", "created")}


async def test_the_object_of_a_removed_node_goes_with_it(lab: Lab) -> None:
    async with lab.controller():
        await lab.rest()
        await lab.admin.delete(NODES, "n1")
        await lab.rest()
        assert (await lab.admin.list(INSTASLICES, INSTASLICE_NAMESPACE)).items == []


class NotingSatellite:
    """Notes what is done with it, and fails in ``fails``."""

    def __init__(self, name: str, notes: list[str], fails: str = "") -> None:
        self.name, self.notes, self.fails = name, notes, fails

    def _note(self, what: str) -> None:
        self.notes.append(f"{self.name} {what}")

    def open(self, process: Process) -> Callable[[Term], None]:
        if self.fails == "open":
            raise ValueError("an option is wrong")
        process.at_end.callback(self._note, "is closed")
        return self.join

    def join(self, term: Term) -> None:
        if self.fails == "join":
            raise ValueError("a term cannot be joined")
        term.at_end.callback(self._note, "has left")
        term.tasks.append(Task(name=self.name, run=self._run, at_once=True))

    async def _run(self) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            self._note("works no more")


async def test_satellites_end_after_their_tasks_and_the_last_first(lab: Lab) -> None:
    notes: list[str] = []
    async with lab.controller(satellites=[NotingSatellite("a", notes), NotingSatellite("b", notes)]):
        await lab.rest()
        assert notes == []
    assert sorted(notes[:2]) == ["a works no more", "b works no more"]
    assert notes[2:] == ["b has left", "a has left", "b is closed", "a is closed"]


@pytest.mark.parametrize(
    ("fails", "ends"),
    [("open", ["a is closed"]), ("join", ["a has left", "b is closed", "a is closed"])],
)
async def test_satellites_before_one_that_fails_end_too(lab: Lab, fails: str, ends: list[str]) -> None:
    notes: list[str] = []
    satellites = [NotingSatellite("a", notes), NotingSatellite("b", notes, fails)]
    async with lab.controller(satellites=satellites) as process:
        await asyncio.wait({process})
        assert notes == ends
        found = process.exception()
        assert isinstance(found.exceptions[0] if isinstance(found, ExceptionGroup) else found, ValueError)


async def test_satellites_leave_a_lost_term_and_join_the_next(lab: Lab) -> None:
    notes: list[str] = []
    async with lab.controller(satellites=[NotingSatellite("a", notes)], leader_election=True):
        await lab.rest()
        stolen = {"spec": {"holderIdentity": "another"}}
        await lab.admin.merge_patch(LEASES, "tessera-controller", stolen, "tessera-system")
        await lab.rest(5.0)
        assert notes == ["a works no more", "a has left"]
        await lab.rest(60.0)
    assert notes[2:] == ["a works no more", "a has left", "a is closed"]
