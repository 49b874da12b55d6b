"""The four kinds of patches."""

import pytest
from tests.support.conformance_api import APPLY, JSON_PATCH, MERGE, STRATEGIC, Api, configmap, deployment


async def test_merge_patches_replace_lists_and_remove_with_null(api: Api, core: str) -> None:
    (await api("POST", f"{core}/configmaps", configmap("a", x="1", y="2"))).ok()
    patched = await api("PATCH", f"{core}/configmaps/a", {"data": {"x": None, "z": "3"}}, content=MERGE)
    assert patched.ok()["data"] == {"y": "2", "z": "3"}


async def test_json_patches_apply_all_operations_or_none(api: Api, core: str) -> None:
    (await api("POST", f"{core}/configmaps", configmap("a", x="1"))).ok()
    path = f"{core}/configmaps/a"
    operations = [
        {"op": "test", "path": "/data/x", "value": "1"},
        {"op": "add", "path": "/data/y", "value": "2"},
        {"op": "move", "from": "/data/x", "path": "/data/z"},
    ]
    assert (await api("PATCH", path, operations, content=JSON_PATCH)).ok()["data"] == {"y": "2", "z": "1"}
    failing = [{"op": "remove", "path": "/data/y"}, {"op": "test", "path": "/data/z", "value": "9"}]
    assert (await api("PATCH", path, failing, content=JSON_PATCH)).status in (400, 422)
    assert (await api("GET", path)).ok()["data"] == {"y": "2", "z": "1"}


async def test_slashes_in_json_patch_paths_are_escaped(api: Api, core: str) -> None:
    (await api("POST", f"{core}/configmaps", configmap("a"))).ok()
    operations = [{"op": "add", "path": "/metadata/labels", "value": {"example.com/a": "b"}}]
    (await api("PATCH", f"{core}/configmaps/a", operations, content=JSON_PATCH)).ok()
    changed = [{"op": "replace", "path": "/metadata/labels/example.com~1a", "value": "c"}]
    patched = await api("PATCH", f"{core}/configmaps/a", changed, content=JSON_PATCH)
    assert patched.ok()["metadata"]["labels"] == {"example.com/a": "c"}


async def test_strategic_merge_joins_containers_by_name(api: Api, namespace: str) -> None:
    path = f"/apis/apps/v1/namespaces/{namespace}/deployments"
    (await api("POST", path, deployment("a"))).ok()
    containers = [{"name": "b", "image": "example.com/b:1"}, {"name": "a", "env": [{"name": "X", "value": "1"}]}]
    patch = {"spec": {"template": {"spec": {"containers": containers}}}}
    found = (await api("PATCH", f"{path}/a", patch, content=STRATEGIC)).ok()
    made = {each["name"]: each for each in found["spec"]["template"]["spec"]["containers"]}
    assert made["a"]["image"] == "example.com/a:1"
    assert made["a"]["env"] == [{"name": "X", "value": "1"}]
    assert made["b"]["image"] == "example.com/b:1"
    removed = {"spec": {"template": {"spec": {"containers": [{"name": "b", "$patch": "delete"}]}}}}
    found = (await api("PATCH", f"{path}/a", removed, content=STRATEGIC)).ok()
    assert [each["name"] for each in found["spec"]["template"]["spec"]["containers"]] == ["a"]


async def test_strategic_merge_joins_finalizers_as_a_set(api: Api, core: str) -> None:
    sent = configmap("a")
    sent["metadata"]["finalizers"] = ["example.com/one"]
    (await api("POST", f"{core}/configmaps", sent)).ok()
    patch = {"metadata": {"finalizers": ["example.com/two"]}}
    found = (await api("PATCH", f"{core}/configmaps/a", patch, content=STRATEGIC)).ok()
    assert sorted(found["metadata"]["finalizers"]) == ["example.com/one", "example.com/two"]
    (await api("PATCH", f"{core}/configmaps/a", {"metadata": {"finalizers": None}}, content=MERGE)).ok()


async def test_a_patch_of_an_unknown_kind_is_not_supported(api: Api, core: str) -> None:
    (await api("POST", f"{core}/configmaps", configmap("a"))).ok()
    answer = await api("PATCH", f"{core}/configmaps/a", {}, content="application/json")
    answer.refused(415, "UnsupportedMediaType")


async def test_apply_creates_owns_and_removes_what_it_leaves_out(api: Api, core: str) -> None:
    path = f"{core}/configmaps/a?fieldManager=ann"
    created = await api("PATCH", path, configmap("a", x="1", y="2"), content=APPLY)
    assert created.status == 201
    (entry,) = created.body["metadata"]["managedFields"]
    assert (entry["manager"], entry["operation"]) == ("ann", "Apply")
    assert entry["fieldsV1"] == {"f:data": {"f:x": {}, "f:y": {}}}
    again = await api("PATCH", path, configmap("a", x="1"), content=APPLY)
    assert again.status == 200
    assert again.ok()["data"] == {"x": "1"}


async def test_apply_that_changes_nothing_writes_nothing(api: Api, core: str) -> None:
    path = f"{core}/configmaps/a?fieldManager=ann"
    first = (await api("PATCH", path, configmap("a", x="1"), content=APPLY)).ok()
    second = (await api("PATCH", path, configmap("a", x="1"), content=APPLY)).ok()
    assert second["metadata"]["resourceVersion"] == first["metadata"]["resourceVersion"]


async def test_a_field_of_another_manager_is_a_conflict_until_forced(api: Api, core: str) -> None:
    base = f"{core}/configmaps/a?fieldManager="
    (await api("PATCH", f"{base}ann", configmap("a", x="1"), content=APPLY)).ok()
    refused = await api("PATCH", f"{base}bob", configmap("a", x="2"), content=APPLY)
    text = refused.refused(409, "Conflict")
    assert text == 'Apply failed with 1 conflict: conflict with "ann": .data.x'
    (cause,) = refused.body["details"]["causes"]
    assert (cause["reason"], cause["field"]) == ("FieldManagerConflict", ".data.x")
    forced = await api("PATCH", f"{base}bob&force=true", configmap("a", x="2"), content=APPLY)
    assert forced.ok()["data"] == {"x": "2"}
    without = (await api("PATCH", f"{base}ann", configmap("a"), content=APPLY)).ok()
    assert without["data"] == {"x": "2"}


async def test_managers_that_agree_own_a_field_together(api: Api, core: str) -> None:
    base = f"{core}/configmaps/a?fieldManager="
    (await api("PATCH", f"{base}ann", configmap("a", x="1"), content=APPLY)).ok()
    (await api("PATCH", f"{base}bob", configmap("a", x="1"), content=APPLY)).ok()
    (await api("PATCH", f"{base}ann", configmap("a"), content=APPLY)).ok()
    assert (await api("GET", f"{core}/configmaps/a")).ok()["data"] == {"x": "1"}


async def test_a_plain_write_takes_fields_over(api: Api, core: str) -> None:
    base = f"{core}/configmaps/a?fieldManager="
    (await api("PATCH", f"{base}ann", configmap("a", x="1"), content=APPLY)).ok()
    (await api("PATCH", f"{base}editor", {"data": {"x": "2"}}, content=MERGE)).ok()
    text = (await api("PATCH", f"{base}ann", configmap("a", x="3"), content=APPLY)).refused(409, "Conflict")
    assert text.startswith('Apply failed with 1 conflict: conflict with "editor" using v1')
    assert text.endswith(": .data.x")


async def test_owners_that_are_taken_away_come_back_with_the_next_apply(api: Api, core: str) -> None:
    path, base = f"{core}/configmaps/a", f"{core}/configmaps/a?fieldManager="
    (await api("POST", f"{core}/configmaps", configmap("a", x="1"))).ok()
    reset = {"metadata": {"managedFields": [{}]}, "data": {"x": "2"}}
    assert "managedFields" not in (await api("PATCH", path, reset, content=MERGE)).ok()["metadata"]
    later = await api("PATCH", f"{base}editor", {"data": {"y": "1"}}, content=MERGE)
    assert "managedFields" not in later.ok()["metadata"]
    text = (await api("PATCH", f"{base}ann", configmap("a", y="2"), content=APPLY)).refused(409, "Conflict")
    assert text == 'Apply failed with 1 conflict: conflict with "before-first-apply" using v1: .data.y'
    found = (await api("PATCH", f"{base}ann", configmap("a", z="3"), content=APPLY)).ok()
    owners = {each["manager"]: each["fieldsV1"] for each in found["metadata"]["managedFields"]}
    assert owners["ann"] == {"f:data": {"f:z": {}}}
    assert owners["before-first-apply"]["f:data"].keys() - {"."} == {"f:x", "f:y"}


async def test_an_object_whose_apply_states_no_field_has_no_owners_after_other_writes_either(
    api: Api, core: str
) -> None:
    path = f"{core}/serviceaccounts/a"
    stated = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "a"}}
    assert (
        "managedFields" not in (await api("PATCH", f"{path}?fieldManager=ann", stated, content=APPLY)).ok()["metadata"]
    )
    note = {"metadata": {"annotations": {"example.com/a": "1"}}}
    patched = (await api("PATCH", f"{path}?fieldManager=editor", note, content=MERGE)).ok()
    assert "managedFields" not in patched["metadata"]


async def test_apply_merges_lists_by_their_keys(api: Api, namespace: str) -> None:
    base = f"/apis/apps/v1/namespaces/{namespace}/deployments/a?fieldManager="
    (await api("PATCH", f"{base}ann", deployment("a"), content=APPLY)).ok()
    containers = [{"name": "a", "env": [{"name": "X", "value": "1"}]}]
    partial = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "a"},
        "spec": {"template": {"spec": {"containers": containers}}},
    }
    found = (await api("PATCH", f"{base}bob", partial, content=APPLY)).ok()
    (container,) = found["spec"]["template"]["spec"]["containers"]
    assert (container["image"], container["env"]) == ("example.com/a:1", [{"name": "X", "value": "1"}])
    empty = {**partial, "spec": {}}
    found = (await api("PATCH", f"{base}bob", empty, content=APPLY)).ok()
    assert "env" not in found["spec"]["template"]["spec"]["containers"][0]


@pytest.mark.parametrize("query", ["", "?fieldManager="])
async def test_apply_needs_a_manager(api: Api, core: str, query: str) -> None:
    answer = await api("PATCH", f"{core}/configmaps/a{query}", configmap("a"), content=APPLY)
    assert answer.status in (400, 422)
    assert "fieldManager" in answer.body["message"]
