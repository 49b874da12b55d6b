"""The experiments measure what they say, and refuse what would measure something else."""

import asyncio
import random
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from tessera.api.problems import FileRefused
from tessera.clock import LoopClock
from tessera.doctor.manifests import install_manifests
from tessera.gpu_operator.assignment import CLUSTER_POLICIES
from tessera.kube.resources import NODES, PODS
from tessera_lab.cluster.cluster import ClusterOptions, SimulatedCluster
from tessera_lab.cluster.options import parse_nodes
from tessera_lab.experiments.measuring import Autoscale, PolicyReset
from tessera_lab.experiments.results import Samples, contrast, read_results, write_results
from tessera_lab.installation.install import apply_manifests
from tessera_lab.simulation.virtual_time import run_virtual

POLICY = {"apiVersion": "nvidia.com/v1", "kind": "ClusterPolicy", "metadata": {"name": "p"}, "spec": {}}


def in_cluster(story: Callable[[SimulatedCluster], Awaitable[None]]) -> None:
    """A cluster of one node with a card that nobody offers, and the definitions of policies."""

    async def play() -> None:
        options = ClusterOptions(cdi=Path(tempfile.mkdtemp()), mig_config="")
        cluster = SimulatedCluster(parse_nodes("1xT4"), clock=LoopClock(0), options=options)
        async with cluster.running():
            manifests = [each for each in install_manifests() if each["kind"] == "CustomResourceDefinition"]
            await apply_manifests(cluster.client("install"), manifests)
            await story(cluster)

    run_virtual(play())


def reset(cluster: SimulatedCluster, node: str = "node-1", **options: Any) -> PolicyReset:
    return PolicyReset(cluster.client("bench"), cluster.clock, node=node, rng=random.Random(0), **options)


def pod(**limits: str) -> dict[str, Any]:
    containers = [{"name": "c", "image": "i", "command": ["sleep", "infinity"], "resources": {"limits": limits}}]
    return {"metadata": {"name": "user"}, "spec": {"nodeName": "node-1", "containers": containers}}


def test_a_node_that_is_not_there_is_refused() -> None:
    async def story(cluster: SimulatedCluster) -> None:
        with pytest.raises(ValueError, match="node nobody: there is none of that name"):
            await reset(cluster, "nobody").run(POLICY, 1)

    in_cluster(story)


def test_nothing_is_done_under_pods_that_use_cards() -> None:
    async def story(cluster: SimulatedCluster) -> None:
        await cluster.client("user").create(PODS.as_dicts(), pod(**{"nvidia.com/gpu": "1"}), "default")
        await cluster.client("user").create(CLUSTER_POLICIES, POLICY)
        with pytest.raises(ValueError, match="default/user"):
            await reset(cluster).run(POLICY, 1)
        assert await cluster.client("user").get(CLUSTER_POLICIES, "p")

    in_cluster(story)


def test_a_card_that_never_comes_ends_the_experiment_with_what_was_awaited() -> None:
    async def story(cluster: SimulatedCluster) -> None:
        with pytest.raises(TimeoutError, match=r"node node-1 lists nvidia\.com/gpu: not within 60 seconds"):
            await reset(cluster, step_timeout=60).run(POLICY, 1)

    in_cluster(story)


def test_a_policy_is_applied_as_its_author_wrote_it() -> None:
    """Fields that the server or an operator added are left out."""

    async def story(cluster: SimulatedCluster) -> None:
        live = {
            **POLICY,
            "metadata": {"name": "p", "uid": "u", "resourceVersion": "7", "annotations": {"a": "b"}},
            "status": {"state": "ready"},
        }
        with pytest.raises(TimeoutError):
            await reset(cluster, step_timeout=5).run(live, 1)
        made = await cluster.client("user").get(CLUSTER_POLICIES, "p")
        assert made["metadata"]["annotations"] == {"a": "b"}
        assert "status" not in made

    in_cluster(story)


def test_another_policy_would_go_on_counting_so_nothing_begins() -> None:
    async def story(cluster: SimulatedCluster) -> None:
        other = {**POLICY, "metadata": {"name": "older"}}
        await cluster.client("user").create(CLUSTER_POLICIES, other)
        with pytest.raises(ValueError, match="ClusterPolicy older is there: of several the oldest counts"):
            await reset(cluster).run(POLICY, 1)
        assert [each["metadata"]["name"] for each in (await cluster.client("user").list(CLUSTER_POLICIES)).items] == [
            "older"
        ]

    in_cluster(story)


def test_the_policy_that_was_there_is_put_back_however_it_ends() -> None:
    async def story(cluster: SimulatedCluster) -> None:
        before = {**POLICY, "spec": {"driver": {"version": "535.104.05"}}}
        await cluster.client("user").create(CLUSTER_POLICIES, before)
        with pytest.raises(TimeoutError):
            await reset(cluster, step_timeout=5).run(POLICY, 1)
        after = await cluster.client("user").get(CLUSTER_POLICIES, "p")
        assert after["spec"] == before["spec"]

    in_cluster(story)


def test_what_a_live_cluster_shows_is_nobodys_order_of_steps_by_name() -> None:
    live = Samples(experiment="policy-reset", scenario="built", samples=(300.0, 310.0))
    assert contrast(live, live).slower == "built (as installed)"


def test_a_workload_that_finds_a_free_place_measures_nothing() -> None:
    async def story(cluster: SimulatedCluster) -> None:
        experiment = Autoscale(cluster.client("bench"), cluster.clock, namespace="default", rng=random.Random(0))
        spec = {"containers": [{"name": "c", "image": "i", "command": ["sleep", "infinity"]}]}
        with pytest.raises(ValueError, match="node node-1, which was there before"):
            await experiment.run(spec, 1)
        assert not (await cluster.client("user").list(PODS, "default")).items

    in_cluster(story)


def test_a_pod_that_is_seen_to_run_before_its_node_is_seen_to_be_ready_took_no_time() -> None:
    async def story(cluster: SimulatedCluster) -> None:
        user = cluster.client("autoscaler")
        experiment = Autoscale(user, cluster.clock, namespace="default", rng=random.Random(0))
        name = "tessera-bench"

        async def provide() -> None:
            await user.create(NODES.as_dicts(), {"metadata": {"name": "late"}})
            await cluster.clock.sleep(5)
            await user.bind(name, "default", "late")
            running = {"status": {"containerStatuses": [{"name": "c", "state": {"running": {}}}]}}
            await user.merge_patch(PODS.as_dicts(), name, running, "default", subresource="status")
            await cluster.clock.sleep(5)
            ready = {"status": {"conditions": [{"type": "Ready", "status": "True"}]}}
            await user.merge_patch(NODES.as_dicts(), "late", ready, subresource="status")
            await cluster.clock.sleep(5)
            await user.delete(NODES, "late")

        async with asyncio.TaskGroup() as group:
            measured = group.create_task(experiment.run(pod(**{"nvidia.com/gpu": "1"})["spec"] | {"nodeName": ""}, 1))
            await cluster.clock.sleep(1)
            group.create_task(provide())
        assert measured.result() == [0.0]

    in_cluster(story)


def test_results_survive_their_file() -> None:
    results = (Samples(experiment="autoscale", scenario="built", samples=(1.0, 2.0), simulated=True),)
    assert read_results(write_results(results).decode()) == results


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        '{"results": [{"experiment": 1}]}',
        '{"results": [{"experiment": "autoscale", "scenario": "a", "samples": [1e308]}]}',
        '{"results": [{"experiment": "autoscale", "scenario": "a", "samples": [-1]}]}',
        '{"a":' * 50_000,
    ],
)
def test_other_files_are_no_results(text: str) -> None:
    with pytest.raises(FileRefused, match="no file of results"):
        read_results(text)


def test_scenarios_are_contrasted_by_name_and_order_of_steps() -> None:
    one = Samples(experiment="autoscale", scenario="built", operator="reference", samples=(3.0, 4.0))
    two = Samples(experiment="autoscale", scenario="built", operator="tessera", samples=(1.0, 2.0))
    told = contrast(one, two)
    assert (told.slower, told.faster, told.comparison.difference) == ("built (reference)", "built (tessera)", 2.0)


def test_a_policy_that_finalizers_keep_is_waited_for() -> None:
    async def story(cluster: SimulatedCluster) -> None:
        user = cluster.client("user")
        kept = {**POLICY, "metadata": {"name": "p", "finalizers": ["example.com/kept"]}}
        await user.create(CLUSTER_POLICIES, kept)
        with pytest.raises(TimeoutError, match="ClusterPolicy p is gone: not within 30 seconds"):
            await reset(cluster, step_timeout=30).run(POLICY, 1)

    in_cluster(story)
