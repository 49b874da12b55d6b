"""Administrators' objects against the lab's API server: kinds that come later, mistakes, and processes that end."""

import asyncio
import random
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tessera.clock import LoopClock
from tessera.doctor.manifests import install_manifests
from tessera.driver.policies import PolicyWatcher
from tessera.gpu_operator.assignment import CLUSTER_POLICIES
from tessera.kube.client import Client
from tessera.kube.leader_election import KubeRuntime
from tessera.kube.resources import CRDS, NAMESPACES
from tessera_lab.apiserver.interfaces import UserInfo
from tessera_lab.apiserver.main.inprocess_transport import InProcessTransport
from tessera_lab.apiserver.main.server import ApiServer

ADMIN = UserInfo(name="admin", groups=("system:masters", "system:authenticated"))
DRIVER = {"usePrecompiled": True, "repository": "nvcr.io/nvidia", "image": "driver", "version": "525.125.06"}
NODES = {"a": {"nvidia.com/gpu.present": "true"}}


class ServerWithPolicies:
    """An API server, and whoever follows its policies."""

    def __init__(self) -> None:
        self.clock = LoopClock(1_800_000_000)
        server = ApiServer(self.clock)
        self.client = Client(InProcessTransport(server, ADMIN), field_manager="t", clock=self.clock)
        self.stirred: list[str] = []

    async def define(self) -> None:
        for each in install_manifests():
            if each["kind"] == "CustomResourceDefinition" and each["spec"]["group"] == "nvidia.com":
                await self.client.create(CRDS, each)

    async def write(self, **driver: Any) -> None:
        await self.client.apply(CLUSTER_POLICIES, "p", {"spec": {"driver": DRIVER | driver}})
        await self.clock.sleep(10)  # until it is seen, and what follows from it is written

    @asynccontextmanager
    async def following(self) -> AsyncIterator[PolicyWatcher]:
        """One life of a process."""

        def stirred(keys: Iterable[str]) -> None:
            self.stirred.extend(keys)

        runtime = KubeRuntime(client=self.client, clock=self.clock, rng=random.Random(0))
        policies = PolicyWatcher(runtime, changed=stirred)
        task = asyncio.create_task(policies.run())
        await policies.wait_read()
        try:
            yield policies
        finally:
            task.cancel()


@pytest.fixture
async def lab(virtual_time: None) -> ServerWithPolicies:
    lab = ServerWithPolicies()
    await lab.client.create(NAMESPACES, {"metadata": {"name": "tessera-system"}})
    return lab


async def test_a_cluster_without_the_kinds_is_read_and_leaves_everything_as_it_is_until_they_come(
    lab: ServerWithPolicies,
) -> None:
    async with lab.following() as policies:
        assert policies.select_policy(NODES).frozen
        await lab.define()
        await lab.clock.sleep(60)
        await lab.write()
        selection = policies.select_policy(NODES)
        assert not selection.frozen
        assert set(selection.nodes) == {"a"}
        assert lab.stirred == ["policy/ClusterPolicy/p"]


async def test_what_an_object_said_before_a_mistake_outlives_the_process(lab: ServerWithPolicies) -> None:
    await lab.define()
    await lab.write()
    async with lab.following() as policies:
        said = policies.select_policy(NODES).nodes
        await lab.clock.sleep(10)
    await lab.write(repository="")  # which an image with a version needs
    async with lab.following() as policies:
        assert policies.select_policy(NODES).nodes == said


async def test_objects_that_are_as_they_were_are_not_read_again(lab: ServerWithPolicies) -> None:
    await lab.define()
    async with lab.following() as policies:
        await lab.write()
        policies.select_policy(NODES)  # the first one is a valid version to remember
        first = policies.select_policy(NODES)
        assert policies.select_policy({**NODES}) is first
        labels = {"a": {**NODES["a"], "zone": "z1"}}
        assert policies.select_policy(labels) is not first
        assert policies.select_policy(labels).nodes.keys() == {"a"}
        await lab.write(version="535.54.03")
        assert policies.select_policy(labels).nodes["a"] != first.nodes["a"]
