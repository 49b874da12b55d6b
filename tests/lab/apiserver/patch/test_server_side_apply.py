"""Server-side apply as kubectl and controllers rely on it."""

from typing import Any

from tests.support.api_user import ApiUser

MAPS = "/api/v1/namespaces/default/configmaps"
DEPLOYMENTS = "/apis/apps/v1/namespaces/default/deployments"
APPLY = "application/apply-patch+yaml"


def manager(obj: Any, name: str, operation: str = "Apply") -> Any:
    found = [e for e in obj["metadata"]["managedFields"] if (e["manager"], e["operation"]) == (name, operation)]
    return found[0]["fieldsV1"] if found else None


def deployment(*containers: Any, **spec: Any) -> Any:
    labels = {"app": "web"}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "web"},
        "spec": {
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": {"containers": list(containers)}},
            **spec,
        },
    }


async def test_containers_merge_by_name_and_leave_with_their_last_owner(api: ApiUser) -> None:
    one, two = {"name": "one", "image": "a"}, {"name": "two", "image": "b"}
    await api("PATCH", f"{DEPLOYMENTS}/web?fieldManager=me", deployment(one, two), APPLY)
    now = await api("PATCH", f"{DEPLOYMENTS}/web?fieldManager=me", deployment(one), APPLY)
    assert [c["name"] for c in now["spec"]["template"]["spec"]["containers"]] == ["one"]
    owned = manager(now, "me")["f:spec"]["f:template"]["f:spec"]["f:containers"]
    assert owned == {'k:{"name":"one"}': {".": {}, "f:image": {}, "f:name": {}}}


async def test_status_and_main_resource_have_managers_of_their_own(api: ApiUser, make_pod: Any) -> None:
    pods = "/api/v1/namespaces/default/pods"
    await api("POST", f"{pods}?fieldManager=me", make_pod("a"))
    status = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a"}, "status": {"message": "hi"}}
    now = await api("PATCH", f"{pods}/a/status?fieldManager=kubelet", status, APPLY)
    assert now["status"]["message"] == "hi"
    entry = next(e for e in now["metadata"]["managedFields"] if e["manager"] == "kubelet")
    assert (entry["subresource"], entry["fieldsV1"]) == ("status", {"f:status": {"f:message": {}}})


async def test_an_amount_in_other_words_is_no_conflict(api: ApiUser) -> None:
    container = {"name": "one", "image": "a", "resources": {"limits": {"nvidia.com/gpu": 1, "cpu": 0.5}}}
    await api("PATCH", f"{DEPLOYMENTS}/web?fieldManager=me", deployment(container), APPLY)
    answer = await api.raw("PATCH", f"{DEPLOYMENTS}/web?fieldManager=you", deployment(container), APPLY)
    assert answer.status == 200


async def test_who_writes_an_object_may_write_who_owns_its_fields(api: ApiUser, make_map: Any) -> None:
    made = await api("PATCH", f"{MAPS}/a?fieldManager=me", make_map("a", x="1", y="2"), APPLY)
    (entry,) = made["metadata"]["managedFields"]
    patch = {"metadata": {"managedFields": [{**entry, "manager": "you"}]}}
    given = await api("PATCH", f"{MAPS}/a?fieldManager=other", patch, "application/merge-patch+json")
    assert (manager(given, "me"), manager(given, "you")) == (None, entry["fieldsV1"])
    now = await api("PATCH", f"{MAPS}/a?fieldManager=you", make_map("a", x="1"), APPLY)
    assert now["data"] == {"x": "1"}
    reset: Any = {"metadata": {"managedFields": [{}]}}
    emptied = await api("PATCH", f"{MAPS}/a?fieldManager=other", reset, "application/merge-patch+json")
    assert "managedFields" not in emptied["metadata"]


async def test_owners_that_make_no_sense_change_none(api: ApiUser, make_map: Any) -> None:
    made = await api("PATCH", f"{MAPS}/a?fieldManager=me", make_map("a", x="1"), APPLY)
    for nonsense in ([], [{"manager": "you"}]):
        patch = {"metadata": {"managedFields": nonsense}}
        now = await api("PATCH", f"{MAPS}/a?fieldManager=other", patch, "application/merge-patch+json")
        assert manager(now, "me") == manager(made, "me")
