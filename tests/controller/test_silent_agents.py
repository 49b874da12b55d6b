"""Conditions of silent agents on their Nodes, with the lab's API server in this process and on virtual time."""

import asyncio
import random
from collections.abc import AsyncIterator
from typing import Any

import pytest
from prometheus_client import CollectorRegistry
from tests.support.api_clients import in_process_client
from tests.support.mortal_transport import ForwardingTransport
from tests.support.tasks import cancel_tasks

from tessera.api.instaslice import INSTASLICES, Instaslice
from tessera.api.names import INSTASLICE_NAMESPACE
from tessera.api.nodes.node_marks import ADVERTISED_MANAGER, CARDS_MANAGER, PROVISIONED_MANAGER
from tessera.clock import LoopClock, rfc3339
from tessera.controller.silent_agents import GRACE, PAUSE, SILENT_NODES_SHOWN, SilenceCollector, SilentAgents
from tessera.kube.client import Client
from tessera.kube.informer import Informer
from tessera.kube.requests import Request, Response
from tessera.kube.resources import NAMESPACES, NODES, PODS, Condition, Node, Pod
from tessera_lab.apiserver.interfaces import UserInfo
from tessera_lab.apiserver.main.inprocess_transport import InProcessTransport
from tessera_lab.apiserver.main.server import ApiServer

SYSTEM = "tessera-system"
OWNER = {"apiVersion": "apps/v1", "kind": "DaemonSet", "name": "tessera-agent", "uid": "u", "controller": True}
GOOD = {"GpuHealthy": ("True", "AllHealthy", "well"), "GpuSharingApplied": ("True", "NoProfile", "none")}
ADVERTISED = {"GpuNodeReady": ("True", "Advertised", "kubelet has the cards")}
SICK = GOOD | {"GpuHealthy": ("False", "CardLost", "GPU 3: lost until reboot")}


class SlowTransport(ForwardingTransport):
    """The way of the controller's writes to the API server, each of which may take seconds."""

    def __init__(self, inner: InProcessTransport, clock: LoopClock) -> None:
        super().__init__(inner)
        self._clock = clock
        self.seconds = 0.0
        #: The writes under way, and the most that were.
        self.writing = self.most = 0

    async def request(self, request: Request) -> Response:
        self.writing += 1
        self.most = max(self.most, self.writing)
        await self._clock.sleep(self.seconds)
        self.writing -= 1
        return await super().request(request)


class Fleet:
    """Nodes with agents that are ready, and the part of a controller that watches them."""

    def __init__(self) -> None:
        self.clock = LoopClock(1_700_000_000.0)
        self.server = ApiServer(self.clock)
        self.client = in_process_client(self.server, self.clock, "admin", "system:masters", "system:authenticated")
        user = UserInfo(name="controller", groups=("system:masters", "system:authenticated"))
        self.slow = SlowTransport(InProcessTransport(self.server, user), self.clock)
        self.agents: SilentAgents | None = None
        self._tasks: list[asyncio.Task[None]] = []

    def _speaker(self, manager: str) -> Client:
        return self.client.with_field_manager(manager)

    async def add(self, name: str) -> None:
        """A node joins, and its agent reports that all is well."""
        if not any(each.metadata.name == SYSTEM for each in (await self.client.list(NAMESPACES)).items):
            await self.client.create(NAMESPACES.as_dicts(), {"metadata": {"name": SYSTEM}})
        labels = {"nvidia.com/gpu.present": "true"}
        await self.client.create(NODES.as_dicts(), {"metadata": {"name": name, "labels": labels}})
        await self.kubelet(name, "True")
        await self.start_agent(name)
        await self.speak(name)

    async def kubelet(self, name: str, status: str) -> None:
        """Kubelet reports, or the node lifecycle controller in its place."""
        ready = {"type": "Ready", "status": status, "message": "Kubelet stopped posting node status."}
        await self._speaker("kubelet").apply(NODES, name, {"status": {"conditions": [ready]}}, subresource="status")

    async def speak(self, name: str, says: dict[str, tuple[str, str, str]] = GOOD) -> None:
        """The agent writes its conditions."""
        now = rfc3339(self.clock.now())
        for manager, told in ((CARDS_MANAGER, says), (ADVERTISED_MANAGER, ADVERTISED)):
            listed = [
                {"type": kind, "status": status, "reason": reason, "message": message, "lastHeartbeatTime": now,
                 "lastTransitionTime": now}
                for kind, (status, reason, message) in told.items()
            ]  # fmt: skip
            body = {"status": {"conditions": listed}}
            await self._speaker(manager).apply(NODES, name, body, subresource="status")

    async def start_agent(self, name: str, *, ready: str = "True") -> None:
        """A pod of the agents' DaemonSet on the node."""
        made = {
            "metadata": {"name": f"agent-{name}", "namespace": SYSTEM, "ownerReferences": [OWNER]},
            "spec": {"nodeName": name, "containers": [{"name": "agent", "image": "tessera"}]},
        }
        await self.client.create(PODS.as_dicts(), made, SYSTEM)
        status = {"phase": "Running", "conditions": [{"type": "Ready", "status": ready}]}
        await self.client.merge_patch(PODS, f"agent-{name}", {"status": status}, SYSTEM, subresource="status")

    async def stop_agent(self, name: str) -> None:
        await self.client.delete(PODS, f"agent-{name}", SYSTEM, grace_seconds=0)

    async def lead(self) -> None:
        """A controller begins to lead, in the place of the one before."""
        await cancel_tasks(self._tasks)
        rng = random.Random(1)
        nodes: Informer[Node] = Informer(self.client, NODES, clock=self.clock, rng=rng)
        pods: Informer[Pod] = Informer(self.client, PODS, clock=self.clock, rng=rng)
        objects: Informer[Instaslice] = Informer(
            self.client, INSTASLICES, namespace=INSTASLICE_NAMESPACE, clock=self.clock, rng=rng
        )
        client = Client(self.slow, field_manager="controller", clock=self.clock)
        self.agents = SilentAgents(client, nodes=nodes, pods=pods, objects=objects, clock=self.clock)
        self._tasks = [asyncio.create_task(each.run()) for each in (nodes, pods, objects)]
        for each in (nodes, pods):
            await each.wait_synced()
        self._tasks.append(asyncio.create_task(self.agents.run()))

    async def stop(self) -> None:
        await cancel_tasks(self._tasks)

    async def node(self, name: str) -> Node:
        return await self.client.get(NODES, name)

    async def condition(self, name: str, kind: str = "GpuHealthy") -> Condition:
        found = (await self.node(name)).status.condition(kind)
        assert found is not None
        return found

    async def statuses(self, name: str) -> set[str]:
        found = (await self.node(name)).status.conditions
        return {each.status for each in found if each.type.startswith("Gpu")}

    async def versions(self) -> list[str]:
        return [each.metadata.resource_version for each in (await self.client.list(NODES)).items]


@pytest.fixture
async def fleet(virtual_time: None) -> AsyncIterator[Fleet]:
    fleet = Fleet()
    yield fleet
    await fleet.stop()


async def test_a_lost_agent_makes_its_conditions_unknown_within_a_minute_and_takes_them_over_again(
    fleet: Fleet,
) -> None:
    await fleet.add("n1")
    await fleet.add("n2")
    await fleet.lead()
    spoken = rfc3339(fleet.clock.now())
    await fleet.clock.sleep(100)
    await fleet.stop_agent("n1")
    await fleet.clock.sleep(GRACE - 5)
    assert await fleet.statuses("n1") == {"True"}
    await fleet.clock.sleep(10)
    assert await fleet.statuses("n1") == {"Unknown"}
    assert await fleet.statuses("n2") == {"True"}
    found = await fleet.condition("n1")
    assert found.reason == "AgentStatusUnknown"
    assert "no pod of DaemonSet tessera-system/tessera-agent is on it" in found.message
    assert "see tessera why node/n1" in found.message
    assert found.last_heartbeat_time == spoken  # when the agent last spoke
    assert found.last_transition_time is not None
    assert found.last_transition_time > spoken
    await fleet.start_agent("n1")
    await fleet.speak("n1")
    await fleet.clock.sleep(100)
    assert await fleet.statuses("n1") == {"True"}


async def test_what_was_wrong_by_the_agents_last_word_stays_in_the_message(fleet: Fleet) -> None:
    await fleet.add("n1")
    await fleet.speak("n1", SICK)
    await fleet.stop_agent("n1")
    await fleet.lead()
    await fleet.clock.sleep(GRACE + 5)
    assert (await fleet.condition("n1")).message.endswith("It last said: GPU 3: lost until reboot")


async def test_a_condition_that_the_next_agent_no_longer_has_disappears_with_its_first_word(fleet: Fleet) -> None:
    await fleet.add("n1")
    await fleet.speak("n1", GOOD | {"GpuMpsReady": ("True", "DaemonsReady", "MPS serves")})
    await fleet.stop_agent("n1")
    await fleet.lead()
    await fleet.clock.sleep(GRACE + 5)
    assert (await fleet.condition("n1", "GpuMpsReady")).status == "Unknown"
    await fleet.start_agent("n1")
    await fleet.speak("n1")
    assert (await fleet.node("n1")).status.condition("GpuMpsReady") is None


@pytest.mark.parametrize(("status", "becomes"), [("True", "Unknown"), ("False", "False")])
async def test_nobody_knows_if_a_silent_node_still_offers_its_cards(fleet: Fleet, status: str, becomes: str) -> None:
    await fleet.add("n1")
    provisioned = {"type": "GpuProvisioned", "status": status, "reason": "Provisioned", "message": "120 s"}
    body = {"status": {"conditions": [provisioned]}}
    writer = fleet.client.with_field_manager(PROVISIONED_MANAGER)
    await writer.apply(NODES, "n1", body, subresource="status")
    await fleet.stop_agent("n1")
    await fleet.lead()
    await fleet.clock.sleep(GRACE + 5)
    assert (await fleet.condition("n1", "GpuProvisioned")).status == becomes
    marked = await fleet.versions()
    await fleet.clock.sleep(3600)
    assert await fleet.versions() == marked


@pytest.mark.soak
async def test_many_nodes_that_fall_silent_together_are_marked_soon_also_by_a_slow_server(fleet: Fleet) -> None:
    names = [f"n{number:03}" for number in range(200)]
    for name in names:
        await fleet.add(name)
    await fleet.lead()
    fleet.slow.seconds = 0.1
    for name in names:
        await fleet.kubelet(name, "Unknown")
    await fleet.clock.sleep(GRACE + 10)
    assert {status for name in names for status in await fleet.statuses(name)} == {"Unknown"}
    assert 1 < fleet.slow.most <= 10


async def test_a_rollout_that_takes_each_agent_away_for_seconds_writes_nothing(fleet: Fleet) -> None:
    names = [f"n{number}" for number in range(5)]
    for name in names:
        await fleet.add(name)
    await fleet.lead()
    before = await fleet.versions()
    for name in names:
        await fleet.stop_agent(name)
        await fleet.clock.sleep(20)
        await fleet.start_agent(name)
    await fleet.clock.sleep(600)
    assert await fleet.versions() == before


async def test_a_quiet_cluster_a_new_leader_and_a_long_silence_write_nothing_more(fleet: Fleet) -> None:
    await fleet.add("n1")
    await fleet.add("n2")
    await fleet.lead()
    await fleet.stop_agent("n1")
    await fleet.clock.sleep(GRACE + 5)
    marked = await fleet.versions()
    await fleet.clock.sleep(7200)
    await fleet.lead()
    await fleet.clock.sleep(7200)
    assert await fleet.versions() == marked


async def test_after_a_partition_of_all_nodes_a_bounded_number_is_written_a_second(fleet: Fleet) -> None:
    names = [f"n{number:03}" for number in range(200)]
    for name in names:
        await fleet.add(name)
    await fleet.lead()
    for name in names:
        await fleet.kubelet(name, "Unknown")
    before = await fleet.versions()
    await fleet.clock.sleep(GRACE + 2)
    changed = sum(one != other for one, other in zip(before, await fleet.versions(), strict=True))
    assert 0 < changed <= 2 / PAUSE + 2 < len(names)
    for name in names:  # the partition ends: the others are left out
        await fleet.kubelet(name, "True")
    before = await fleet.versions()
    await fleet.clock.sleep(600)
    assert await fleet.versions() == before


async def test_an_agent_that_speaks_while_its_kubelet_is_dead_is_not_fought(fleet: Fleet) -> None:
    await fleet.add("n1")
    await fleet.lead()
    await fleet.kubelet("n1", "Unknown")
    marks = 0
    for _ in range(3600 // 10):
        await fleet.clock.sleep(10)
        if await fleet.statuses("n1") != {"True"}:
            marks += 1
            await fleet.speak("n1")
    assert 1 <= marks <= 7


async def test_the_metric_names_the_silent_nodes_at_once_and_is_bounded(fleet: Fleet) -> None:
    for number in range(3):
        await fleet.add(f"n{number}")
    await fleet.lead()
    agents = fleet.agents
    assert agents is not None
    registry = CollectorRegistry()
    registry.register(SilenceCollector(lambda: agents.silent))

    def shown(node: str, reason: str) -> Any:
        return registry.get_sample_value("tessera_silent_nodes", {"node": node, "reason": reason})

    await fleet.clock.sleep(1)
    assert shown("n1", "no_agent") is None
    await fleet.stop_agent("n1")
    await fleet.clock.sleep(1)
    assert (shown("n1", "no_agent"), shown("n0", "no_agent")) == (1, None)
    one = agents.silent["n1"]
    agents.silent |= {f"m{number}": one for number in range(int(SILENT_NODES_SHOWN) + 5)}
    assert shown("other", "other") == 6
