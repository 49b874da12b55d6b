"""kubectl against the server: what a user types every day."""

import json
from typing import Any

import pytest
import yaml
from tests.support.conformance_api import Api, Kubectl, Obj, configmap, crd, custom, deployment, establish, gated_pod


async def test_get_in_all_forms(kubectl: Kubectl) -> None:
    await kubectl("create", "-f", "-", manifest=gated_pod("a"))
    table = (await kubectl("get", "pods")).splitlines()
    assert table[0].split() == ["NAME", "READY", "STATUS", "RESTARTS", "AGE"]
    assert table[1].split()[:4] == ["a", "0/1", "SchedulingGated", "0"]
    assert "NOMINATED NODE" in (await kubectl("get", "pods", "-o", "wide")).splitlines()[0]
    assert await kubectl("get", "pods", "-o", "name") == "pod/a\n"
    assert await kubectl("get", "pod", "a", "-o", "jsonpath={.spec.containers[0].name}") == "main"
    assert json.loads(await kubectl("get", "pod", "a", "-o", "json"))["kind"] == "Pod"
    assert yaml.safe_load(await kubectl("get", "pod", "a", "-o", "yaml"))["metadata"]["name"] == "a"
    columns = "custom-columns=N:.metadata.name,P:.status.phase"
    assert (await kubectl("get", "pods", "-o", columns)).split() == ["N", "P", "a", "Pending"]
    assert "a " in await kubectl("get", "po", "-A", "--field-selector", "metadata.name=a")
    assert await kubectl("get", "pods", "-l", "no=such") == ""


async def test_a_missing_object(kubectl: Kubectl) -> None:
    text = await kubectl("get", "pod", "none", fails=True)
    assert text == 'Error from server (NotFound): pods "none" not found\n'


async def test_apply_on_the_client_s_side(kubectl: Kubectl) -> None:
    manifest = deployment("a")
    assert await kubectl("apply", "-f", "-", manifest=manifest) == "deployment.apps/a created\n"
    assert await kubectl("apply", "-f", "-", manifest=manifest) == "deployment.apps/a unchanged\n"
    manifest["spec"]["template"]["spec"]["containers"].append({"name": "b", "image": "example.com/b:1"})
    assert await kubectl("apply", "-f", "-", manifest=manifest) == "deployment.apps/a configured\n"
    assert "example.com/b:1" in await kubectl("get", "deployment", "a", "-o", "yaml")
    manifest["spec"]["template"]["spec"]["containers"].pop()
    await kubectl("apply", "-f", "-", manifest=manifest)
    path = "jsonpath={.spec.template.spec.containers[*].name}"
    assert await kubectl("get", "deployment", "a", "-o", path) == "a"


async def test_apply_refuses_unknown_fields(kubectl: Kubectl) -> None:
    manifest = {**configmap("a"), "datum": {}}
    text = await kubectl("apply", "-f", "-", manifest=manifest, fails=True)
    assert 'unknown field "datum"' in text


async def test_apply_on_the_server_s_side(kubectl: Kubectl) -> None:
    apply = ("apply", "--server-side", "-f", "-")
    assert await kubectl(*apply, manifest=configmap("a", x="1")) == "configmap/a serverside-applied\n"
    text = await kubectl(*apply, "--field-manager=other", manifest=configmap("a", x="2"), fails=True)
    assert 'Apply failed with 1 conflict: conflict with "kubectl": .data.x' in text
    await kubectl(*apply, "--field-manager=other", "--force-conflicts", manifest=configmap("a", x="2"))
    shown = await kubectl("get", "configmap", "a", "-o", "yaml", "--show-managed-fields")
    assert {each["manager"] for each in yaml.safe_load(shown)["metadata"]["managedFields"]} >= {"other"}


@pytest.mark.parametrize(
    ("command", "kind"),
    [
        ("create configmap a --from-literal=x=1", "configmap"),
        ("create secret generic a --from-literal=x=1", "secret"),
        ("create serviceaccount a", "serviceaccount"),
        ("create deployment a --image=example.com/a:1 --replicas=0", "deployment"),
        ("create quota a --hard=pods=3", "resourcequota"),
        ("create role a --verb=get --resource=pods", "role"),
        ("create rolebinding a --role=a --serviceaccount=default:a", "rolebinding"),
        ("create service clusterip a --tcp=80:80", "service"),
        ("create poddisruptionbudget a --selector=a=b --min-available=1", "poddisruptionbudget"),
    ],
)
async def test_create_in_words(kubectl: Kubectl, command: str, kind: str) -> None:
    assert (await kubectl(*command.split())).endswith("/a created\n")
    assert (await kubectl("get", kind, "a", "-o", "name")).endswith("/a\n")


async def test_create_job_and_namespace(kubectl: Kubectl, unique: str) -> None:
    assert await kubectl("create", "job", "a", "--image=example.com/a:1", "--", "true") == "job.batch/a created\n"
    assert "COMPLETIONS" in await kubectl("get", "jobs")
    assert await kubectl("create", "namespace", unique) == f"namespace/{unique} created\n"
    await kubectl("delete", "namespace", unique, "--wait=false")


async def test_labels_annotations_and_patches(kubectl: Kubectl) -> None:
    await kubectl("create", "-f", "-", manifest=configmap("a", x="1"))
    assert await kubectl("label", "configmap", "a", "tier=gold") == "configmap/a labeled\n"
    assert await kubectl("annotate", "configmap", "a", "note=hello") == "configmap/a annotated\n"
    assert await kubectl("patch", "configmap", "a", "-p", '{"data":{"y":"2"}}') == "configmap/a patched\n"
    await kubectl("patch", "configmap", "a", "--type=json", "-p", '[{"op":"remove","path":"/data/x"}]')
    found = json.loads(await kubectl("get", "configmap", "a", "-o", "json"))
    assert (found["data"], found["metadata"]["labels"]) == ({"y": "2"}, {"tier": "gold"})
    assert "tier=gold" in await kubectl("get", "configmap", "a", "--show-labels")


async def test_scale_replace_and_delete(kubectl: Kubectl) -> None:
    await kubectl("create", "-f", "-", manifest=deployment("a"))
    assert await kubectl("scale", "deployment", "a", "--replicas=1") == "deployment.apps/a scaled\n"
    assert await kubectl("scale", "deployment", "a", "--replicas=0") == "deployment.apps/a scaled\n"
    found = json.loads(await kubectl("get", "deployment", "a", "-o", "json"))
    found["metadata"]["labels"] = {"edited": "yes"}
    del found["metadata"]["resourceVersion"]  # the deployment's controller may have written since
    assert await kubectl("replace", "-f", "-", manifest=found) == "deployment.apps/a replaced\n"
    assert (await kubectl("delete", "deployment", "a")).startswith('deployment.apps "a" deleted')
    await kubectl("get", "deployment", "a", fails=True)


async def test_autoscale_a_deployment(kubectl: Kubectl) -> None:
    await kubectl("create", "-f", "-", manifest=deployment("a"))
    done = await kubectl("autoscale", "deployment", "a", "--min=2", "--max=5", "--cpu-percent=70")
    assert done == "horizontalpodautoscaler.autoscaling/a autoscaled\n"
    header, row = (await kubectl("get", "hpa", "a")).splitlines()
    assert header.split() == ["NAME", "REFERENCE", "TARGETS", "MINPODS", "MAXPODS", "REPLICAS", "AGE"]
    assert row.split()[:4] == ["a", "Deployment/a", "cpu:", "<unknown>/70%"]
    assert "70" in await kubectl("get", "horizontalpodautoscalers.v1.autoscaling", "a", "-o", "json")


async def test_dry_run_and_diff(kubectl: Kubectl) -> None:
    text = await kubectl("create", "-f", "-", "--dry-run=server", manifest=configmap("a"))
    assert text == "configmap/a created (server dry run)\n"
    await kubectl("get", "configmap", "a", fails=True)


async def test_describe_and_events(kubectl: Kubectl) -> None:
    await kubectl("create", "-f", "-", manifest=gated_pod("a"))
    text = await kubectl("describe", "pod", "a")
    assert "Name:             a" in text
    assert "Pending" in text
    await kubectl("events")


async def test_wait(kubectl: Kubectl) -> None:
    await kubectl("create", "-f", "-", manifest=gated_pod("a"))
    assert await kubectl("wait", "pod/a", "--for=jsonpath={.status.phase}=Pending", "--timeout=30s") == (
        "pod/a condition met\n"
    )
    await kubectl("delete", "pod", "a", "--wait=false")
    await kubectl("wait", "pod/a", "--for=delete", "--timeout=30s")


async def test_auth(kubectl: Kubectl) -> None:
    assert await kubectl("auth", "can-i", "create", "pods") == "yes\n"
    await kubectl("create", "serviceaccount", "robot")
    assert len((await kubectl("create", "token", "robot")).strip().split(".")) == 3
    assert "Username" in await kubectl("auth", "whoami")


async def test_a_custom_resource(api: Api, kubectl: Kubectl, unique: str, cleanup: Any) -> None:
    spec = {"type": "object", "description": "what is wanted", "properties": {"size": {"type": "integer"}}}
    columns = [{"name": "Size", "type": "integer", "jsonPath": ".spec.size"}]
    schema = {"type": "object", "properties": {"spec": spec}}
    await establish(api, crd(unique, schema, additionalPrinterColumns=columns), cleanup)
    await api.until("/openapi/v3", lambda answer: "apis/conformance.tessera.dev/v1" in answer.body["paths"])
    assert (await kubectl("apply", "-f", "-", manifest=custom(unique, "a", size=2))).endswith("/a created\n")
    table = (await kubectl("get", f"{unique}s.conformance.tessera.dev")).split()
    assert table == ["NAME", "SIZE", "a", "2"]
    explained = await kubectl("explain", f"{unique}s.conformance.tessera.dev.spec")
    assert "what is wanted" in explained
    assert "size" in explained


async def test_resources_are_listed(kubectl: Kubectl) -> None:
    listed = await kubectl("api-resources", "--namespaced=true", "-o", "name")
    assert {"pods", "deployments.apps", "leases.coordination.k8s.io"} <= set(listed.split())
    assert "apps/v1" in (await kubectl("api-versions")).split()


def _listed(*items: Obj) -> Obj:
    return {"apiVersion": "v1", "kind": "List", "items": list(items)}


async def test_a_list_is_many_objects(kubectl: Kubectl) -> None:
    manifest = _listed({**configmap("a"), "data": {"k": "v"}}, configmap("b"))
    assert (await kubectl("apply", "-f", "-", manifest=manifest)).split("\n")[:2] == [
        "configmap/a created",
        "configmap/b created",
    ]
    assert "configmap/a unchanged" in await kubectl("apply", "-f", "-", manifest=manifest)
    assert "already exists" in await kubectl("create", "-f", "-", manifest=manifest, fails=True)
    assert "serverside-applied" in await kubectl(
        "apply", "--server-side", "--force-conflicts", "-f", "-", manifest=manifest
    )
    assert "deleted" in await kubectl("delete", "-f", "-", manifest=manifest)


async def test_a_mistake_within_a_list_is_named(kubectl: Kubectl) -> None:
    refused = await kubectl("apply", "-f", "-", manifest=_listed({**configmap("a"), "dta": {}}), fails=True)
    assert 'unknown field "dta"' in refused


async def test_a_kind_that_the_server_lacks_is_named(kubectl: Kubectl) -> None:
    manifest = {"apiVersion": "none.conformance.tessera.dev/v1", "kind": "Nothing", "metadata": {"name": "a"}}
    for verb in ("apply", "create"):
        refused = await kubectl(verb, "-f", "-", manifest=manifest, fails=True)
        assert 'no matches for kind "Nothing" in version "none.conformance.tessera.dev/v1"' in refused
        assert "openapi" not in refused


async def test_a_list_cannot_be_posted(api: Api, core: str) -> None:
    answer = await api("POST", f"{core}/configmaps", _listed(configmap("a")))
    assert answer.refused(400, "BadRequest")


async def test_the_definitions_are_served_in_version_2_too(api: Api) -> None:
    found = (await api("GET", "/openapi/v2", accept="application/json")).ok()
    assert found["swagger"] == "2.0"
    assert "replicas" in found["definitions"]["io.k8s.api.apps.v1.DeploymentSpec"]["properties"]
    kinds = found["definitions"]["io.k8s.api.core.v1.Pod"]["x-kubernetes-group-version-kind"]
    assert {"group": "", "kind": "Pod", "version": "v1"} in kinds


async def test_a_missing_namespace_is_named(kubectl: Kubectl, unique: str) -> None:
    manifest = configmap("a")
    for verb in (("create",), ("apply",), ("apply", "--server-side")):
        refused = await kubectl(*verb, "-n", unique, "-f", "-", manifest=manifest, fails=True)
        assert f'namespaces "{unique}" not found' in refused


async def test_a_cron_job(kubectl: Kubectl) -> None:
    made = ("create", "cronjob", "c", "--image=example.com/a:1", "--schedule=0 3 * * *", "--", "true")
    assert await kubectl(*made) == "cronjob.batch/c created\n"
    header, row = (await kubectl("get", "cj", "-o", "wide")).splitlines()
    columns = "NAME SCHEDULE TIMEZONE SUSPEND ACTIVE LAST SCHEDULE AGE CONTAINERS IMAGES SELECTOR"
    assert header.split() == columns.split()
    assert row.split()[:10] == ["c", "0", "3", "*", "*", "*", "<none>", "False", "0", "<none>"]
    await kubectl("create", "job", "now", "--from=cronjob/c")
    owner = "jsonpath={.metadata.ownerReferences[0].kind}/{.metadata.ownerReferences[0].name}"
    assert await kubectl("get", "job", "now", "-o", owner) == "CronJob/c"
    wrong = await kubectl("create", "cronjob", "d", "--image=a", "--schedule=0 25 * * *", fails=True)
    assert "spec.schedule: Invalid value" in wrong
