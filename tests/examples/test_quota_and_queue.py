"""A team has its quota, and Kueue charges each profile what Tessera's quota does."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.support.api_clients import in_process_client
from tests.support.virtual_lab import InLab, VirtualLab

from tessera.api.names import resource_of
from tessera.kube.client import Client
from tessera.kube.errors import Forbidden
from tessera.kube.resources import NAMESPACES, PODS, RESOURCE_QUOTAS, SECRETS, Resource
from tessera.mig.models import MODELS
from tessera.mig.names import parse_profile_name

EXAMPLES = Path(__file__).parents[2] / "examples"
BINDINGS: Resource[dict[str, Any]] = Resource(
    "rbac.authorization.k8s.io", "v1", "rolebindings", "RoleBinding", True, dict
)
KINDS: dict[str, Resource[Any]] = {
    "Namespace": NAMESPACES,
    "ResourceQuota": RESOURCE_QUOTAS,
    "RoleBinding": BINDINGS,
    "Pod": PODS,
}
KUEUE_GATE = "kueue.x-k8s.io/admission"


def documents(path: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((EXAMPLES / path).read_text(encoding="utf-8")))


async def make_team(lab: VirtualLab) -> Client:
    """Applies the example; returns the client of a member."""
    for each in documents("quota/team.yaml"):
        namespace = each["metadata"].get("namespace")
        await lab.client.create(KINDS[each["kind"]].as_dicts(), each, namespace)
    return in_process_client(lab.cluster.server, lab.clock, "jane", "team-a", "system:authenticated")


def test_a_member_uses_the_quota_and_no_more(in_lab: InLab) -> None:
    async def scenario(lab: VirtualLab) -> None:
        jane = await make_team(lab)
        (pod,) = documents("quota/pod.yaml")
        for name in ("eval", "second"):
            await jane.create(PODS.as_dicts(), {**pod, "metadata": {"name": name, "namespace": "team-a"}}, "team-a")
        await lab.clock.sleep(10)
        quota = await jane.get(RESOURCE_QUOTAS.as_dicts(), "gpus", "team-a")
        assert quota["status"]["used"]["requests.instaslice.redhat.com/accelerator-memory-quota"] == "40Gi"
        pods = (await jane.list(PODS, "team-a")).items
        assert {each.metadata.name: each.status.phase for each in pods} == {"eval": "Running", "second": "Running"}
        with pytest.raises(Forbidden, match="exceeded quota: gpus"):
            await jane.create(PODS.as_dicts(), {**pod, "metadata": {"name": "third"}}, "team-a")

    in_lab(scenario)


def test_a_member_has_no_rights_elsewhere(in_lab: InLab) -> None:
    async def scenario(lab: VirtualLab) -> None:
        jane = await make_team(lab)
        (pod,) = documents("quota/pod.yaml")
        with pytest.raises(Forbidden):
            await jane.create(PODS.as_dicts(), {**pod, "metadata": {"name": "eval"}}, "default")
        with pytest.raises(Forbidden):
            await jane.list(SECRETS, "team-a")

    in_lab(scenario)


def test_a_pod_in_a_queue_gets_its_slice_after_kueue_admitted_it(in_lab: InLab) -> None:
    """Kueue itself is not in the lab: the test does what its webhook and its controller do to the pod."""

    async def scenario(lab: VirtualLab) -> None:
        await lab.client.create(NAMESPACES.as_dicts(), {"metadata": {"name": "team-a"}})
        (pod,) = documents("kueue/pod.yaml")
        gated = {**pod, "spec": {**pod["spec"], "schedulingGates": [{"name": KUEUE_GATE}]}}
        await lab.client.create(PODS.as_dicts(), gated, "team-a")
        await lab.clock.sleep(30)
        waiting = await lab.client.get(PODS, "queued", "team-a")
        gates = [each.name for each in waiting.spec.scheduling_gates]
        assert KUEUE_GATE in gates
        assert len(gates) == 2
        assert lab.results() == {}
        rest = [{"name": each} for each in gates if each != KUEUE_GATE]
        await lab.client.merge_patch(PODS, "queued", {"spec": {"schedulingGates": rest}}, "team-a")
        await lab.until(lambda: len(lab.results()) == 1, "the slice is promised")
        await lab.clock.sleep(10)
        assert (await lab.client.get(PODS, "queued", "team-a")).status.phase == "Running"

    in_lab(scenario)


def test_kueue_charges_every_profile_its_memory() -> None:
    (configuration,) = documents("kueue/configuration.yaml")
    rules = configuration["resources"]["transformations"]
    charged = {each["input"]: each["outputs"]["tessera.dev/gpu-memory"] for each in rules}
    names = {resource_of(profile): parse_profile_name(profile) for model in MODELS for profile in model.profile_names}
    assert charged == {resource: f"{name.memory_gb}Gi" for resource, name in names.items() if name.memory_gb}
    assert {each["strategy"] for each in rules} == {"Replace"}


def test_the_queue_covers_what_the_configuration_charges() -> None:
    _, cluster_queue, local_queue = documents("kueue/queues.yaml")
    (group,) = cluster_queue["spec"]["resourceGroups"]
    (flavor,) = group["flavors"]
    assert [each["name"] for each in flavor["resources"]] == group["coveredResources"]
    assert "tessera.dev/gpu-memory" in group["coveredResources"]
    assert local_queue["spec"]["clusterQueue"] == cluster_queue["metadata"]["name"]
    for path in ("kueue/pod.yaml", "kueue/job.yaml"):
        (workload,) = documents(path)
        assert workload["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == local_queue["metadata"]["name"]
        assert workload["metadata"]["namespace"] == local_queue["metadata"]["namespace"]
