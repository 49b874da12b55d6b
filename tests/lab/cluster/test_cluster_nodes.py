"""Nodes that come and go while a cluster runs, without a network at first, with a kernel of their own."""

import asyncio
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from tessera.clock import LoopClock, SystemClock
from tessera.kube.client import Client
from tessera.kube.errors import NotFound
from tessera.kube.resources import DAEMONSETS, NODES, PODS
from tessera.nvml.simulated.machine_state import DRIVER_VERSION
from tessera_lab.apiserver.kinds.versions import CLUSTERS, RELEASES
from tessera_lab.cluster.cluster import ClusterOptions, SimulatedCluster
from tessera_lab.cluster.options import LabNodeSpec, parse_nodes
from tessera_lab.simulation.virtual_time import run_virtual

RHCOS = "Red Hat Enterprise Linux CoreOS 413.92.202402131523-0 (Plow)"
KERNEL = "5.14.0-284.54.1.el9_2.x86_64"
T4 = LabNodeSpec(name="late", cards=("T4",), kernel=KERNEL, os_image=RHCOS)

Story = Callable[[SimulatedCluster, Client], Awaitable[None]]


def play(story: Story, nodes: str = "0", **options: Any) -> None:
    """Runs a story in a running cluster."""

    async def main() -> None:
        cluster = SimulatedCluster(
            parse_nodes(nodes), clock=LoopClock(1_800_000_000), options=ClusterOptions(**options)
        )
        async with cluster.running():
            await cluster.clock.sleep(0.1)
            await story(cluster, cluster.client("test"))

    run_virtual(main())


async def node(api: Client, name: str) -> dict[str, Any]:
    return await api.get(NODES.as_dicts(), name)


def ready(found: dict[str, Any]) -> tuple[str, list[str]]:
    """Status of the Ready condition, and keys of the taints."""
    status = next(each["status"] for each in found["status"]["conditions"] if each["type"] == "Ready")
    return status, [each["key"] for each in found["spec"].get("taints") or ()]


def daemonset(name: str, **spec: Any) -> dict[str, Any]:
    labels = {"app": name}
    container = {"name": "c", "image": "app", "command": ["sleep", "infinity"]}
    template = {"metadata": {"labels": labels}, "spec": {"containers": [container], **spec}}
    return {"metadata": {"name": name}, "spec": {"selector": {"matchLabels": labels}, "template": template}}


async def phases(api: Client) -> dict[str, str]:
    pods = (await api.list(PODS.as_dicts(), "default")).items
    return {each["metadata"]["labels"]["app"]: each["status"]["phase"] for each in pods}


@pytest.mark.parametrize("version", CLUSTERS)
def test_kubelets_have_the_version_of_the_cluster_and_run_pods(version: str) -> None:
    async def story(cluster: SimulatedCluster, api: Client) -> None:
        found = (await node(api, "node-1"))["status"]["nodeInfo"]
        assert found["kubeletVersion"] == f"v{RELEASES[version]}"
        await api.create(DAEMONSETS.as_dicts(), daemonset("a"), "default")
        await cluster.clock.sleep(5)
        assert await phases(api) == {"a": "Running"}

    play(story, kubernetes=version)


def test_a_node_is_added_as_it_was_asked_for() -> None:
    async def story(cluster: SimulatedCluster, api: Client) -> None:
        cluster.add_node(
            T4,
            labels={"cluster-api/accelerator": "nvidia-t4"},
            taints=[{"key": "nvidia.com/gpu", "effect": "NoSchedule"}],
            provider_id="aws:///late",
            annotations={"cluster.x-k8s.io/machine": "m"},
        )
        await cluster.clock.sleep(0.1)
        found = await node(api, "late")
        assert found["metadata"]["labels"]["cluster-api/accelerator"] == "nvidia-t4"
        assert found["metadata"]["annotations"]["cluster.x-k8s.io/machine"] == "m"
        assert found["spec"]["providerID"] == "aws:///late"
        assert ready(found) == ("True", ["nvidia.com/gpu"])
        info = found["status"]["nodeInfo"]
        assert (info["kernelVersion"], info["osImage"], info["architecture"]) == (KERNEL, RHCOS, "amd64")

    play(story)


def test_a_node_is_removed_with_its_object_and_then_its_pods(tmp_path: Path) -> None:
    async def story(cluster: SimulatedCluster, api: Client) -> None:
        made = cluster.add_node(T4)
        await api.create(
            DAEMONSETS.as_dicts(), daemonset("d", nodeSelector={"kubernetes.io/hostname": "late"}), "default"
        )
        await cluster.clock.sleep(1)
        assert await phases(api) == {"d": "Running"}
        assert made.markers is not None
        (made.markers / "driver-ready").touch()
        await cluster.remove_node("late")
        with pytest.raises(NotFound):
            await node(api, "late")
        assert "late" not in cluster.nodes
        assert not any(each.startswith("late") for each in os.listdir(tmp_path))  # noqa: PTH208
        await cluster.clock.sleep(60)
        assert await phases(api) == {}

    play(story, cdi=tmp_path)


def test_a_name_comes_back_as_another_node() -> None:
    async def story(cluster: SimulatedCluster, api: Client) -> None:
        uids = []
        for _ in range(2):
            cluster.add_node(T4)
            await cluster.clock.sleep(0.1)
            uids.append((await node(api, "late"))["metadata"]["uid"])
            await cluster.remove_node("late")
        assert uids[0] != uids[1]

    play(story)


def test_what_cannot_be_added_or_removed_is_refused() -> None:
    async def story(cluster: SimulatedCluster, _api: Client) -> None:
        with pytest.raises(ValueError, match="node node-1: there is one of that name"):
            cluster.add_node(LabNodeSpec(name="node-1", cards=()))
        with pytest.raises(ValueError, match="no node 'x'; there are node-1"):
            await cluster.remove_node("x")

    play(story)
    with pytest.raises(ValueError, match="the cluster does not run"):
        SimulatedCluster([], clock=SystemClock()).add_node(T4)


def test_without_a_network_a_node_is_not_ready_and_runs_host_network_only() -> None:
    async def story(cluster: SimulatedCluster, api: Client) -> None:
        everywhere = [{"operator": "Exists"}]
        await api.create(DAEMONSETS.as_dicts(), daemonset("host", hostNetwork=True, tolerations=everywhere), "default")
        await api.create(DAEMONSETS.as_dicts(), daemonset("plain", tolerations=everywhere), "default")
        await api.create(DAEMONSETS.as_dicts(), daemonset("picky"), "default")
        await cluster.clock.sleep(20)
        assert ready(await node(api, "node-1")) == ("False", ["node.kubernetes.io/not-ready"])
        assert await phases(api) == {"host": "Running", "plain": "Pending"}
        await cluster.clock.sleep(6)
        assert ready(await node(api, "node-1")) == ("True", [])
        assert set((await phases(api)).values()) == {"Running"}
        assert len(await phases(api)) == 3

    play(story, network_seconds=25)


def test_the_condition_says_when_the_node_became_ready_and_others_stay() -> None:
    async def story(cluster: SimulatedCluster, api: Client) -> None:
        mine = {"type": "GpuDriverReady", "status": "False", "lastTransitionTime": "2027-01-15T08:00:00Z"}
        made = await node(api, "node-1")
        patch = {"status": {"conditions": [*made["status"]["conditions"], mine]}}
        await api.merge_patch(NODES.as_dicts(), "node-1", patch, subresource="status")
        await cluster.clock.sleep(30)
        conditions = {each["type"]: each for each in (await node(api, "node-1"))["status"]["conditions"]}
        assert conditions["GpuDriverReady"]["status"] == "False"
        assert conditions["Ready"]["lastTransitionTime"] == "2027-01-15T08:00:25Z"
        assert conditions["MemoryPressure"]["lastTransitionTime"] == "2027-01-15T08:00:00Z"

    play(story, network_seconds=25)


def test_a_node_boots_into_another_kernel(tmp_path: Path) -> None:
    async def story(cluster: SimulatedCluster, api: Client) -> None:
        made = cluster.nodes["node-1"]
        assert made.markers is not None
        (made.markers / "driver-ready").touch()
        made.reboot(kernel="6.8.0-47-generic")
        await cluster.clock.sleep(40)
        assert (await node(api, "node-1"))["status"]["nodeInfo"]["kernelVersion"] == "6.8.0-47-generic"
        assert ready(await node(api, "node-1"))[0] == "False"
        assert not list(made.markers.iterdir())
        await cluster.clock.sleep(20)
        assert ready(await node(api, "node-1")) == ("True", [])
        made.reboot()
        await cluster.clock.sleep(60)
        assert made.kernel == "6.8.0-47-generic"

    play(story, cdi=tmp_path, network_seconds=15)


def test_features_are_discovered_after_ready_and_after_each_boot() -> None:
    prefix = "feature.node.kubernetes.io/"

    async def story(cluster: SimulatedCluster, api: Client) -> None:
        cluster.add_node(T4)
        await cluster.clock.sleep(44)
        assert not any(each.startswith(prefix) for each in (await node(api, "late"))["metadata"]["labels"])
        await cluster.clock.sleep(2)
        metadata = (await node(api, "late"))["metadata"]
        labels = metadata["labels"]
        written = metadata["annotations"]["nfd.node.kubernetes.io/feature-labels"].split(",")
        assert {prefix + name for name in written} == {name for name in labels if name.startswith(prefix)}
        assert labels[prefix + "kernel-version.full"] == KERNEL
        assert labels[prefix + "system-os_release.ID"] == "rhcos"
        assert labels[prefix + "system-os_release.VERSION_ID"] == "4.13"
        assert labels[prefix + "system-os_release.OSTREE_VERSION"] == "413.92.202402131523-0"
        assert labels[prefix + "pci-10de.present"] == "true"
        assert "nvidia.com/gpu.present" not in labels
        assert prefix + "pci-10de.present" not in (await node(api, "node-1"))["metadata"]["labels"]
        cluster.nodes["late"].reboot(kernel="5.14.0-1.el9_2.aarch64+64k")
        await cluster.clock.sleep(2 + 30 + 15 + 30 + 1)
        labels = (await node(api, "late"))["metadata"]["labels"]
        assert labels[prefix + "kernel-version.full"] == "5.14.0-1.el9_2.aarch64_64k"

    play(story, network_seconds=15, nfd_seconds=30)


@pytest.mark.parametrize(("drivers", "loaded"), [(False, DRIVER_VERSION), (True, None)])
def test_machines_have_a_driver_unless_containers_bring_it(drivers: bool, loaded: str | None) -> None:
    async def story(cluster: SimulatedCluster, _api: Client) -> None:
        await asyncio.sleep(0)
        machine = cluster.nodes["node-1"].machine
        assert machine is not None
        assert machine.loaded_driver == loaded

    play(story, "1xT4", drivers=drivers)


def test_only_nodes_with_mig_cards_ask_for_a_layout() -> None:
    async def story(_cluster: SimulatedCluster, api: Client) -> None:
        found = {each.metadata.name: each.metadata.labels for each in (await api.list(NODES)).items}
        layouts = [found[f"node-{n}"].get("nvidia.com/mig.config") for n in (1, 2, 3)]
        assert layouts == ["dynamic", None, None]
        assert found["node-2"]["nvidia.com/gpu.present"] == "true"

    play(story, "1xA100-40GB,2xT4,0")
