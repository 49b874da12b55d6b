"""A node that is down is Unknown and unreachable, and its pods go to others when their time is over."""

import asyncio
from typing import Any

import pytest

from tessera.clock import LoopClock
from tessera.kube.client import Client
from tessera.kube.resources import DEPLOYMENTS, NODES, PODS
from tessera_lab.cluster.cluster import ClusterOptions, SimulatedCluster
from tessera_lab.cluster.options import parse_nodes
from tessera_lab.simulation.virtual_time import run_virtual
from tessera_lab.workloads.nodes import GRACE, seconds_tolerated

UNREACHABLE = "node.kubernetes.io/unreachable"


def toleration(seconds: float | None = None, key: str = UNREACHABLE) -> dict[str, Any]:
    made = {"key": key, "operator": "Exists", "effect": "NoExecute"}
    return made if seconds is None else {**made, "tolerationSeconds": seconds}


@pytest.mark.parametrize(
    ("tolerations", "seconds"),
    [
        ([], 0.0),
        ([toleration(300)], 300.0),
        ([toleration(300), toleration(5)], 5.0),
        ([toleration(-5)], 0.0),
        ([toleration()], None),
        ([{"operator": "Exists"}], None),
        ([toleration(key="other")], 0.0),
    ],
)
def test_a_pod_stays_as_long_as_it_tolerates(tolerations: list[Any], seconds: float | None) -> None:
    assert seconds_tolerated({"spec": {"tolerations": tolerations}}) == seconds


async def state(api: Client, name: str) -> tuple[str, set[tuple[str, str]]]:
    node = await api.get(NODES.as_dicts(), name)
    ready = next(each["status"] for each in node["status"]["conditions"] if each["type"] == "Ready")
    return ready, {(each["key"], each["effect"]) for each in node["spec"].get("taints") or ()}


def test_a_node_that_is_down_is_unknown_until_it_is_back() -> None:
    async def story() -> None:
        options = ClusterOptions(lease_seconds=10.0, boot_seconds=600.0)
        cluster = SimulatedCluster(parse_nodes("0,0"), clock=LoopClock(1_800_000_000), options=options)
        async with cluster.running():
            api = cluster.client("test")
            labels = {"app": "a"}
            template = {"metadata": {"labels": labels}, "spec": {"containers": [{"name": "c", "image": "a"}]}}
            spec = {"replicas": 4, "selector": {"matchLabels": labels}, "template": template}
            await cluster.clock.sleep(1)
            await api.create(DEPLOYMENTS.as_dicts(), {"metadata": {"name": "a"}, "spec": spec}, "default")
            await cluster.clock.sleep(30)
            assert await state(api, "node-1") == ("True", set())
            cluster.nodes["node-1"].reboot()
            await cluster.clock.sleep(GRACE + 15)
            assert await state(api, "node-1") == ("Unknown", {(UNREACHABLE, "NoSchedule"), (UNREACHABLE, "NoExecute")})
            assert await state(api, "node-2") == ("True", set())
            await cluster.clock.sleep(310)
            running = [
                each["spec"]["nodeName"]
                for each in (await api.list(PODS.as_dicts(), "default")).items
                if not each["metadata"].get("deletionTimestamp")
            ]
            assert running == ["node-2"] * 4
            await cluster.clock.sleep(300)
            assert await state(api, "node-1") == ("True", set())
            assert len((await api.list(PODS.as_dicts(), "default")).items) == 4

    run_virtual(story())


def test_nodes_that_renew_their_leases_stay_ready() -> None:
    async def story() -> None:
        options = ClusterOptions(lease_seconds=10.0)
        cluster = SimulatedCluster(parse_nodes("0"), clock=LoopClock(1_800_000_000), options=options)
        async with cluster.running():
            api = cluster.client("test")
            for _ in range(20):
                await asyncio.sleep(30)
                assert await state(api, "node-1") == ("True", set())

    run_virtual(story())
