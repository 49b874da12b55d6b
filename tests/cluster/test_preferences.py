"""A pod with slices runs beside the pods and on the nodes that it prefers, where that costs the cards nothing."""

from typing import Any

import pytest
from tests.support.virtual_lab import InLab, VirtualLab

from tessera.kube.resources import PODS

DATA = {"labelSelector": {"matchLabels": {"app": "data"}}, "topologyKey": "kubernetes.io/hostname"}
HOSTNAME = {"key": "kubernetes.io/hostname", "operator": "In", "values": ["node-2"]}


@pytest.mark.parametrize(
    "affinity",
    [
        {"podAffinity": [{"weight": 1, "podAffinityTerm": DATA}]},
        {"nodeAffinity": [{"weight": 1, "preference": {"matchExpressions": [HOSTNAME]}}]},
    ],
    ids=["beside a pod", "on a node"],
)
def test_a_pod_with_a_slice_runs_where_it_prefers(in_lab: InLab, affinity: dict[str, Any]) -> None:
    async def scenario(lab: VirtualLab) -> None:
        await lab.create("data", {}, nodeName="node-2")
        await lab.client.merge_patch(PODS, "data", {"metadata": {"labels": {"app": "data"}}}, "default")
        await lab.running("data")
        preference = {
            kind: {"preferredDuringSchedulingIgnoredDuringExecution": terms} for kind, terms in affinity.items()
        }
        for number in range(2):
            await lab.create(f"pod-{number}", {"nvidia.com/mig-3g.20gb": 1}, affinity=preference)
        await lab.running("pod-0", "pod-1")
        assert [lab.node_of(f"pod-{number}") for number in range(2)] == ["node-2", "node-2"]

    in_lab(scenario, "1xA100-40GB,1xA100-40GB")


def test_the_replicas_of_a_replica_set_run_on_nodes_of_their_own(in_lab: InLab) -> None:
    async def scenario(lab: VirtualLab) -> None:
        for number in range(4):
            await lab.create(f"other-{number}", {"nvidia.com/mig-4g.20gb": 1})
        await lab.running(*(f"other-{number}" for number in range(4)))
        await lab.create_owned("web", {"nvidia.com/mig-3g.20gb": 1}, replicas=2)

        def nodes() -> list[str]:
            found = (each for each in lab.pods.cache.values() if each.metadata.labels.get("app") == "web")
            return sorted(each.spec.node_name for each in found)

        await lab.until(lambda: nodes() == ["node-1", "node-2"], "each replica is on a node of its own")

    in_lab(scenario, "2xA100-40GB,2xA100-40GB")
