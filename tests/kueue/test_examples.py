"""The files of examples/kueue run in a cluster with Kueue, and the commands write what suits the cluster's cards."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import yaml
from tests.support.kueue.cluster import KueueCluster
from tests.support.virtual_lab import InLab, VirtualLab

from tessera.api.instaslice import INSTASLICES
from tessera.api.names import INSTASLICE_NAMESPACE
from tessera.kube.resources import NODES
from tessera.kube.resources.meta import resource_for
from tessera.kueue.configuration import ALL_CARDS, pools_of, profiles_in_cluster
from tessera.nvml.interface import GpuEventKind
from tessera.nvml.simulated.machine_state import SimEvent

EXAMPLES = Path(__file__).parents[2] / "examples"


def documents(path: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((EXAMPLES / path).read_text(encoding="utf-8")))


async def apply(cluster: KueueCluster, path: str) -> None:
    """Applies a file."""
    for each in documents(path):
        meta = each["metadata"]
        await cluster.client.apply(resource_for(each), meta["name"], each, meta.get("namespace"))


def test_the_teams_pod_and_job_run_in_its_queue(with_kueue: Callable[..., None]) -> None:
    async def story(cluster: KueueCluster) -> None:
        for path in ("quota/team.yaml", "kueue/queues.yaml", "kueue/pod.yaml"):
            await apply(cluster, path)

        async def pod_runs() -> bool:
            return await cluster.running() == ["queued"]

        await cluster.until(pod_runs, "the pod runs")
        assert await cluster.reserved() == 20
        await apply(cluster, "kueue/job.yaml")

        async def all_charged() -> bool:
            return await cluster.reserved() == 60

        await cluster.until(all_charged, "the Job's pods are charged")

    (configuration,) = documents("kueue/configuration.yaml")
    with_kueue(story, version="v1beta2", resources=configuration["resources"])


def test_the_commands_know_the_clusters_cards(in_lab: InLab) -> None:
    async def scenario(lab: VirtualLab) -> None:
        instaslices = (await lab.client.list(INSTASLICES, INSTASLICE_NAMESPACE)).items
        nodes = (await lab.client.list(NODES)).items
        assert profiles_in_cluster(instaslices, nodes) == [
            "1g.5gb",
            "1g.5gb.me",
            "1g.6gb",
            "1g.6gb.me",
            "1g.10gb",
            "2g.10gb",
            "2g.12gb",
            "2g.12gb.me",
            "3g.20gb",
            "4g.20gb",
            "4g.24gb",
            "7g.40gb",
        ]
        (pool,) = pools_of(nodes, by_model=False)
        assert (pool.flavor, pool.gigabytes) == (ALL_CARDS, 2 * 40 + 24)
        by_model = pools_of(nodes, by_model=True)
        assert [each.gigabytes for each in by_model] == [80, 24]
        for each in by_model:
            assert any(each.node_labels.items() <= node.metadata.labels.items() for node in nodes)

    in_lab(scenario, nodes="2xA100-40GB,1xA30")


def test_the_levels_of_the_topology_are_labels_that_nodes_of_one_fabric_have(in_lab: InLab) -> None:
    topology, flavor, *_, job = documents("kueue/topology.yaml")
    levels = [each["nodeLabel"] for each in topology["spec"]["levels"]]
    assert flavor["spec"]["topologyName"] == topology["metadata"]["name"]
    assert set(job["spec"]["template"]["metadata"]["annotations"].values()) == {levels[0]}

    async def scenario(lab: VirtualLab) -> None:
        for name in ("node-1", "node-2"):
            machine = lab.machine(name)
            for gpu in machine.uuids():
                machine.set_attributes(gpu, msgspec.structs.replace(machine.attributes(gpu), fabric=("7f4a", "3")))
                machine.report(SimEvent(GpuEventKind.XID, gpu, 63))  # the card is read again

        async with asyncio.timeout(3600):
            while True:
                labels = [node.metadata.labels for node in (await lab.client.list(NODES)).items]
                if [each.get(levels[0]) for each in labels] == ["7f4a.3"] * 2:
                    break
                await lab.clock.sleep(30.0)
        assert levels[1:] == ["kubernetes.io/hostname"]
        assert all(flavor["spec"]["nodeLabels"].items() <= each.items() for each in labels)

    in_lab(scenario, nodes="4xGB200,4xGB200", mig_config="", own=True)
