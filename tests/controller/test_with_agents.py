"""The real controller's machine beside real agents' records, with watches that lag behind each other.

No server, no clock and no hardware call: the server is a dict with a version, every watch is a queue, and a card keeps
NVML's rules. Whatever order things happen in, a slice that a pod uses stays, nothing is left when all pods are gone,
writes come to an end, and every pod that may run has its slices.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import hypothesis.strategies as st
import msgspec
import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from tests.support.searching import examples
from tests.support.slice_instructions import next_instruction
from tests.support.slicer_cluster import merge

from tessera.agent.base.wake_ups import CallFailure
from tessera.agent.inventory.sliceable_gpus import SliceableGpu, SliceableGpus, SlicePosition
from tessera.agent.slices.events import (
    CreateComputeInstance,
    CreateGpuInstance,
    DestroyComputeInstance,
    DestroyGpuInstance,
    DevicesBound,
    GpuCallFailed,
    GpuRead,
    InitialSyncDone,
    ObservedInstance,
    PodChanged,
    PodDeleted,
    SliceJournal,
    WaitUntil,
)
from tessera.agent.slices.instaslice_status import foreign_slices, instaslice_event, status_patch
from tessera.agent.slices.state_machine import SliceStateMachine
from tessera.api.instaslice import Instaslice
from tessera.api.names import NodeName, PodUid
from tessera.controller.objects.pod_info import PodInfo
from tessera.controller.slicing.state.events import (
    InstasliceDeleted,
    InstasliceObserved,
    NodeObserved,
    PodObserved,
    RetryDue,
    WriteDone,
    WriteOutcomeUnknown,
)
from tessera.controller.slicing.state.events import (
    PodDeleted as ControllerPodDeleted,
)
from tessera.controller.slicing.state.instructions import PatchRequests, PatchResults, RecordEvent, Write
from tessera.mig.models import model_by_short_name
from tessera.nvml.simulated.simulated_machine import SimulatedMachine

MODEL = model_by_short_name("A100-40GB")
PROFILES = st.lists(st.sampled_from(["1g.5gb", "1g.10gb", "2g.10gb", "3g.20gb", "7g.40gb"]), min_size=1, max_size=2)
PICK = st.integers(0, 99)


class Agent:
    """One node's agent: its book and its record over one or more cards; the journal is its disk."""

    def __init__(self, cluster: "Any", node: str) -> None:
        self.cluster = cluster
        self.node = node
        self.resources = cluster.read(node).status.node_resources
        gpus = self.resources.node_gpus
        info = SimulatedMachine("A100-40GB", seed=node, mig=True).devices()[0]
        self.inventory = SliceableGpus(
            tuple(SliceableGpu(msgspec.structs.replace(info, uuid=each.gpu_uuid), MODEL.geometry) for each in gpus)
        )
        self.starts = {card.uuid: card.starts() for card in self.inventory.gpus}
        self.instances: dict[str, dict[int, tuple[SlicePosition, int, bool]]] = {card: {} for card in self.starts}
        self.next_id = 0
        self.used: dict[int, PodUid] = {}  # GPU instances that a container of the pod was given
        self.disk = SliceJournal()
        self.events: list[tuple[str, Callable[[], None]]] = []
        self.begin()

    def begin(self) -> None:
        """A new process lists everything."""
        self.now = 0.0
        self.events.clear()
        self.flying: dict[str, Any] | None = None
        self.written: Instaslice | None = None
        self.book = SliceStateMachine(self.disk)
        self.seen: Instaslice | None = None
        self._object_seen(self.cluster.read(self.node) if self.node in self.cluster.objects else None)
        self.pods: dict[PodUid, PodInfo] = {}
        for pod in self.cluster.pods.values():
            self._pod_seen(pod)
        for gpu in self.starts:
            self._read(gpu)
        self.book.handle(InitialSyncDone())

    # Watches

    def object_changed(self, item: Instaslice | None) -> None:
        self.events.append(("object", lambda: self._object_seen(item)))

    def pod_changed(self, pod: PodInfo) -> None:
        self.events.append(("pod", lambda: self._pod_seen(pod)))

    def pod_lost(self, uid: PodUid) -> None:
        self.events.append(("pod", lambda: self._pod_lost(uid)))

    def deliver(self, kind: str) -> bool:
        """The oldest event of one watch arrives."""
        at = next((index for index, (of, _) in enumerate(self.events) if of == kind), None)
        if at is None:
            return False
        self.events.pop(at)[1]()
        return True

    def _object_seen(self, item: Instaslice | None) -> None:
        self.seen = item
        self.book.handle(instaslice_event(item))

    def _pod_seen(self, pod: PodInfo) -> None:
        if pod.node == self.node:
            self.pods[pod.uid] = pod
            self.book.handle(PodChanged(pod.uid, pod.finished, claims=bool(pod.device_claims)))

    def _pod_lost(self, uid: PodUid) -> None:
        if self.pods.pop(uid, None) is not None:
            self.book.handle(PodDeleted(uid))

    # Cards

    def _read(self, gpu: str) -> None:
        found = (
            ObservedInstance(gi_id=gi, position=at, size=size, computes=((0, f"MIG-{gi}"),) if whole else ())
            for gi, (at, size, whole) in self.instances[gpu].items()
        )
        self.book.handle(GpuRead(gpu, self.starts[gpu], tuple(found)))

    def step(self) -> bool:
        """One call to a card; whether there was one to make."""
        for gpu, instances in self.instances.items():
            call = next_instruction(self.book, gpu, self.now)
            self.disk = self.book.table.journal()
            if isinstance(call, WaitUntil):
                continue
            match call:
                case CreateGpuInstance():
                    card = self.inventory.gpu(gpu)
                    assert card is not None
                    row = card.geometry.find(call.position.profile)
                    assert row is not None
                    made = (call.position, row.size, False)
                    assert not any(
                        at.start < call.position.start + row.size and call.position.start < at.start + size
                        for at, size, _ in instances.values()
                    ), "the agent makes a slice over another"
                    self.next_id += 1
                    instances[self.next_id] = made
                case CreateComputeInstance():
                    at, size, _ = instances[call.gi_id]
                    instances[call.gi_id] = (at, size, True)
                case DestroyComputeInstance():
                    if call.gi_id in self.used:  # NVML refuses while a process uses it
                        self.book.handle(GpuCallFailed(call, CallFailure.BUSY, "in use", self.now))
                        return True
                    at, size, _ = instances[call.gi_id]
                    instances[call.gi_id] = (at, size, False)
                case DestroyGpuInstance():
                    del instances[call.gi_id]
            self._read(gpu)
            return True
        return False

    # Pods that run

    def start(self, uid: PodUid) -> None:
        """A container of the pod is given its slices, once all are there."""
        pod = self.pods.get(uid)
        if pod is None or pod.finished or self.book.table.is_released(uid) or not self.book.table.slices_of(uid):
            return
        devices = [self.book.table.ready_slice(uid, position) for position in self.book.table.slices_of(uid)]
        if all(devices) and len(devices) == len(pod.profiles):
            bindings = {made.position.device_id: made.position for made in devices if made}
            self.book.handle(DevicesBound(uid, bindings))
            self.disk = self.book.table.journal()
            for made in devices:
                assert made is not None
                assert self.used.get(made.gi_id, uid) == uid, "a slice is used by two pods"
                self.used[made.gi_id] = uid

    def end(self, uid: PodUid) -> None:
        """The pod's processes have ended."""
        self.used = {gi: user for gi, user in self.used.items() if user != uid}

    # The record

    def _latest(self) -> Instaslice | None:
        seen, written = self.seen, self.written
        if seen is None or written is None or seen.metadata.uid != written.metadata.uid:
            return seen
        newer = int(written.metadata.resource_version) > int(seen.metadata.resource_version)
        return written if newer else seen

    def prepare(self, *, unbound: bool) -> bool:
        """Decides what to write; it is sent later."""
        item = self._latest()
        if self.flying is not None or item is None:
            return False
        self.disk = self.book.table.journal()
        resources = msgspec.structs.replace(self.resources, foreign=foreign_slices(self.inventory, self.book.table))
        self.flying = status_patch(item, self.book.table, resources, unbound=unbound) or None
        return self.flying is not None

    def send(self, *, answered: bool = True) -> bool:
        """Sends the agent's decision to the server."""
        patch, self.flying = self.flying, None
        if patch is None or self.node not in self.cluster.objects:
            return False
        self.cluster.patch(self.node, patch)
        if answered:
            self.written = self.cluster.read(self.node)
        return True


def cluster_of(base: Any) -> type:
    """Returns a cluster class whose watches lag behind."""

    class Cluster(base):  # type: ignore[misc] # the class lives in conftest.py
        def __init__(self) -> None:
            super().__init__()
            self.nodes_agents: dict[str, Agent] = {}
            self.late: list[tuple[str, Callable[[], None]]] = []
            self.pod_version = 0

        def join(self, name: str, count: int) -> None:
            self.node(name, count=count)
            self.nodes_agents[name] = Agent(self, name)

        def _touch(self, node: str) -> None:
            self.version += 1
            self.objects[node]["metadata"]["resourceVersion"] = str(self.version)
            item = self.read(node)
            self.late.append(("object", lambda: self.slicer.handle(InstasliceObserved(item))))
            if node in self.nodes_agents:
                self.nodes_agents[node].object_changed(item)

        def patch(self, node: str, body: Any) -> None:
            """The schema refuses a patch of an entry that is not there any more."""
            before = self.objects[node]
            self.objects[node] = merge(before, msgspec.json.decode(msgspec.json.encode(body)))
            try:
                self.read(node)
            except msgspec.ValidationError:
                self.objects[node] = before
            else:
                self._touch(node)

        def put(self, pod: PodInfo) -> PodInfo:
            self.pod_version += 1
            pod = replace(pod, version=self.pod_version)
            self.pods[pod.uid] = pod
            self.late.append(("pod", lambda: self.slicer.handle(PodObserved(pod))))
            for agent in self.nodes_agents.values():
                agent.pod_changed(pod)
            return pod

        def remove(self, pod: PodInfo) -> None:
            del self.pods[pod.uid]
            self.late.append(("pod", lambda: self.slicer.handle(ControllerPodDeleted(pod.uid))))
            for agent in self.nodes_agents.values():
                agent.pod_lost(pod.uid)

        def lose(self, node: str) -> None:
            """Somebody deletes the object; the agent makes a new one."""
            old = self.objects.pop(node)
            self.late.append(("object", lambda: self.slicer.handle(InstasliceDeleted(NodeName(node)))))
            self.nodes_agents[node].object_changed(None)
            self.version += 1
            uid = f"object-{node}-{self.version}"
            self.objects[node] = {"metadata": {**old["metadata"], "uid": uid}, "status": {"nodeResources": {}}}
            self._touch(node)

        def deliver(self, kind: str) -> bool:
            at = next((index for index, (of, _) in enumerate(self.late) if of == kind), None)
            if at is None:
                return False
            self.late.pop(at)[1]()
            return True

        def restart(self) -> None:
            self.late.clear()
            super().restart()

        def answer(self, instruction: Any) -> None:
            """The answer to a write shows what the server made of it, as a client's does."""
            if isinstance(instruction, RecordEvent):
                self.told.append(instruction)
                return
            self.apply(instruction)
            self.echo(instruction)
            self.slicer.handle(WriteDone(instruction))

        def echo(self, write: Write) -> None:
            node = write.node if isinstance(write, PatchRequests | PatchResults) else None
            if node is not None and node in self.objects and node in self.slicer.state.cluster.objects:
                self.slicer.handle(InstasliceObserved(self.read(node)))
            uid = getattr(write, "uid", "")
            if uid in self.pods and uid in self.slicer.state.cluster.pods:
                self.slicer.handle(PodObserved(self.pods[uid]))

        def quiet(self) -> None:
            """Everything arrives and is answered until nothing is left to do."""
            for _ in range(300):
                moved = False
                while any([self.deliver("object"), self.deliver("pod")]):
                    moved = True
                before = len(self.writes)
                self.run()
                moved |= len(self.writes) > before
                for agent in self.nodes_agents.values():
                    while any([agent.deliver("object"), agent.deliver("pod")]):
                        moved = True
                    agent.now += 60.0
                    while agent.step():
                        moved = True
                        agent.now += 60.0
                    moved |= agent.send()
                    if agent.prepare(unbound=True):
                        moved |= agent.send()
                if not moved:
                    return
            raise AssertionError(f"writes never come to an end; the last are {self.writes[-4:]}")

    return Cluster


def protocol(base: Any) -> type[RuleBasedStateMachine]:
    """Controller and agents with watches that lag, writes that are late or lost, and people who edit objects."""
    cluster_class = cluster_of(base)

    class Protocol(RuleBasedStateMachine):
        def __init__(self) -> None:
            super().__init__()
            self.cluster: Any = cluster_class()
            self.flying: list[Write] = []
            self.stray: list[Write] = []
            self.born = 0

        @initialize()
        def begin(self) -> None:
            self.cluster.join("n1", 1)
            self.cluster.join("n2", 1)

        def agent(self, pick: int) -> Agent:
            agents: list[Agent] = list(self.cluster.nodes_agents.values())
            return agents[pick % 2]

        def pod(self, pick: int, chosen: Callable[[PodInfo], bool] = lambda _: True) -> PodInfo | None:
            pods = sorted((pod for pod in self.cluster.pods.values() if chosen(pod)), key=lambda pod: pod.uid)
            return pods[pick % len(pods)] if pods else None

        # Users and the cluster

        @rule(profiles=PROFILES)
        def create(self, profiles: list[str]) -> None:
            self.born += 1
            self.cluster.pod(f"p{self.born}", *sorted(profiles))

        @rule(pick=PICK)
        def bind(self, pick: int) -> None:
            pod = self.pod(pick, lambda pod: not pod.gated and not pod.node and bool(pod.hostname))
            if pod is not None:
                self.cluster.put(replace(pod, node=NodeName(pod.hostname)))

        @rule(pick=PICK)
        def start(self, pick: int) -> None:
            pod = self.pod(pick, lambda pod: bool(pod.node) and not pod.finished)
            if pod is not None:
                self.cluster.nodes_agents[pod.node].start(pod.uid)

        @rule(pick=PICK, forced=st.booleans())
        def delete(self, pick: int, forced: bool) -> None:
            pod = self.pod(pick)
            if pod is not None:
                self.cluster.remove(pod)
                if pod.node and not forced:
                    self.cluster.nodes_agents[pod.node].end(pod.uid)

        @rule(pick=PICK)
        def finish(self, pick: int) -> None:
            pod = self.pod(pick, lambda pod: bool(pod.node) and not pod.finished)
            if pod is not None:
                self.cluster.nodes_agents[pod.node].end(pod.uid)
                self.cluster.put(replace(pod, finished=True))

        @rule(name=st.sampled_from(["n1", "n2"]), cordoned=st.booleans())
        def cordon(self, name: str, cordoned: bool) -> None:
            self.cluster.nodes[name] = replace(self.cluster.nodes[name], cordoned=cordoned)
            self.cluster.slicer.handle(NodeObserved(self.cluster.nodes[name]))

        @rule()
        def all_is_done(self) -> None:
            self.answer_all()
            self.cluster.quiet()

        def answer_all(self) -> None:
            while self.flying:
                self.cluster.answer(self.flying.pop(0))

        # The controller

        @rule(kind=st.sampled_from(["object", "pod"]), times=st.integers(1, 5))
        def controller_hears(self, kind: str, times: int) -> None:
            for _ in range(times):
                self.cluster.deliver(kind)

        @rule()
        def decide(self) -> None:
            self.cluster.slicer.decide()
            self.flying += [one for one in self.cluster.slicer.pop_writes() if not isinstance(one, RecordEvent)]

        @rule(pick=PICK)
        def answer(self, pick: int) -> None:
            if self.flying:
                self.cluster.answer(self.flying.pop(pick % len(self.flying)))

        @rule(pick=PICK, arrived=st.booleans())
        def no_answer(self, pick: int, arrived: bool) -> None:
            if self.flying:
                write = self.flying.pop(pick % len(self.flying))
                if arrived:
                    self.cluster.apply(write)
                else:
                    self.stray.append(write)
                self.cluster.slicer.handle(WriteOutcomeUnknown(write))
                self.cluster.slicer.handle(RetryDue(write))

        @rule(pick=PICK)
        def a_write_arrives_when_nobody_waits_for_it_any_more(self, pick: int) -> None:
            if self.stray:
                self.cluster.apply(self.stray.pop(pick % len(self.stray)))

        @rule(arrived=st.booleans())
        def controller_dies(self, arrived: bool) -> None:
            for write in self.flying:
                if arrived:
                    self.cluster.apply(write)
            self.flying.clear()
            self.cluster.restart()

        # The agents

        @rule(pick=PICK, kind=st.sampled_from(["object", "pod"]), times=st.integers(1, 5))
        def agent_hears(self, pick: int, kind: str, times: int) -> None:
            for _ in range(times):
                self.agent(pick).deliver(kind)

        @rule(pick=PICK, times=st.integers(1, 6))
        def agent_works(self, pick: int, times: int) -> None:
            self.agent(pick).now += 1.0
            for _ in range(times):
                self.agent(pick).step()

        @rule(pick=PICK, unbound=st.booleans())
        def agent_prepares_a_write(self, pick: int, unbound: bool) -> None:
            self.agent(pick).prepare(unbound=unbound)

        @rule(pick=PICK, answered=st.booleans())
        def agent_writes(self, pick: int, answered: bool) -> None:
            self.agent(pick).send(answered=answered)

        @rule(pick=PICK)
        def agent_dies(self, pick: int) -> None:
            self.agent(pick).begin()

        # People

        @rule(pick=PICK)
        def somebody_removes_a_promise(self, pick: int) -> None:
            self._remove("spec", "podAllocationRequests", pick)

        @rule(pick=PICK)
        def somebody_removes_a_result(self, pick: int) -> None:
            self._remove("status", "podAllocationResults", pick)

        def _remove(self, half: str, field: str, pick: int) -> None:
            found = [
                (node, uid)
                for node, item in sorted(self.cluster.objects.items())
                for uid in sorted(item.get(half, {}).get(field, {}))
            ]
            if found:
                node, uid = found[pick % len(found)]
                self.cluster.patch(node, {half: {field: {uid: None}}})

        @rule(name=st.sampled_from(["n1", "n2"]))
        def somebody_deletes_an_object(self, name: str) -> None:
            self.cluster.lose(name)

        @invariant()
        def what_a_living_pod_uses_stays(self) -> None:
            for agent in self.cluster.nodes_agents.values():
                made = {gi for each in agent.instances.values() for gi, (_, _, whole) in each.items() if whole}
                for gi, uid in agent.used.items():
                    assert gi in made, f"{uid} lost its slice"

        def teardown(self) -> None:
            cluster = self.cluster
            if not cluster.nodes_agents:
                return
            for name in ("n1", "n2"):
                cluster.nodes[name] = replace(cluster.nodes[name], cordoned=False)
                cluster.slicer.handle(NodeObserved(cluster.nodes[name]))
            self.answer_all()
            living = {pod.uid for pod in cluster.pods.values()}
            for agent in cluster.nodes_agents.values():
                agent.used = {gi: uid for gi, uid in agent.used.items() if uid in living}
            cluster.quiet()
            for pod in list(cluster.pods.values()):
                if not pod.gated and not pod.node and not pod.finished:
                    cluster.put(replace(pod, node=NodeName(pod.hostname)))
            cluster.quiet()
            for pod in cluster.pods.values():
                if pod.node and not pod.finished:
                    table = cluster.nodes_agents[pod.node].book.table
                    waits = pod.uid in cluster.slicer.state.waiting
                    slices = table.slices_of(pod.uid)
                    made = len(slices) == len(pod.profiles) and table.is_ready(pod.uid)
                    assert made or waits, f"{pod.uid} has no slices: {cluster.objects[pod.node]}"
            for pod in list(cluster.pods.values()):
                cluster.remove(pod)
            for agent in cluster.nodes_agents.values():
                agent.used.clear()
            cluster.quiet()
            assert cluster.empty(), cluster.objects
            assert len(cluster.slicer.state.allocations) == 0
            assert all(card.occupancy == 0 for card in cluster.slicer.state.inventory.fleet.cards())
            for agent in cluster.nodes_agents.values():
                assert not any(agent.instances.values()), "a slice is left"
                assert not agent.book.table.journal().owners

    return Protocol


def play(base: Any, number: int, steps: int = 50) -> None:
    machine = protocol(base).TestCase
    machine.settings = settings(
        max_examples=number, stateful_step_count=steps, deadline=None, suppress_health_check=list(HealthCheck)
    )
    machine().runTest()


def test_controller_and_agents_with_watches_that_lag(new_cluster: Any) -> None:
    play(new_cluster, examples(200))


@pytest.mark.soak
def test_many_thousand_meetings_of_controller_and_agents(new_cluster: Any) -> None:
    play(new_cluster, 5_000)
