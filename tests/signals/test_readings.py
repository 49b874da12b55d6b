"""The controller reads the load of services from agents, and believes none about pods of other nodes."""

import asyncio
import random
from typing import Any

import pytest
from tests.observe.conftest import AgentCluster
from tests.support.slicer_cluster import SlicerCluster

from tessera.api.nodes.usage import NodeUsage, ServiceUsage
from tessera.clock import SystemClock
from tessera.kube.informer import Informer
from tessera.kube.leader_election import KubeRuntime
from tessera.kube.resources import PODS
from tessera.signals.page import LOAD
from tessera.signals.satellite import SignalsTask
from tessera.signals.services import ServiceKey

TEAM = "/api/v1/namespaces/team/pods"
VLLM = ServiceKey("team", "Deployment", "vllm")


async def add_pod(cluster: AgentCluster, name: str, node: str, *, ready: bool = True, scrape: str = "true") -> str:
    """Adds a pod of the service; returns its UID."""
    owner = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "vllm-5d4f", "uid": "u", "controller": True}
    container = {"name": "m", "image": "vllm", "resources": {"limits": {"nvidia.com/mig-1g.5gb": "1"}}}
    metadata: dict[str, Any] = {"name": name, "labels": {"pod-template-hash": "5d4f"}, "ownerReferences": [owner]}
    metadata["annotations"] = {"prometheus.io/scrape": scrape}
    body = {"metadata": metadata, "spec": {"nodeName": node, "containers": [container]}}
    made = await cluster.api("POST", TEAM, body)
    conditions = [{"type": "Ready", "status": str(ready)}]
    await cluster.api.merge(f"{TEAM}/{name}/status", {"status": {"conditions": conditions}})
    return str(made["metadata"]["uid"])


def usage(uid: str, load: float, **facts: Any) -> ServiceUsage:
    return ServiceUsage(namespace="team", pod="any", uid=uid, running=0.0, waiting=load, **facts)


async def read(cluster: AgentCluster) -> float | None:
    """The load of the service as the controller knows it."""
    clock, rng = SystemClock(), random.Random(1)
    runtime = KubeRuntime(client=cluster.client(), clock=clock, rng=rng)
    pods = Informer(runtime.client, PODS, clock=clock, rng=rng)
    task = SignalsTask(runtime, SlicerCluster().slicer, pods)
    running = asyncio.create_task(pods.run())
    await pods.wait_synced()
    try:
        return (await task.read_loads()).get(VLLM, {}).get(LOAD)
    finally:
        running.cancel()
        await asyncio.wait([running])


@pytest.fixture
async def service() -> tuple[AgentCluster, str, str]:
    """A service with a pod on each of two nodes, and their UIDs."""
    cluster = AgentCluster()
    await cluster.begin()
    await cluster.api("POST", "/api/v1/namespaces", {"metadata": {"name": "team"}})
    return cluster, await add_pod(cluster, "a", "n1"), await add_pod(cluster, "b", "n2")


Service = tuple[AgentCluster, str, str]


async def test_the_pods_of_all_nodes_add_up(service: Service) -> None:
    cluster, first, second = service
    await add_pod(cluster, "loading", "n2", ready=False)
    await add_pod(cluster, "quiet", "n2", scrape="false")
    await cluster.add_agent("n1", NodeUsage(node="n1", services=(usage(first, 3.0),)))
    await cluster.add_agent("n2", NodeUsage(node="n2", services=(usage(second, 4.0),)))
    await cluster.add_agent("n3", AssertionError("no pod of a service is there"))
    assert await read(cluster) == 7.0


async def test_an_agent_is_not_believed_about_pods_of_other_nodes(service: Service) -> None:
    cluster, first, second = service
    await cluster.add_agent("n1", NodeUsage(node="n1", services=(usage(first, 3.0), usage(second, 999.0))))
    await cluster.add_agent("n2", NodeUsage(node="n2"))
    assert await read(cluster) is None


@pytest.mark.parametrize("page", [b"{", b'{"node": "n2", "services": [{"waiting": "many"}]}', OSError("gone")])
async def test_a_page_that_cannot_be_read_leaves_the_load_unknown(service: Service, page: bytes | Exception) -> None:
    cluster, first, _ = service
    await cluster.add_agent("n1", NodeUsage(node="n1", services=(usage(first, 3.0),)))
    await cluster.add_agent("n2", page)
    assert await read(cluster) is None


async def test_no_agent_is_asked_without_services() -> None:
    cluster = AgentCluster()
    await cluster.begin()
    await cluster.add_agent("n1", AssertionError("nobody has a page"))
    assert await read(cluster) is None
    assert cluster.shown == []
