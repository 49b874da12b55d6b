"""A pod with slices runs beside the pods and on the nodes that it prefers, where that costs the cards nothing."""

from typing import Any

import pytest
from tests.cluster.test_inheritance import served
from tests.cluster.test_why import why
from tests.support.virtual_lab import InLab, VirtualLab, manifest

from tessera.controller.cluster.volumes import BIND_COMPLETED, LOCAL_MODEL_NODES
from tessera.kube.resources import CRDS, PERSISTENT_VOLUME_CLAIMS, PERSISTENT_VOLUMES, PODS

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


def test_a_pod_of_kserve_runs_on_a_node_of_its_group_that_has_the_model(in_lab: InLab) -> None:
    async def scenario(lab: VirtualLab) -> None:
        await lab.client.create(CRDS, served(LOCAL_MODEL_NODES))
        for number, state in enumerate(["ModelDownloading", "ModelDownloaded"], 1):
            node = {"metadata": {"name": f"node-{number}"}, "status": {"modelStatus": {"llama": state}}}
            await lab.client.create(LOCAL_MODEL_NODES, node)
        group = {"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "Exists"}]}
        volume = {
            "accessModes": ["ReadOnlyMany"],
            "capacity": {"storage": "1Ti"},
            "local": {"path": "/models"},
            "nodeAffinity": {"required": {"nodeSelectorTerms": [group]}},
            "claimRef": {"namespace": "default", "name": "llama-workers"},
            "storageClassName": "local",
        }
        await lab.client.create(PERSISTENT_VOLUMES.as_dicts(), {"metadata": {"name": "llama"}, "spec": volume})
        claim = {
            "metadata": {"name": "llama-workers", "annotations": {BIND_COMPLETED: "yes"}},
            "spec": {
                "accessModes": ["ReadOnlyMany"],
                "resources": {"requests": {"storage": "1Ti"}},
                "storageClassName": "local",
                "volumeName": "llama",
            },
        }
        await lab.client.create(PERSISTENT_VOLUME_CLAIMS.as_dicts(), claim, "default")
        await lab.clock.sleep(600)  # a cluster gets the kind once, so it is looked for seldom
        body = manifest("pod", {"nvidia.com/mig-3g.20gb": 1})
        body["metadata"]["labels"] = {"internal.serving.kserve.io/localmodel": "llama"}
        body["spec"]["volumes"] = [{"name": "model", "persistentVolumeClaim": {"claimName": "llama-workers"}}]
        await lab.client.create(PODS.as_dicts(), body, "default")
        await lab.running("pod")
        assert lab.node_of("pod") == "node-2"
        (told,) = (await why(lab, "pod")).answers
        assert "it prefers nodes with the cached model llama (KServe) (weight 100): met" in told.facts
        await lab.client.delete(LOCAL_MODEL_NODES, "node-2")
        (told,) = (await why(lab, "pod")).answers
        assert not [each for each in told.facts if "KServe" in each]

    in_lab(scenario, "1xA100-40GB,1xA100-40GB")
