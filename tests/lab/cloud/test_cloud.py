"""Machines of node groups: how they come, what tells of them, and who takes them away."""

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from tessera.clock import LoopClock, parse_rfc3339
from tessera.kube.client import Client
from tessera.kube.errors import NotFound
from tessera.kube.resources import CAPI_MACHINES, NODES
from tessera.provisioning.timestamps import read_machine
from tessera_lab.cloud.cloud import Cloud
from tessera_lab.cloud.node_groups import NAMESPACE, InstanceState, NodeGroup, RandomDelay
from tessera_lab.cluster.cluster import ClusterOptions, SimulatedCluster
from tessera_lab.cluster.options import LabNodeSpec
from tessera_lab.simulation.virtual_time import run_virtual

START = 1_800_000_000
GPU = NodeGroup(
    name="gpu",
    template=LabNodeSpec(name="", cards=("T4",)),
    maximum=3,
    labels={"cluster-api/accelerator": "nvidia-t4"},
    vm=RandomDelay(mean=90),
    join=RandomDelay(mean=60),
)

Story = Callable[[Cloud, SimulatedCluster, Client], Awaitable[None]]


def play(story: Story, *groups: NodeGroup) -> None:
    """Runs a story in a cluster without nodes and a cloud."""

    async def main() -> None:
        cluster = SimulatedCluster([], clock=LoopClock(START), options=ClusterOptions())
        cloud = Cloud(cluster, groups or [GPU])
        async with cluster.running(), cloud.running():
            await story(cloud, cluster, cluster.client("test"))

    run_virtual(main())


async def nodes(api: Client) -> list[str]:
    return [each["metadata"]["name"] for each in (await api.list(NODES.as_dicts())).items]


async def machine(api: Client, name: str) -> dict[str, Any]:
    return await api.get(CAPI_MACHINES.as_dicts(), name, NAMESPACE)


def test_a_machine_is_requested_there_and_joined() -> None:
    async def story(cloud: Cloud, cluster: SimulatedCluster, api: Client) -> None:
        (asked,) = cloud.increase("gpu", 1)
        await cluster.clock.sleep(1)
        assert (await machine(api, asked.name))["metadata"]["labels"]["cluster.x-k8s.io/set-name"] == "gpu"
        assert cloud.instances()[0].state is InstanceState.CREATING
        await cluster.clock.sleep(90)
        assert cloud.instances()[0].state is InstanceState.BOOTING
        assert await nodes(api) == []
        await cluster.clock.sleep(60)
        assert cloud.instances()[0].state is InstanceState.JOINED
        found = read_machine(await api.get(CAPI_MACHINES, asked.name, NAMESPACE), CAPI_MACHINES)
        assert (found.requested, found.vm_created, found.node) == (START, START + 90, asked.name)
        assert found.group.endswith("gpu")
        node = await api.get(NODES.as_dicts(), asked.name)
        assert parse_rfc3339(node["metadata"]["creationTimestamp"]) == START + 150
        assert node["spec"]["providerID"] == asked.provider_id == found.provider_id
        assert node["metadata"]["labels"]["cluster-api/accelerator"] == "nvidia-t4"
        annotations = node["metadata"]["annotations"]
        assert annotations["cluster.x-k8s.io/machine"] == asked.name
        assert annotations["cluster.x-k8s.io/cluster-namespace"] == NAMESPACE

    play(story)


def test_targets_count_what_is_asked_for_within_bounds() -> None:
    async def story(cloud: Cloud, _cluster: SimulatedCluster, _api: Client) -> None:
        cloud.increase("gpu", 2)
        assert (cloud.target("gpu"), len(cloud.instances("gpu"))) == (2, 2)
        for group, count, words in (
            ("gpu", 2, "2 . 2 machines, 3 at most"),
            ("cpu", 1, "no node group 'cpu'; there are gpu"),
        ):
            with pytest.raises(ValueError, match=words):
                cloud.increase(group, count)
        with pytest.raises(ValueError, match="ask for at least 1"):
            cloud.increase("gpu", 0)

    play(story)


def test_the_minimum_is_there_from_the_start_and_stays() -> None:
    async def story(cloud: Cloud, cluster: SimulatedCluster, api: Client) -> None:
        await cluster.clock.sleep(0.1)
        (name,) = await nodes(api)
        with pytest.raises(ValueError, match="has its minimum of 1 machines"):
            await cloud.delete(name)

    play(story, NodeGroup(name="cpu", template=LabNodeSpec(name="", cards=()), minimum=1))


@pytest.mark.parametrize("after", [1.0, 100.0, 200.0])
def test_a_machine_is_taken_away_however_far_it_is(after: float) -> None:
    async def story(cloud: Cloud, cluster: SimulatedCluster, api: Client) -> None:
        (asked,) = cloud.increase("gpu", 1)
        await cluster.clock.sleep(after)
        assert cloud.instance(asked.name) is not None
        await cloud.delete(asked.name)
        assert (cloud.target("gpu"), cloud.instances(), await nodes(api)) == (0, [], [])
        with pytest.raises(NotFound):
            await machine(api, asked.name)
        with pytest.raises(ValueError, match="there is none"):
            await cloud.delete(asked.name)
        await cluster.clock.sleep(1000)
        assert await nodes(api) == []

    play(story)


def test_a_machine_that_somebody_deletes_is_replaced() -> None:
    async def story(cloud: Cloud, cluster: SimulatedCluster, api: Client) -> None:
        (asked,) = cloud.increase("gpu", 1)
        await cluster.clock.sleep(200)
        await api.delete(CAPI_MACHINES, asked.name, NAMESPACE)
        await cluster.clock.sleep(1)
        (other,) = cloud.instances()
        assert other.name != asked.name
        assert (cloud.target("gpu"), await nodes(api)) == (1, [])
        await cluster.clock.sleep(150)
        assert await nodes(api) == [other.name]

    play(story)


def test_machines_are_paid_for_while_they_are_there() -> None:
    async def story(cloud: Cloud, cluster: SimulatedCluster, _api: Client) -> None:
        one, other = cloud.increase("gpu", 2)
        await cluster.clock.sleep(100)
        assert cloud.machine_seconds() == pytest.approx(20, abs=0.1)
        await cloud.delete(one.name)
        await cluster.clock.sleep(100)
        assert cloud.machine_seconds("gpu") == pytest.approx(120, abs=0.1)
        await cloud.delete(other.name)
        await cluster.clock.sleep(100)
        assert cloud.machine_seconds() == pytest.approx(120, abs=0.1)

    play(story)


def test_whoever_listens_hears_each_step() -> None:
    async def story(cloud: Cloud, cluster: SimulatedCluster, _api: Client) -> None:
        heard: list[list[InstanceState]] = []
        cloud.listen(lambda: heard.append([each.state for each in cloud.instances()]))
        (asked,) = cloud.increase("gpu", 1)
        await cluster.clock.sleep(200)
        await cloud.delete(asked.name)
        states = [InstanceState.CREATING, InstanceState.BOOTING, InstanceState.JOINED, InstanceState.DELETING]
        assert heard == [*([each] for each in states), []]

    play(story)


def test_times_are_drawn_anew_for_each_machine_and_the_same_in_each_run() -> None:
    group = NodeGroup(name="gpu", template=LabNodeSpec(name="", cards=()), vm=RandomDelay(mean=90, spread=0.2))

    def once() -> list[float]:
        took: list[float] = []

        async def story(cloud: Cloud, cluster: SimulatedCluster, _api: Client) -> None:
            cloud.increase("gpu", 3)
            await cluster.clock.sleep(600)
            took.extend(each.vm - each.requested for each in cloud.instances() if each.vm is not None)

        play(story, group)
        return took

    first = once()
    assert len(set(first)) == 3
    assert once() == first


def test_outside_of_running_nothing_comes() -> None:
    async def main() -> None:
        cluster = SimulatedCluster([], clock=LoopClock(START), options=ClusterOptions())
        with pytest.raises(ValueError, match="the cloud does not run"):
            Cloud(cluster, [GPU]).increase("gpu", 1)

    run_virtual(main())
