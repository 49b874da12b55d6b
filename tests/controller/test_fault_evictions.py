"""Evictions from faulty cards at work: disruption budgets, new leaders at every moment, and pods of the same name."""

import asyncio
import random
from collections.abc import AsyncIterator
from typing import Any

import pytest
from tests.support.api_clients import in_process_client
from tests.support.tasks import cancel_tasks

from tessera.api.names import FAULT_TOLERATION, GPU_CONDITION, REPAIRS_KEY, REPAIRS_MAP
from tessera.api.nodes.card_faults import CARDS_ANNOTATION, CardFault, ListedCard, encode_cards
from tessera.clock import LoopClock, rfc3339
from tessera.controller.base import ControllerMetrics
from tessera.controller.fault_evictions import LONGEST_RETRY, FaultEvictions, RepairSettings
from tessera.kube.cache import EventKind, WatchEvent
from tessera.kube.event_recorder import EventRecorder
from tessera.kube.eviction import Evictor
from tessera.kube.informer import Informer
from tessera.kube.requests import Request
from tessera.kube.resources import CONFIGMAPS, EVENTS, NAMESPACES, NODES, PODS, Node, Pod
from tessera_lab.apiserver.interfaces import UserInfo
from tessera_lab.apiserver.main.server import ApiServer, error_response
from tessera_lab.apiserver.status import conflict_error

OWNER = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web", "uid": "r", "controller": True}
EVICT = "{evict: true, tolerationSeconds: 600}"


class Cluster:
    """A node with a card that must be reset, pods on it, and a controller."""

    def __init__(self) -> None:
        self.clock = LoopClock(1_700_000_000.0)
        self.server = ApiServer(self.clock)
        self.client = in_process_client(self.server, self.clock, "admin", "system:masters", "system:authenticated")
        self.metrics = ControllerMetrics()
        self._tasks: list[asyncio.Task[None]] = []

    async def prepare(self) -> None:
        await self.client.create(NAMESPACES.as_dicts(), {"metadata": {"name": "tessera-system"}})
        fault = CardFault("GPU-1", "XID 48", int(self.clock.now()), asks="reset")
        cards = encode_cards([ListedCard(0, "GPU-1")], [fault])
        await self.client.create(
            NODES.as_dicts(), {"metadata": {"name": "n1", "annotations": {CARDS_ANNOTATION: cards}}}
        )

    async def pod(self, name: str, *, owned: bool = True, tolerates: str = "") -> str:
        meta: dict[str, Any] = {"name": name, "labels": {"app": "web"}, "annotations": {FAULT_TOLERATION: tolerates}}
        if owned:
            meta["ownerReferences"] = [OWNER]
        spec = {"containers": [{"name": "c", "image": "cuda"}], "nodeName": "n1"}
        made: Any = await self.client.create(PODS.as_dicts(), {"metadata": meta, "spec": spec}, "default")
        told = {
            "type": GPU_CONDITION,
            "status": "False",
            "reason": "GpuNeedsReset",
            "message": "",
            "lastTransitionTime": rfc3339(self.clock.now()),
        }
        status = {"status": {"phase": "Running", "conditions": [told]}}
        await self.client.merge_patch(PODS, name, status, "default", subresource="status")
        return str(made["metadata"]["uid"])

    async def protect(self, minimum: int) -> None:
        await self.client.request(
            "POST",
            "/apis/policy/v1/namespaces/default/poddisruptionbudgets",
            body={
                "apiVersion": "policy/v1",
                "kind": "PodDisruptionBudget",
                "metadata": {"name": "web"},
                "spec": {"minAvailable": minimum, "selector": {"matchLabels": {"app": "web"}}},
            },
        )

    async def lead(self, file: str = EVICT) -> None:
        """A controller begins to lead; the one before has been killed."""
        await cancel_tasks(self._tasks)
        rng = random.Random(1)
        nodes: Informer[Node] = Informer(self.client, NODES, clock=self.clock, rng=rng)
        pods: Informer[Pod] = Informer(self.client, PODS, clock=self.clock, rng=rng)
        await self.say(file)
        settings = RepairSettings(self.client, namespace="tessera-system", clock=self.clock, rng=rng)
        events = EventRecorder(self.client, component="tessera-controller", clock=self.clock, rng=rng)
        evictions = FaultEvictions(
            Evictor(self.client),
            nodes=nodes,
            pods=pods,
            events=events,
            metrics=self.metrics,
            settings=settings,
            namespace="tessera-system",
            clock=self.clock,
        )
        self.evictions = evictions
        self._tasks = [asyncio.create_task(each.run()) for each in (nodes, pods, events, settings)]
        await nodes.wait_synced()
        await pods.wait_synced()
        self._tasks.append(asyncio.create_task(evictions.run()))

    async def say(self, file: str) -> None:
        """The administrator writes the file of repairs."""
        data = {"data": {REPAIRS_KEY: file}}
        await self.client.apply(CONFIGMAPS, REPAIRS_MAP, data, "tessera-system")

    async def running(self) -> list[str]:
        found = (await self.client.list(PODS, "default")).items
        return sorted(pod.metadata.name for pod in found if pod.metadata.deletion_timestamp is None)

    async def reasons(self) -> list[str]:
        return sorted(event.reason for event in (await self.client.list(EVENTS, "default")).items)

    def attempts(self, outcome: str) -> float:
        return self.metrics.registry.get_sample_value("tessera_fault_evictions_total", {"outcome": outcome}) or 0.0

    async def stop(self) -> None:
        await cancel_tasks(self._tasks)


@pytest.fixture
async def cluster(virtual_time: None) -> AsyncIterator[Cluster]:
    cluster = Cluster()
    await cluster.prepare()
    yield cluster
    await cluster.stop()


async def test_nobody_is_evicted_while_the_agent_is_silent(cluster: Cluster) -> None:
    """What it wrote may be long over, and no agent would reset the card."""

    async def condition(cluster: Cluster, status: str, reason: str) -> None:
        silent = {"type": "GpuHealthy", "status": status, "reason": reason, "message": ""}
        await cluster.client.merge_patch(NODES, "n1", {"status": {"conditions": [silent]}}, subresource="status")

    await condition(cluster, "Unknown", "AgentStatusUnknown")
    await cluster.pod("web")
    await cluster.lead()
    await asyncio.sleep(600)
    assert await cluster.running() == ["web"]
    await condition(cluster, "False", "CardUnhealthy")
    await asyncio.sleep(10)
    assert await cluster.running() == []


async def test_pods_with_an_owner_are_evicted_after_the_delay_and_told_why(cluster: Cluster) -> None:
    await cluster.pod("web")
    await cluster.pod("alone", owned=False)
    await cluster.pod("patient", tolerates="300")
    await cluster.pod("endless", tolerates="999999999")
    await cluster.lead()
    await asyncio.sleep(50)
    assert await cluster.running() == ["alone", "endless", "patient", "web"]
    await asyncio.sleep(20)
    assert await cluster.running() == ["alone", "endless", "patient"]
    assert "GpuFaultEvicted" in await cluster.reasons()
    await asyncio.sleep(240)
    assert await cluster.running() == ["alone", "endless"]
    await asyncio.sleep(300)
    assert await cluster.running() == ["alone"]


async def test_without_the_option_no_pod_is_evicted(cluster: Cluster) -> None:
    await cluster.pod("web")
    await cluster.lead("")
    await asyncio.sleep(5000)
    assert await cluster.running() == ["web"]


async def test_what_the_administrator_writes_holds_at_once_and_a_mistake_changes_nothing(cluster: Cluster) -> None:
    await cluster.pod("web")
    await cluster.lead("")
    await asyncio.sleep(600)
    await cluster.say("{evict: true, evictNodes: 0}")
    await asyncio.sleep(600)
    assert await cluster.running() == ["web"]
    await cluster.say(EVICT)
    await asyncio.sleep(10)
    assert await cluster.running() == []
    await cluster.say("evict: maybe")
    await cluster.pod("next")
    await asyncio.sleep(90)
    assert await cluster.running() == [], "what was in force before stays in force"


async def test_a_disruption_budget_is_kept_and_asked_again_with_growing_pauses(cluster: Cluster) -> None:
    await cluster.pod("web")
    await cluster.protect(1)
    await cluster.lead()
    await asyncio.sleep(3600)
    assert await cluster.running() == ["web"]
    assert 5 <= cluster.attempts("blocked") <= 5 + 3600 / LONGEST_RETRY
    assert "GpuFaultEvictionBlocked" in await cluster.reasons()
    await cluster.client.request("DELETE", "/apis/policy/v1/namespaces/default/poddisruptionbudgets/web")
    await asyncio.sleep(LONGEST_RETRY + 10)
    assert await cluster.running() == []


async def test_new_leaders_at_every_moment_evict_each_pod_once(cluster: Cluster) -> None:
    names = [f"web-{number}" for number in range(4)]
    for name in names:
        await cluster.pod(name)
    for _ in range(40):
        await cluster.lead()
        await asyncio.sleep(2.1)
    await asyncio.sleep(20)
    assert await cluster.running() == []
    assert cluster.attempts("evicted") == len(names)
    assert cluster.attempts("blocked") == 0


async def test_a_pod_of_the_same_name_that_was_not_told_stays(cluster: Cluster) -> None:
    await cluster.pod("web")
    await cluster.lead()
    await asyncio.sleep(30)
    await cluster.client.delete(PODS, "web", "default", grace_seconds=0)
    spec = {"containers": [{"name": "c", "image": "cuda"}], "nodeName": "n2"}
    meta = {"name": "web", "ownerReferences": [OWNER]}
    await cluster.client.create(PODS.as_dicts(), {"metadata": meta, "spec": spec}, "default")
    await asyncio.sleep(600)
    assert await cluster.running() == ["web"]


async def test_a_pod_that_is_gone_before_its_eviction_gets_no_event_of_one(cluster: Cluster) -> None:
    await cluster.pod("web")
    ghost = await cluster.client.get(PODS, "web", "default")
    await cluster.client.delete(PODS, "web", "default", grace_seconds=0)
    await cluster.lead()
    cluster.evictions.pod_changed(WatchEvent(EventKind.ADDED, ghost))
    await asyncio.sleep(120)
    assert cluster.attempts("gone") == 3
    assert await cluster.reasons() == []
    cluster.evictions.pod_changed(WatchEvent(EventKind.DELETED, ghost))
    await asyncio.sleep(3600)
    assert cluster.attempts("gone") == 3


async def test_a_pod_whose_eviction_meets_a_conflict_is_evicted_later(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    handle, left = cluster.server.handle, 2

    async def handle_late(request: Request, user: UserInfo) -> Any:
        nonlocal left
        if request.path.endswith("/eviction") and left:
            left -= 1
            return error_response(conflict_error("", "pods", "web", "the object has been modified"))
        return await handle(request, user)

    monkeypatch.setattr(cluster.server, "handle", handle_late)
    await cluster.pod("web")
    await cluster.lead()
    await asyncio.sleep(120)
    assert await cluster.running() == []
    assert cluster.attempts("gone") == 2
    assert await cluster.reasons() == ["GpuFaultEvicted"]
