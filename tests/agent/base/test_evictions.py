"""Pods are evicted through the API server, which keeps disruption budgets; another pod of the same name never is."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.agent.mig_config.node import Node, played

from tessera.agent.mig_config.card_reconciler import EVICTION_DELAY_LIMIT, RETRY_PAUSE
from tessera.agent.mig_config.events import LayoutState
from tessera.api.names import PodUid
from tessera.clock import LoopClock
from tessera.kube.client import Client
from tessera.kube.errors import NotFound
from tessera.kube.eviction import Blocked, Evicted, Evictor, Gone
from tessera.kube.resources import PODS
from tessera.kubelet.interfaces import PodResources
from tessera_lab.apiserver.interfaces import UserInfo
from tessera_lab.apiserver.main.inprocess_transport import InProcessTransport
from tessera_lab.apiserver.main.server import ApiServer


class Cluster:
    """An API server with a pod ``web``."""

    def __init__(self) -> None:
        clock = LoopClock(1_700_000_000.0)
        self.server = ApiServer(clock)
        transport = InProcessTransport(self.server, user=UserInfo(name="admin", groups=("system:masters",)))
        self.client = Client(transport, field_manager="test", clock=clock)
        self.evictor = Evictor(self.client)
        self.uid = PodUid("")

    async def start(self) -> None:
        spec = {"containers": [{"name": "main", "image": "cuda"}], "nodeName": "node-1"}
        pod = {"metadata": {"name": "web", "labels": {"app": "web"}}, "spec": spec}
        made: Any = await self.client.create(PODS.as_dicts(), pod, "default")
        self.uid = PodUid(made["metadata"]["uid"])
        await self.client.merge_patch(PODS, "web", {"status": {"phase": "Running"}}, "default", subresource="status")

    async def guard(self) -> None:
        """A disruption budget that allows nothing yet."""
        await self.client.request(
            "POST",
            "/apis/policy/v1/namespaces/default/poddisruptionbudgets",
            body={
                "apiVersion": "policy/v1",
                "kind": "PodDisruptionBudget",
                "metadata": {"name": "web"},
                "spec": {"minAvailable": 1, "selector": {"matchLabels": {"app": "web"}}},
            },
        )

    async def there(self) -> bool:
        try:
            pod = await self.client.get(PODS, "web", "default")
        except NotFound:
            return False
        return pod.metadata.deletion_timestamp is None


@pytest.fixture
async def cluster(virtual_time: None) -> AsyncIterator[Cluster]:
    made = Cluster()
    await made.start()
    yield made
    await made.client.close()


async def test_a_pod_is_evicted(cluster: Cluster) -> None:
    assert await cluster.evictor.evict("default", "web", cluster.uid) == Evicted()
    assert not await cluster.there()


async def test_another_pod_of_the_same_name_is_not_evicted(cluster: Cluster) -> None:
    assert await cluster.evictor.evict("default", "web", PodUid("another")) == Gone()
    assert await cluster.there()


async def test_a_pod_that_is_gone_needs_no_eviction(cluster: Cluster) -> None:
    assert await cluster.evictor.evict("default", "none", PodUid("another")) == Gone()


async def test_a_disruption_budget_blocks_with_the_servers_words(cluster: Cluster) -> None:
    await cluster.guard()
    answer = await cluster.evictor.evict("default", "web", cluster.uid)
    assert isinstance(answer, Blocked)
    assert "would violate the pod's disruption budget" in answer.text
    assert "The disruption budget web" in answer.text
    assert await cluster.there()


async def test_a_layout_evicts_the_pods_on_devices_it_removes_and_continues(cluster: Cluster, tmp_path: Path) -> None:
    async def laid(node: Node) -> None:
        device = node.make(0, "7g.40gb", 0)
        node.pod("web", device, uid=cluster.uid)
        node.start()
        node.label("2x2g.10gb-3x1g.5gb")
        await node.until(lambda: "(evicted)" in node.status.message)
        assert not await cluster.there()
        assert node.devices() == {device}
        node.ends("web")
        await node.succeeds()
        assert node.state(LayoutState.SUCCESS)

    await played(Node(tmp_path, evictor=cluster.evictor), laid)


async def test_no_pod_is_evicted_while_new_pods_would_still_be_sent_to_the_node(
    cluster: Cluster, tmp_path: Path
) -> None:
    async def laid(node: Node) -> None:
        node.pod("web", node.make(0, "7g.40gb", 0), uid=cluster.uid)
        node.counted_too_many = ("nvidia.com/mig-7g.40gb",)
        node.start()
        node.label("2x2g.10gb-3x1g.5gb")
        await node.until(lambda: "pod default/web: evicted when the node stops" in node.status.message)
        await node.clock.sleep(10)
        assert await cluster.there()
        node.counted_too_many = ()
        node.changes.notify()
        await node.clock.sleep(0.1)
        assert not await cluster.there()

    await played(Node(tmp_path, evictor=cluster.evictor), laid)


async def test_kubelet_is_not_asked_again_for_the_pods_because_something_else_changes(
    cluster: Cluster, tmp_path: Path
) -> None:
    async def laid(node: Node) -> None:
        node.pod("web", node.make(0, "7g.40gb", 0), uid=cluster.uid)
        node.counted_too_many = ("nvidia.com/mig-7g.40gb",)
        node.start()
        node.label("2x2g.10gb-3x1g.5gb")
        asked = 0
        listed = node.kubelet.pod_resources

        async def pod_resources() -> Sequence[PodResources]:
            nonlocal asked
            asked += 1
            return await listed()

        node.kubelet.pod_resources = pod_resources  # type: ignore[method-assign]
        for _ in range(round(EVICTION_DELAY_LIMIT / 2 / 0.1)):
            await node.clock.sleep(0.1)
            node.changes.notify()
        assert await cluster.there()
        assert EVICTION_DELAY_LIMIT / 2 / RETRY_PAUSE / 2 < asked <= EVICTION_DELAY_LIMIT / 2 / RETRY_PAUSE + 3

    await played(Node(tmp_path, evictor=cluster.evictor), laid)


async def test_a_node_that_goes_on_counting_does_not_keep_its_pods(cluster: Cluster, tmp_path: Path) -> None:
    async def laid(node: Node) -> None:
        node.pod("web", node.make(0, "7g.40gb", 0), uid=cluster.uid)
        node.counted_too_many = ("nvidia.com/mig-7g.40gb",)
        node.start()
        node.label("2x2g.10gb-3x1g.5gb")
        await node.clock.sleep(EVICTION_DELAY_LIMIT - 1)
        assert await cluster.there()
        await node.clock.sleep(2)
        assert not await cluster.there()

    await played(Node(tmp_path, evictor=cluster.evictor), laid)
