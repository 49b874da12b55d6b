"""Discovery and OpenAPI as kubectl reads them."""

from typing import Any

from tests.support.conformance_api import Api, crd, establish

AGGREGATED = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"


async def test_the_aggregated_form_bears_its_content_type(api: Api) -> None:
    for path in ("/api", "/apis"):
        answer = await api("GET", path, accept=f"{AGGREGATED},application/json")
        assert answer.headers["content-type"] == AGGREGATED
        assert (answer.body["kind"], answer.body["apiVersion"]) == ("APIGroupDiscoveryList", "apidiscovery.k8s.io/v2")
    apps = next(each for each in answer.body["items"] if each["metadata"]["name"] == "apps")
    deployments = next(each for each in apps["versions"][0]["resources"] if each["resource"] == "deployments")
    assert deployments["responseKind"] == {"group": "", "version": "", "kind": "Deployment"}
    assert (deployments["scope"], deployments["singularResource"]) == ("Namespaced", "deployment")
    kinds = {each["subresource"]: each["responseKind"] for each in deployments["subresources"]}
    assert kinds["scale"] == {"group": "autoscaling", "version": "v1", "kind": "Scale"}
    assert kinds["status"] == deployments["responseKind"]


async def test_the_plain_form(api: Api) -> None:
    assert "v1" in (await api("GET", "/api")).ok()["versions"]
    groups = (await api("GET", "/apis")).ok()["groups"]
    assert {"apps", "batch", "rbac.authorization.k8s.io"} <= {each["name"] for each in groups}
    core = (await api("GET", "/api/v1")).ok()
    assert (core["kind"], core["groupVersion"]) == ("APIResourceList", "v1")
    pods = next(each for each in core["resources"] if each["name"] == "pods")
    assert (pods["kind"], pods["namespaced"], pods["shortNames"]) == ("Pod", True, ["po"])
    eviction = next(each for each in core["resources"] if each["name"] == "pods/eviction")
    assert (eviction["group"], eviction["version"], eviction["kind"]) == ("policy", "v1", "Eviction")
    apps = (await api("GET", "/apis/apps/v1")).ok()
    assert "deployments/scale" in [each["name"] for each in apps["resources"]]
    assert (await api("GET", "/apis/nothing.example.com")).status == 404


async def test_the_version(api: Api) -> None:
    version = (await api("GET", "/version")).ok()
    assert version["major"] == "1"
    assert version["gitVersion"].startswith("v1.")


async def test_the_server_is_ready(api: Api, kubectl: Any) -> None:
    assert await kubectl("get", "--raw", "/readyz") == "ok"
    del api


async def operation(api: Api, group_version: str, kind: str, verb: str) -> Any:
    """The operation of a kind in its group version's OpenAPI document."""
    index = (await api("GET", "/openapi/v3")).ok()["paths"]
    path = index[group_version]["serverRelativeURL"]
    document = (await api("GET", path)).ok()
    for item in document["paths"].values():
        found = item.get(verb, {})
        if found.get("x-kubernetes-group-version-kind", {}).get("kind") == kind:
            return document, found
    raise AssertionError(f"{kind} has no {verb} in {group_version}")


async def test_writes_take_field_validation(api: Api) -> None:
    for group_version, kind in (("api/v1", "Pod"), ("apis/apps/v1", "Deployment")):
        for verb in ("patch", "post"):
            _, found = await operation(api, group_version, kind, verb)
            assert "fieldValidation" in [each["name"] for each in found["parameters"]]


async def test_schemas_say_how_lists_merge(api: Api) -> None:
    document, _ = await operation(api, "api/v1", "Pod", "patch")
    spec = document["components"]["schemas"]["io.k8s.api.core.v1.PodSpec"]
    containers = spec["properties"]["containers"]
    assert containers["x-kubernetes-patch-merge-key"] == "name"
    assert containers["x-kubernetes-list-map-keys"] == ["name"]


async def test_a_custom_kind_is_discovered_and_described(api: Api, unique: str, cleanup: Any) -> None:
    schema = {"type": "object", "properties": {"spec": {"type": "object", "description": f"about {unique}"}}}
    await establish(api, crd(unique, schema), cleanup)
    path = "/apis/conformance.tessera.dev/v1"
    await api.until(
        path,
        lambda answer: answer.status == 200 and f"{unique}s" in [each["name"] for each in answer.body["resources"]],
    )
    await api.until("/openapi/v3", lambda answer: path.strip("/") in answer.body["paths"])
    kind = unique.capitalize()
    gvk = {"group": "conformance.tessera.dev", "version": "v1", "kind": kind}

    def described(document: Any) -> bool:
        schemas = document.get("components", {}).get("schemas", {}).values()
        found = [each for each in schemas if each.get("x-kubernetes-group-version-kind") == [gvk]]
        return bool(found) and found[0]["properties"]["spec"]["description"] == f"about {unique}"

    await api.until(f"/openapi/v3{path}", lambda answer: answer.status == 200 and described(answer.body))
