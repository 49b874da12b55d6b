"""Objects from birth to removal."""

from typing import Any

import pytest
from tests.support.conformance_api import MERGE, Api, configmap, gated_pod

from tessera.kube.client import Client
from tessera.kube.errors import AlreadyExists, Conflict, NotFound
from tessera.kube.resources import CONFIGMAPS


async def test_create_sets_what_the_server_alone_sets(api: Api, core: str, namespace: str) -> None:
    sent = configmap("a", k="v")
    sent["metadata"] |= {"uid": "mine", "creationTimestamp": "2001-01-01T00:00:00Z"}
    answer = await api("POST", f"{core}/configmaps", sent)
    made = answer.ok()
    assert answer.status == 201
    assert (made["apiVersion"], made["kind"]) == ("v1", "ConfigMap")
    assert made["metadata"]["namespace"] == namespace
    assert made["metadata"]["uid"] not in ("", "mine")
    assert made["metadata"]["creationTimestamp"] > "2020"
    assert made["metadata"]["resourceVersion"]


async def test_a_created_object_cannot_bring_a_resource_version(api: Api, core: str) -> None:
    sent = configmap("a")
    sent["metadata"]["resourceVersion"] = "1"
    answer = await api("POST", f"{core}/configmaps", sent)
    assert answer.status >= 400
    assert "resourceVersion should not be set on objects to be created" in answer.body["message"]


async def test_a_taken_name_is_refused(api: Api, core: str) -> None:
    (await api("POST", f"{core}/configmaps", configmap("a"))).ok()
    refused = await api("POST", f"{core}/configmaps", configmap("a"))
    assert refused.refused(409, "AlreadyExists") == 'configmaps "a" already exists'
    assert refused.body["details"] == {"name": "a", "kind": "configmaps"}


async def test_generated_names_have_five_letters(api: Api, core: str) -> None:
    names = {(await api("POST", f"{core}/configmaps", configmap())).ok()["metadata"]["name"] for _ in range(5)}
    assert len(names) == 5
    assert all(name.startswith("cm-") and len(name) == len("cm-") + 5 for name in names)


async def test_what_is_not_there_is_not_found(api: Api, core: str) -> None:
    assert (await api("GET", f"{core}/configmaps/none")).refused(404, "NotFound") == 'configmaps "none" not found'
    assert (await api("DELETE", f"{core}/configmaps/none")).refused(404, "NotFound")
    assert (await api("GET", f"{core}/nothings")).refused(404, "NotFound") == (
        "the server could not find the requested resource"
    )


async def test_nothing_is_created_in_a_namespace_that_is_not_there(api: Api, unique: str) -> None:
    answer = await api("POST", f"/api/v1/namespaces/{unique}/configmaps", configmap("a"))
    assert answer.refused(404, "NotFound") == f'namespaces "{unique}" not found'


async def test_every_change_has_a_later_version_and_no_change_has_none(api: Api, core: str) -> None:
    made = (await api("POST", f"{core}/configmaps", configmap("a", k="v"))).ok()
    changed = (await api("PATCH", f"{core}/configmaps/a", {"data": {"k": "w"}}, content=MERGE)).ok()
    again = (await api("PATCH", f"{core}/configmaps/a", {"data": {"k": "w"}}, content=MERGE)).ok()
    assert int(changed["metadata"]["resourceVersion"]) > int(made["metadata"]["resourceVersion"])
    assert again["metadata"]["resourceVersion"] == changed["metadata"]["resourceVersion"]
    assert changed["metadata"]["uid"] == made["metadata"]["uid"]


async def test_an_update_from_an_old_state_is_a_conflict(api: Api, core: str) -> None:
    made = (await api("POST", f"{core}/configmaps", configmap("a"))).ok()
    (await api("PATCH", f"{core}/configmaps/a", {"data": {"k": "w"}}, content=MERGE)).ok()
    refused = await api("PUT", f"{core}/configmaps/a", {**made, "data": {"k": "x"}})
    assert refused.refused(409, "Conflict") == (
        'Operation cannot be fulfilled on configmaps "a": the object has been modified; please apply your changes to '
        "the latest version and try again"
    )


async def test_generation_counts_changes_of_the_spec_only(api: Api, namespace: str) -> None:
    path = f"/apis/apps/v1/namespaces/{namespace}/deployments"
    labels = {"app": "a"}
    template = {"metadata": {"labels": labels}, "spec": {"containers": [{"name": "a", "image": "example.com/a:1"}]}}
    spec: dict[str, Any] = {"replicas": 0, "selector": {"matchLabels": labels}, "template": template}
    made = (await api("POST", path, {"metadata": {"name": "a"}, "spec": spec})).ok()
    assert made["metadata"]["generation"] == 1
    labelled = await api("PATCH", f"{path}/a", {"metadata": {"labels": {"x": "y"}}}, content=MERGE)
    assert labelled.ok()["metadata"]["generation"] == 1
    paused = await api("PATCH", f"{path}/a", {"spec": {"paused": True}}, content=MERGE)
    assert paused.ok()["metadata"]["generation"] == 2


async def test_preconditions_guard_a_deletion(api: Api, core: str) -> None:
    made = (await api("POST", f"{core}/configmaps", configmap("a"))).ok()
    other = {"preconditions": {"uid": "00000000-0000-0000-0000-000000000000"}}
    text = (await api("DELETE", f"{core}/configmaps/a", other)).refused(409, "Conflict")
    assert "the UID in the precondition (00000000-0000-0000-0000-000000000000) does not match the UID in rec" in text
    own = {"preconditions": {"uid": made["metadata"]["uid"]}}
    deleted = (await api("DELETE", f"{core}/configmaps/a", own)).ok()
    assert deleted["status"] == "Success"
    assert deleted["details"] == {"name": "a", "kind": "configmaps", "uid": made["metadata"]["uid"]}
    assert (await api("GET", f"{core}/configmaps/a")).status == 404


async def test_finalizers_hold_an_object_until_the_last_is_gone(api: Api, core: str) -> None:
    sent = configmap("a")
    sent["metadata"]["finalizers"] = ["example.com/one", "example.com/two"]
    (await api("POST", f"{core}/configmaps", sent)).ok()
    (await api("DELETE", f"{core}/configmaps/a")).ok()
    held = (await api("GET", f"{core}/configmaps/a")).ok()
    assert held["metadata"]["deletionTimestamp"]
    added = {"metadata": {"finalizers": ["example.com/one", "example.com/three"]}}
    text = (await api("PATCH", f"{core}/configmaps/a", added, content=MERGE)).refused(422)
    assert "no new finalizers can be added if the object is being deleted" in text
    one = {"metadata": {"finalizers": ["example.com/one"]}}
    (await api("PATCH", f"{core}/configmaps/a", one, content=MERGE)).ok()
    (await api("PATCH", f"{core}/configmaps/a", {"metadata": {"finalizers": None}}, content=MERGE)).ok()
    await api.gone(f"{core}/configmaps/a")


async def test_dry_run_answers_as_if_and_stores_nothing(api: Api, core: str) -> None:
    made = (await api("POST", f"{core}/configmaps?dryRun=All", configmap("a", k="v"))).ok()
    assert made["data"] == {"k": "v"}
    assert made["metadata"]["uid"]
    assert (await api("GET", f"{core}/configmaps/a")).status == 404
    (await api("POST", f"{core}/configmaps", configmap("a", k="v"))).ok()
    patched = await api("PATCH", f"{core}/configmaps/a?dryRun=All", {"data": {"k": "w"}}, content=MERGE)
    assert patched.ok()["data"] == {"k": "w"}
    (await api("DELETE", f"{core}/configmaps/a?dryRun=All")).ok()
    assert (await api("GET", f"{core}/configmaps/a")).ok()["data"] == {"k": "v"}


async def test_unknown_fields_are_refused_warned_about_or_dropped(api: Api, core: str) -> None:
    sent = {**gated_pod("a"), "foo": 1}
    sent["spec"]["containers"][0]["bar"] = 1
    strict = await api("POST", f"{core}/pods?fieldValidation=Strict", sent)
    text = strict.refused(400, "BadRequest")
    assert "strict decoding error" in text
    assert 'unknown field "foo"' in text
    assert 'unknown field "spec.containers[0].bar"' in text
    warned = await api("POST", f"{core}/pods?fieldValidation=Warn&dryRun=All", sent)
    assert "unknown field" in warned.headers["warning"]
    ignored = await api("POST", f"{core}/pods?fieldValidation=Ignore&dryRun=All", sent)
    assert "foo" not in ignored.ok()
    assert "bar" not in ignored.body["spec"]["containers"][0]


async def test_a_value_of_the_wrong_type_is_a_bad_request(api: Api, core: str) -> None:
    sent = gated_pod("a")
    sent["spec"]["terminationGracePeriodSeconds"] = "soon"
    text = (await api("POST", f"{core}/pods", sent)).refused(400, "BadRequest")
    assert text.startswith('Pod in version "v1" cannot be handled as a Pod: ')


async def test_names_are_checked(api: Api, core: str) -> None:
    refused = await api("POST", f"{core}/configmaps", configmap("Upper_Case"))
    text = refused.refused(422, "Invalid")
    assert text.startswith('ConfigMap "Upper_Case" is invalid: metadata.name: Invalid value: "Upper_Case": a lowercase')


async def test_the_path_and_the_body_must_agree(api: Api, core: str) -> None:
    made = (await api("POST", f"{core}/configmaps", configmap("a"))).ok()
    made["metadata"]["name"] = "b"
    assert (await api("PUT", f"{core}/configmaps/a", made)).status == 400
    other = configmap("c")
    other["metadata"]["namespace"] = "default"
    (await api("POST", f"{core}/configmaps", other)).refused(400, "BadRequest")


async def test_our_client_sees_the_same(client: Client, namespace: str) -> None:
    maps = CONFIGMAPS.as_dicts()
    made = await client.create(maps, configmap("a", k="v"), namespace)
    with pytest.raises(AlreadyExists, match="already exists"):
        await client.create(maps, configmap("a"), namespace)
    version = made["metadata"]["resourceVersion"]
    await client.merge_patch(maps, "a", {"data": {"k": "w"}}, namespace, resource_version=version)
    with pytest.raises(Conflict, match="the object has been modified"):
        await client.merge_patch(maps, "a", {"data": {"k": "x"}}, namespace, resource_version=version)
    stored = await client.list(maps, namespace, field_selector="metadata.name=a")
    assert [each["data"] for each in stored.items] == [{"k": "w"}]
    await client.delete(maps, "a", namespace)
    with pytest.raises(NotFound, match='configmaps "a" not found'):
        await client.get(maps, "a", namespace)
