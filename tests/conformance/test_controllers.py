"""The cluster's own controllers: garbage collection, namespaces, scale."""

from typing import Any

from tests.support.conformance_api import MERGE, Api, configmap, deployment


def owned(name: str, owner: Any, *, block: bool = False) -> Any:
    """A ConfigMap that goes when its owner goes."""
    sent = configmap(name)
    reference = {"apiVersion": "v1", "kind": "ConfigMap", "name": owner["metadata"]["name"]}
    reference["uid"] = owner["metadata"]["uid"]
    sent["metadata"]["ownerReferences"] = [{**reference, "blockOwnerDeletion": block}]
    return sent


async def test_what_is_owned_goes_with_its_owner(api: Api, core: str) -> None:
    owner = (await api("POST", f"{core}/configmaps", configmap("owner"))).ok()
    (await api("POST", f"{core}/configmaps", owned("child", owner))).ok()
    (await api("DELETE", f"{core}/configmaps/owner", {"propagationPolicy": "Background"})).ok()
    await api.gone(f"{core}/configmaps/child")


async def test_an_orphan_stays(api: Api, core: str) -> None:
    owner = (await api("POST", f"{core}/configmaps", configmap("owner"))).ok()
    (await api("POST", f"{core}/configmaps", owned("child", owner))).ok()
    (await api("DELETE", f"{core}/configmaps/owner", {"propagationPolicy": "Orphan"})).ok()
    await api.gone(f"{core}/configmaps/owner")
    found = (await api("GET", f"{core}/configmaps/child")).ok()
    assert not found["metadata"].get("ownerReferences")


async def test_foreground_deletion_waits_for_what_is_owned(api: Api, core: str) -> None:
    owner = (await api("POST", f"{core}/configmaps", configmap("owner"))).ok()
    child = owned("child", owner, block=True)
    child["metadata"]["finalizers"] = ["example.com/held"]
    (await api("POST", f"{core}/configmaps", child)).ok()
    (await api("DELETE", f"{core}/configmaps/owner", {"propagationPolicy": "Foreground"})).ok()
    await api.until(f"{core}/configmaps/child", lambda answer: "deletionTimestamp" in answer.body["metadata"])
    held = (await api("GET", f"{core}/configmaps/owner")).ok()
    assert held["metadata"]["finalizers"] == ["foregroundDeletion"]
    (await api("PATCH", f"{core}/configmaps/child", {"metadata": {"finalizers": None}}, content=MERGE)).ok()
    await api.gone(f"{core}/configmaps/owner")


async def test_an_owner_that_is_not_there_cannot_keep_an_object(api: Api, core: str) -> None:
    nobody = {"metadata": {"name": "ghost", "uid": "00000000-0000-0000-0000-00000000000a"}}
    (await api("POST", f"{core}/configmaps", owned("child", nobody))).ok()
    await api.gone(f"{core}/configmaps/child")


async def test_a_namespace_takes_everything_with_it(api: Api, unique: str) -> None:
    path = f"/api/v1/namespaces/{unique}"
    (await api("POST", "/api/v1/namespaces", {"metadata": {"name": unique}})).ok()
    held = configmap("a")
    held["metadata"]["finalizers"] = ["example.com/held"]
    (await api("POST", f"{path}/configmaps", held)).ok()
    (await api("DELETE", path)).ok()
    await api.until(f"{path}/configmaps/a", lambda answer: "deletionTimestamp" in answer.body["metadata"])
    assert (await api("GET", path)).ok()["status"]["phase"] == "Terminating"
    text = (await api("POST", f"{path}/configmaps", configmap("b"))).refused(403, "Forbidden")
    assert f"unable to create new content in namespace {unique} because it is being terminated" in text
    (await api("PATCH", f"{path}/configmaps/a", {"metadata": {"finalizers": None}}, content=MERGE)).ok()
    await api.gone(path)


async def test_a_deployment_makes_a_replica_set_and_scales(api: Api, namespace: str) -> None:
    base = f"/apis/apps/v1/namespaces/{namespace}"
    (await api("POST", f"{base}/deployments", deployment("a"))).ok()
    found = await api.until(f"{base}/replicasets", lambda answer: len(answer.body["items"]) == 1)
    (made,) = found.body["items"]
    assert made["metadata"]["ownerReferences"][0]["kind"] == "Deployment"
    scale = (await api("GET", f"{base}/deployments/a/scale")).ok()
    assert (scale["kind"], scale["spec"].get("replicas", 0)) == ("Scale", 0)
    assert scale["status"]["selector"] == "app=a"
    scale["spec"]["replicas"] = 2
    del scale["metadata"]["resourceVersion"]  # the controller may have written since
    assert (await api("PUT", f"{base}/deployments/a/scale", scale)).ok()["spec"] == {"replicas": 2}
    await api.until(f"{base}/replicasets", lambda answer: answer.body["items"][0]["spec"]["replicas"] == 2)
    pods = f"/api/v1/namespaces/{namespace}/pods?labelSelector=app=a"
    await api.until(pods, lambda answer: len(answer.body["items"]) == 2)
    patched = await api("PATCH", f"{base}/deployments/a/scale", {"spec": {"replicas": 0}}, content=MERGE)
    assert patched.ok()["spec"].get("replicas", 0) == 0
    await api.until(pods, lambda answer: not answer.body["items"])
