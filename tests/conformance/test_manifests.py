"""Tessera's manifests on any server: they are valid, applied twice they change nothing, and they do what they promise.

Cluster-wide objects get names of this test's own, and everything else lives in its namespace, so that an installation
that is there already stays as it is. No process is started.
"""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.support.conformance_api import APPLY, CRDS, MERGE, TIMEOUT, Answer, Api, Obj, causes, gated_pod

from tessera.api.names import resource_of

DEPLOY = Path(__file__).parents[2] / "deploy"
RBAC = "/apis/rbac.authorization.k8s.io/v1"
GROUP = "conformance.tessera.dev"
ADMISSION = "/apis/admissionregistration.k8s.io/v1"
WEBHOOKS = ADMISSION + "/mutatingwebhookconfigurations"
PATHS = {
    "ServiceAccount": "/api/v1/namespaces/{}/serviceaccounts",
    "Service": "/api/v1/namespaces/{}/services",
    "ConfigMap": "/api/v1/namespaces/{}/configmaps",
    "ResourceQuota": "/api/v1/namespaces/{}/resourcequotas",
    "Deployment": "/apis/apps/v1/namespaces/{}/deployments",
    "DaemonSet": "/apis/apps/v1/namespaces/{}/daemonsets",
    "FlowSchema": "/apis/flowcontrol.apiserver.k8s.io/v1/flowschemas",
    "NetworkPolicy": "/apis/networking.k8s.io/v1/namespaces/{}/networkpolicies",
    "PodDisruptionBudget": "/apis/policy/v1/namespaces/{}/poddisruptionbudgets",
    "Role": RBAC + "/namespaces/{}/roles",
    "RoleBinding": RBAC + "/namespaces/{}/rolebindings",
    "ClusterRole": RBAC + "/clusterroles",
    "ClusterRoleBinding": RBAC + "/clusterrolebindings",
    "MutatingWebhookConfiguration": WEBHOOKS,
    "ValidatingAdmissionPolicy": ADMISSION + "/validatingadmissionpolicies",
    "ValidatingAdmissionPolicyBinding": ADMISSION + "/validatingadmissionpolicybindings",
}


def manifests() -> list[Obj]:
    """Every object of the installation, in its order."""
    files = yaml.load((DEPLOY / "kustomization.yaml").read_text(), yaml.CSafeLoader)["resources"]
    return [each for file in files for each in yaml.load_all((DEPLOY / file).read_text(), yaml.CSafeLoader)]


def shipped(kind: str, name: str = "") -> Obj:
    """The installation's only object of a kind, or of a kind and name."""
    (found,) = [each for each in manifests() if each["kind"] == kind and each["metadata"]["name"].startswith(name)]
    return found


def own(document: Obj, namespace: str, unique: str) -> tuple[str, Obj]:
    """Path and content of an object, moved out of every installation's way."""
    meta = document["metadata"]
    path = PATHS[document["kind"]].format(namespace)
    if "namespace" in meta:
        # Roles of one name live in several namespaces.
        name = meta["name"] if meta["namespace"] == "tessera-system" else f"{meta['name']}-{meta['namespace']}"
        meta |= {"namespace": namespace, "name": name}
    else:
        meta["name"] = f"{unique}-{meta['name']}"
    for subject in document.get("subjects", []):
        subject["namespace"] = namespace
    if document["kind"] == "Deployment":
        document["spec"]["replicas"] = 0
    if document["kind"] == "DaemonSet":
        document["spec"]["template"]["spec"]["nodeSelector"] = {unique: "no-such-node"}
    if document["kind"] == "ValidatingAdmissionPolicyBinding":
        document["spec"]["policyName"] = f"{unique}-{document['spec']['policyName']}"
        resources = document["spec"].setdefault("matchResources", {})
        resources["namespaceSelector"] = {"matchLabels": {"kubernetes.io/metadata.name": namespace}}
    for hook in document.get("webhooks", []):
        labels = hook.get("namespaceSelector", {}).get("matchLabels", {})
        hook["namespaceSelector"] = {"matchLabels": {**labels, "kubernetes.io/metadata.name": namespace}}
        hook["clientConfig"]["service"]["namespace"] = namespace
    return f"{path}/{meta['name']}", document


def settled(answer: Answer) -> Obj:
    """The applied object, without the fields that the cluster's controllers add meanwhile."""
    obj: Obj = dict(answer.ok())
    meta = dict(obj["metadata"])
    mine = [each for each in meta.pop("managedFields", []) if each["manager"] == "installer"]
    meta.pop("resourceVersion")
    meta.pop("annotations", None)
    obj.pop("status", None)
    return {**obj, "metadata": meta, "mine": mine}


async def test_applied_twice_they_change_nothing(
    api: Api, namespace: str, unique: str, cleanup: Callable[[str], None]
) -> None:
    query = "fieldManager=installer&fieldValidation=Strict"
    wanted = [each for each in manifests() if each["kind"] in PATHS]
    assert len(wanted) == len(manifests()) - 7  # two namespaces, the definitions, and the API of its own group
    for document in wanted:
        path, body = own(document, namespace, unique)
        cleanup(path)
        first = await api("PATCH", f"{path}?{query}", body, content=APPLY)
        second = await api("PATCH", f"{path}?{query}", body, content=APPLY)
        assert (first.status, second.status) == (201, 200), first.body
        assert "warning" not in first.headers, first.headers["warning"]
        assert settled(first) == settled(second)


async def test_the_webhook_is_asked_about_no_other_pods(
    api: Api, core: str, namespace: str, unique: str, cleanup: Callable[[str], None]
) -> None:
    """Nobody answers behind the service, so who is asked about is refused."""
    path, body = own(shipped("MutatingWebhookConfiguration"), namespace, unique)
    for hook in body["webhooks"]:
        hook["failurePolicy"] = "Fail"
    cleanup(path)
    (await api("PATCH", f"{path}?fieldManager=installer", body, content=APPLY)).ok()
    slices = gated_pod("a", limits={resource_of("1g.5gb"): "1"})

    async def created(pod: Obj) -> Answer:
        return await api("POST", f"{core}/pods?dryRun=All", pod)

    async def refusal(pod: Obj) -> Answer:
        """A configuration needs a moment until it counts."""
        async with asyncio.timeout(TIMEOUT):
            while True:
                answer = await created(pod)
                if answer.status >= 300:
                    return answer

    refused = await refusal(slices)
    assert 'failed calling webhook "gpus.tessera.dev"' in refused.refused(500, "InternalError")
    init = gated_pod("b")
    init["spec"]["initContainers"] = [{**slices["spec"]["containers"][0], "name": "first"}]
    (await created(init)).refused(500, "InternalError")
    (await created(gated_pod("c"))).ok()
    (await created(gated_pod("d", limits={"cpu": "2", "nvidia.com/gpu": "0"}))).ok()
    (await created(gated_pod("e", limits={"example.com/fpga": 2}))).ok()
    several = await created(gated_pod("f", limits={"nvidia.com/gpu": 2}))
    assert 'failed calling webhook "requests.tessera.dev"' in several.refused(500, "InternalError")
    annotated = gated_pod("g")
    annotated["metadata"]["annotations"] = {"example.com/ecc": "true"}
    (await created(annotated)).ok()
    annotated["metadata"]["annotations"]["tessera.dev/ecc"] = "true"
    asked = await created(annotated)
    assert 'failed calling webhook "gpus.tessera.dev"' in asked.refused(500, "InternalError")


RESULT = {
    "allocationStatus": {"allocationStatusController": "creating", "allocationStatusDaemonset": ""},
    "configMapResourceIdentifier": "id",
    "gpuUUID": "GPU-1",
    "migPlacement": {"size": 1, "start": 0},
    "nodename": "n",
}


@pytest.fixture
async def record(api: Api, namespace: str, unique: str, cleanup: Callable[[str], None]) -> str:
    """Path of an empty record of the shipped definition, under a name of this test's own."""
    await served(api, "instaslices", unique, cleanup)
    path = f"/apis/{GROUP}/v1alpha1/namespaces/{namespace}/{unique}s"
    (await api("POST", path, {**typed("v1alpha1", unique), "metadata": {"name": "n"}})).ok()
    return f"{path}/n"


async def served(api: Api, plural: str, unique: str, cleanup: Callable[[str], None]) -> str:
    """Has the server know a shipped definition under a name of this test's own; its version."""
    definition = shipped("CustomResourceDefinition", plural)
    names = {"plural": f"{unique}s", "singular": unique, "kind": unique.capitalize(), "listKind": f"{unique}List"}
    definition["metadata"]["name"] = f"{unique}s.{GROUP}"
    definition["spec"] |= {"group": GROUP, "names": names}
    version = str(definition["spec"]["versions"][0]["name"])
    cleanup(f"{CRDS}/{unique}s.{GROUP}")
    for wanted in (201, 200):
        answer = await api("PATCH", f"{CRDS}/{unique}s.{GROUP}?fieldManager=installer", definition, content=APPLY)
        assert answer.status == wanted, answer.body
    assert answer.body["metadata"]["generation"] == 1
    await api.until(f"/apis/{GROUP}/{version}/{unique}s", lambda answer: answer.status == 200)
    return version


def typed(version: str, unique: str) -> Obj:
    return {"apiVersion": f"{GROUP}/{version}", "kind": unique.capitalize()}


@pytest.mark.parametrize(
    ("plural", "driver"), [("clusterpolicies", lambda each: {"driver": each}), ("nvidiadrivers", lambda each: each)]
)
async def test_drivers_are_judged_and_what_is_not_known_is_kept(
    api: Api, unique: str, cleanup: Callable[[str], None], plural: str, driver: Callable[[Obj], Obj]
) -> None:
    version = await served(api, plural, unique, cleanup)
    path, head = f"/apis/{GROUP}/{version}/{unique}s", typed(version, unique)
    good = driver({"usePrecompiled": True, "version": 525, "vresion": {"a": [1]}, "upgradePolicy": {"drain": {"b": 2}}})
    made = (await api("POST", path, {**head, "metadata": {"name": "a"}, "spec": good})).ok()
    assert made["spec"] == good | ({"driverType": "gpu"} if plural == "nvidiadrivers" else {})
    wrong = driver({"kernelModuleType": "opne", "usePrecompiled": "yes", "upgradePolicy": {"maxParallelUpgrades": -1}})
    refused = await api("POST", path, {**head, "metadata": {"name": "b"}, "spec": wrong})
    refused.refused(422, "Invalid")
    assert {field.rpartition(".")[2] for field, _ in causes(refused)} - {"<nil>"} == {
        "kernelModuleType",
        "usePrecompiled",
        "maxParallelUpgrades",
    }
    split = await api("POST", path, {**head, "metadata": {"name": "b"}, "spec": driver({"version": 525.6})})
    ((_, text),) = ((field, text) for field, text in causes(split) if field != "<nil>")
    assert 'in body must be of type integer,string: "number"' in text
    status = {"status": {"state": "ready", "namespace": "tessera-system", "conditions": []}}
    told = (await api("PATCH", f"{path}/a/status", status, content=MERGE)).ok()
    assert (told["status"], told["metadata"]["generation"]) == (status["status"], 1)
    (await api("PATCH", f"{path}/a/status", {"status": {"state": "done"}}, content=MERGE)).refused(422, "Invalid")


async def test_what_a_driver_is_cannot_be_changed(api: Api, unique: str, cleanup: Callable[[str], None]) -> None:
    version = await served(api, "nvidiadrivers", unique, cleanup)
    path = f"/apis/{GROUP}/{version}/{unique}s"
    body = {**typed(version, unique), "metadata": {"name": "a"}, "spec": {"usePrecompiled": True, "default": True}}
    (await api("POST", path, body)).ok()
    change = {"driverType": "vgpu", "usePrecompiled": False, "nodeSelector": {"a": "b"}}
    refused = await api("PATCH", f"{path}/a", {"spec": change}, content=MERGE)
    refused.refused(422, "Invalid")
    assert {field for field, _ in causes(refused)} == {"spec", "spec.driverType", "spec.usePrecompiled"}
    assert all(", then delete this one" in text or "; remove one" in text for _, text in causes(refused))
    (await api("PATCH", f"{path}/a", {"spec": {"version": "580"}}, content=MERGE)).ok()


async def test_results_come_and_go_by_merge_patches_of_the_status(api: Api, record: str) -> None:
    async def patched(**results: Any) -> Answer:
        return await api("PATCH", f"{record}/status", {"status": {"podAllocationResults": results}}, content=MERGE)

    nothing = (await patched(never=None)).ok()
    assert not nothing.get("status", {}).get("podAllocationResults")
    assert set((await patched(a=RESULT, b=RESULT)).ok()["status"]["podAllocationResults"]) == {"a", "b"}
    half = {"allocationStatus": {"allocationStatusDaemonset": "created"}}
    both = (await patched(a=None, b=half)).ok()["status"]["podAllocationResults"]
    status = {"allocationStatusController": "creating", "allocationStatusDaemonset": "created"}
    assert both == {"b": {**RESULT, "allocationStatus": status}}
    assert (await patched(b=None)).ok()["status"]["podAllocationResults"] == {}
    refused = await patched(b=half)
    refused.refused(422, "Invalid")
    assert ("status.podAllocationResults.b.nodename", "Required value") in causes(refused)


async def test_promises_are_spec_and_count_as_generations(api: Api, record: str) -> None:
    promise = {"profile": "1g.5gb", "resources": {"limits": {"cpu": 1}}, "podRef": {"uid": "a"}}
    body = {"spec": {"podAllocationRequests": {"a": promise}}, "status": {"podAllocationResults": {"a": RESULT}}}
    made = (await api("PATCH", record, body, content=MERGE)).ok()
    assert made["spec"]["podAllocationRequests"] == {"a": promise}
    assert "status" not in made
    assert made["metadata"]["generation"] == 2
    removed = (await api("PATCH", record, {"spec": {"podAllocationRequests": {"a": None}}}, content=MERGE)).ok()
    assert removed["spec"] == {"podAllocationRequests": {}}
    await api("PATCH", f"{record}/status", {"status": {"nodeResources": {"bootId": "b"}}}, content=MERGE)
    assert (await api("GET", record)).ok()["metadata"]["generation"] == 3
