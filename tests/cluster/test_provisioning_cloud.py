"""Nodes that an autoscaler makes: whole records, one scale-up for a pod, and few replacements; simulated time."""

import asyncio
from collections.abc import Callable

import pytest
import yaml
from tests.cluster.new_nodes import COSTS, GPU, K1, K2, K3, REPOSITORY, TAINT, Nodes, machine

from tessera.api.nodes.node_marks import BUILD_TIMEOUT, PROVISIONED, DriverStrategy
from tessera.doctor.manifests import deploy_folder
from tessera.driver.images import Outcome
from tessera.gpu_operator.assignment import CLUSTER_POLICIES
from tessera.kube.resources import DEPLOYMENTS, EVENTS, JOBS
from tessera.provisioning.milestones import Milestone, node_phases
from tessera.provisioning.startup_deadline import DEADLINE, EXTENDED, STARTUP_TAINT
from tessera_lab.cloud.autoscaler.process import GPU_LABEL, ClusterAutoscaler
from tessera_lab.cloud.autoscaler.rules import ActionKind, AutoscalerTimers
from tessera_lab.cloud.cloud import Cloud
from tessera_lab.cloud.node_groups import NodeGroup, RandomDelay
from tessera_lab.drivers.driver_catalogue import INTERNAL_REGISTRY
from tessera_lab.drivers.driver_containers import broken_driver
from tessera_lab.installation.install import apply_manifests
from tessera_lab.kubelet.images.catalogue import SimulatedImage
from tessera_lab.simulation.cost_model import CostModel

M = Milestone
Play = Callable[..., None]


def group(kernel: str = K1) -> NodeGroup:
    return NodeGroup(
        name="gpus",
        template=machine("", kernel),
        labels={GPU_LABEL: "nvidia-t4"},
        taints=TAINT,
        vm=RandomDelay(mean=90),
        join=RandomDelay(mean=60),
    )


def autoscaler(lab: Nodes, cloud: Cloud) -> ClusterAutoscaler:
    return ClusterAutoscaler(
        lab.cluster.client("cluster-autoscaler"), lab.cluster.hardware_clock, cloud, AutoscalerTimers(unneeded=86400)
    )


async def replacing(lab: Nodes, most: int) -> None:
    """The controller's option, and the rights that it takes."""
    await apply_manifests(lab.client, yaml.safe_load_all((deploy_folder() / "options/replace.yaml").read_text()))
    found = await lab.client.get(DEPLOYMENTS.as_dicts(), "tessera-controller", "tessera-system")
    (container,) = found["spec"]["template"]["spec"]["containers"]
    container["args"] = [*container["args"], f"--replace-failed={most}"]
    spec = {"template": {"spec": {"containers": [container]}}}
    await lab.client.merge_patch(DEPLOYMENTS.as_dicts(), "tessera-controller", {"spec": spec}, "tessera-system")
    await lab.clock.sleep(60)


#: Of a policy by which drivers are built once for a kernel.
BUILD = {"tessera.dev/driver-build-repository": f"{INTERNAL_REGISTRY}/drivers"}


async def reasons(lab: Nodes) -> list[str]:
    return [each.reason for each in (await lab.client.list(EVENTS, "default")).items]


def test_a_node_that_an_autoscaler_made_for_a_pod_has_a_whole_record(with_new_nodes: Play) -> None:
    async def scenario(lab: Nodes) -> None:
        await lab.policy()
        cloud = Cloud(lab.cluster, [group()])
        async with cloud.running():
            await lab.clock.sleep(70)  # the controller looks for machines once a minute
            await lab.create("job", GPU)
            (asked,) = cloud.increase("gpus", 1)
            await lab.running("job")
            await lab.until(lambda: lab.done(asked.name, M.WORKLOAD), "the way is over", seconds=60)
            found = lab.record(asked.name)
            assert found is not None
            assert found.at.keys() == set(M)
            assert found.group == "gpus"
            phases = node_phases(found)
            assert phases.seconds[M.VM] == pytest.approx(90, abs=1)
            assert phases.seconds[M.REGISTERED] == pytest.approx(60, abs=1)
            assert phases.total == pytest.approx(sum(each or 0 for each in phases.seconds.values()), abs=1)
            assert phases.unattributed == pytest.approx(0, abs=1)

    with_new_nodes(scenario)


def test_a_tainted_node_that_takes_long_is_made_once_for_a_pod(with_new_nodes: Play) -> None:
    async def scenario(lab: Nodes) -> None:
        await lab.policy()
        cloud = Cloud(lab.cluster, [group(K2)])  # its driver is built
        async with cloud.running():
            scaler = autoscaler(lab, cloud)
            task = asyncio.create_task(scaler.run())
            await lab.create("job", GPU)
            await lab.until(lambda: lab.phase("job") == "Running", "the pod runs", seconds=1200)
            await lab.clock.sleep(120)
            task.cancel()
        made = [deed for _, deed in scaler.actions if deed.kind is ActionKind.INCREASE]
        assert [deed.count for deed in made] == [1]
        assert not [deed for _, deed in scaler.actions if deed.kind is ActionKind.TIMED_OUT]

    with_new_nodes(scenario)


def test_nodes_whose_driver_never_comes_are_replaced_twice_and_then_it_stops(with_new_nodes: Play) -> None:
    async def scenario(lab: Nodes) -> None:
        bad = SimulatedImage(size_mib=COSTS.precompiled_mib, program=broken_driver("modprobe nvidia: invalid argument"))
        lab.registries.push(f"{REPOSITORY}:1.2.3-{K3}-ubuntu22.04", bad)
        await lab.policy(version="1.2.3")
        cloud = Cloud(lab.cluster, [group(K3)])
        async with cloud.running():
            await lab.clock.sleep(70)
            await replacing(lab, most=2)
            (first,) = cloud.increase("gpus", 1)
            await lab.clock.sleep(3300)  # three lives of 150 s to come up and 900 s to wait
            (now,) = cloud.instances("gpus")
            assert now.name != first.name
            told = await reasons(lab)
            assert told.count("GpuNodeReplaced") == 2
            assert told.count("GpuNodeReplacementDelayed") == 1
            lost = [each for each in (await lab.kept()).values() if each.lost is not None]
            assert len(lost) == 2
            assert all(each.replaced is not None for each in lost)
            await lab.clock.sleep(200)
            assert [each.name for each in cloud.instances("gpus")] == [now.name]
            assert lab.taints(now.name) == [STARTUP_TAINT]

    with_new_nodes(scenario)


# What another node would wait for, too


def told(lab: Nodes, node: str) -> str:
    """The reason of the condition."""
    return lab.condition(PROVISIONED, node)[1]


async def waits(lab: Nodes, cloud: Cloud) -> str:
    """A node that has come and is at its ordinary deadline; its name."""
    await lab.clock.sleep(70)
    await replacing(lab, most=2)
    (asked,) = cloud.increase("gpus", 1)
    await lab.until(lambda: asked.name in lab.nodes.cache, "the node is registered")
    await lab.clock.sleep(DEADLINE + 10)
    return asked.name


@pytest.mark.parametrize("dies", [pytest.param(False, marks=pytest.mark.soak), True])
def test_a_node_that_waits_for_the_one_build_is_told_so_kept_and_comes_up(with_new_nodes: Play, *, dies: bool) -> None:
    async def scenario(lab: Nodes) -> None:
        await lab.policy(**BUILD)
        cloud = Cloud(lab.cluster, [group(K2)])
        async with cloud.running():
            name = await waits(lab, cloud)
            (job,) = (await lab.client.list(JOBS, "tessera-system")).items
            _status, reason, message = lab.condition(PROVISIONED, name)
            assert reason == EXTENDED
            assert f"Job tessera-system/{job.metadata.name}" in message
            answer = await lab.why(name)
            assert answer.case == "starting-up"
            assert answer.facts[0] == message
            seconds = COSTS.build_seconds
            while dies and seconds > 0:
                await lab.kill()
                await lab.clock.sleep(47)
                seconds -= 47
            await lab.until(lambda: lab.taints(name) == [], "the node has come up", seconds=1800)
            await lab.clock.sleep(60)
            found = lab.record(name)
            assert found is not None
            assert (found.strategy, found.waits) == (DriverStrategy.MIRROR.value, None)
            assert found.waited == pytest.approx(COSTS.build_seconds, abs=60)
            assert told(lab, name) == "Provisioned"
            assert [each.name for each in cloud.instances("gpus")] == [name]
            assert not {"GpuNodeReplaced", "GpuNodeReplacementDelayed", "DriverNotPulled"} & set(await reasons(lab))

    with_new_nodes(scenario)


@pytest.mark.soak
def test_after_the_longest_build_nodes_build_for_themselves_in_the_time_that_is_left(with_new_nodes: Play) -> None:
    async def scenario(lab: Nodes) -> None:
        await lab.policy(**BUILD)
        cloud = Cloud(lab.cluster, [group(K2)])
        async with cloud.running():
            name = await waits(lab, cloud)
            await lab.until(lambda: lab.taints(name) == [], "the node has come up", seconds=BUILD_TIMEOUT)
            found = lab.record(name)
            assert found is not None
            assert found.strategy == DriverStrategy.BUILT.value
            assert BUILD_TIMEOUT <= found.waited < BUILD_TIMEOUT + DEADLINE
            assert [each.name for each in cloud.instances("gpus")] == [name]
            assert "GpuNodeReplaced" not in await reasons(lab)

    with_new_nodes(scenario, costs=CostModel(build_seconds=2 * BUILD_TIMEOUT))


@pytest.mark.soak
def test_while_no_registry_answers_nodes_are_told_of_in_the_end_and_never_replaced(with_new_nodes: Play) -> None:
    async def scenario(lab: Nodes) -> None:
        await lab.policy()
        lab.registries.refuse(f"{REPOSITORY}:*", Outcome.UNREACHABLE)
        cloud = Cloud(lab.cluster, [group()])
        async with cloud.running():
            name = await waits(lab, cloud)
            assert told(lab, name) == EXTENDED
            await lab.clock.sleep(BUILD_TIMEOUT - 30)
            assert told(lab, name) == EXTENDED
            await lab.clock.sleep(60)
            assert told(lab, name) == "DriverNotPulled"
            assert (await lab.why(name)).case == "overdue"
            await lab.clock.sleep(600)
            assert [each.name for each in cloud.instances("gpus")] == [name]
            assert (await reasons(lab)).count("GpuNodeReplacementDelayed") == 1
            lab.registries.allow(f"{REPOSITORY}:*")
            await lab.until(lambda: lab.taints(name) == [], "the node has come up")

    with_new_nodes(scenario)


@pytest.mark.soak
@pytest.mark.parametrize("version", ["1.2.3", "525 125"])
def test_nodes_are_not_replaced_for_a_mistake_in_the_policy(with_new_nodes: Play, version: str) -> None:
    """A version that no registry has, and one that is none: nothing was ever followed."""

    async def scenario(lab: Nodes) -> None:
        await lab.policy(version)
        cloud = Cloud(lab.cluster, [group()])
        async with cloud.running():
            name = await waits(lab, cloud)
            assert told(lab, name) in {"DriverNotPulled", "FactsMissing"}  # people have to act, so at once
            await lab.clock.sleep(3600)
            assert [each.name for each in cloud.instances("gpus")] == [name]
            (held,) = [
                each.message
                for each in (await lab.client.list(EVENTS, "default")).items
                if each.reason == "GpuNodeReplacementDelayed"
            ]
            assert "another node in its place would" in held
            await lab.client.delete(CLUSTER_POLICIES, "cluster-policy")
            await lab.policy()
            await lab.until(lambda: lab.taints(name) == [], "the node has come up")

    with_new_nodes(scenario)
