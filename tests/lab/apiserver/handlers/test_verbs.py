"""get, list, create, update, patch, delete as any client sees them."""

from typing import Any

from tests.support.api_user import ApiUser

PODS = "/api/v1/namespaces/default/pods"
MAPS = "/api/v1/namespaces/default/configmaps"


async def test_create_sets_what_the_server_alone_sets(api: ApiUser, make_pod: Any) -> None:
    made = await api("POST", PODS, make_pod("a"))
    meta = made["metadata"]
    assert (meta["name"], meta["namespace"], meta["creationTimestamp"]) == ("a", "default", "2023-11-14T22:13:20Z")
    assert meta["uid"]
    assert int(meta["resourceVersion"]) > 1
    assert made["status"]["phase"] == "Pending"


async def test_a_taken_name_is_refused(api: ApiUser, make_map: Any) -> None:
    await api("POST", MAPS, make_map("a"))
    refused = await api("POST", MAPS, make_map("a"))
    assert (refused["code"], refused["reason"]) == (409, "AlreadyExists")
    assert refused["message"] == 'configmaps "a" already exists'


async def test_generate_name_makes_names_that_differ(api: ApiUser, make_pod: Any) -> None:
    names = {(await api("POST", PODS, make_pod()))["metadata"]["name"] for _ in range(20)}
    assert len(names) == 20
    assert all(name.startswith("pod-") and len(name) == 9 for name in names)


async def test_a_missing_object_is_404(api: ApiUser) -> None:
    refused = await api("GET", f"{PODS}/ghost")
    assert (refused["code"], refused["message"]) == (404, 'pods "ghost" not found')


async def test_a_missing_namespace_is_404(api: ApiUser, make_map: Any) -> None:
    refused = await api("POST", "/api/v1/namespaces/nowhere/configmaps", make_map("a"))
    assert refused["message"] == 'namespaces "nowhere" not found'


async def test_an_update_from_an_old_version_conflicts(api: ApiUser, make_map: Any) -> None:
    first = await api("POST", MAPS, make_map("a", x="1"))
    await api.merge(f"{MAPS}/a", {"data": {"x": "2"}})
    refused = await api("PUT", f"{MAPS}/a", first)
    assert refused["code"] == 409
    assert refused["message"] == (
        'Operation cannot be fulfilled on configmaps "a": the object has been modified; '
        "please apply your changes to the latest version and try again"
    )


async def test_a_write_that_changes_nothing_keeps_the_version(api: ApiUser, make_map: Any) -> None:
    first = await api("POST", MAPS, make_map("a", x="1"))
    again = await api.merge(f"{MAPS}/a", {"data": {"x": "1"}})
    assert again["metadata"]["resourceVersion"] == first["metadata"]["resourceVersion"]


async def test_a_wrong_uid_is_a_conflict_in_a_put_and_invalid_in_a_patch(api: ApiUser, make_map: Any) -> None:
    made = await api("POST", MAPS, make_map("a"))
    made["metadata"]["uid"] = "other"
    refused = await api("PUT", f"{MAPS}/a", made)
    assert refused["code"] == 409
    assert "Precondition failed: UID in precondition: other" in refused["message"]
    refused = await api.merge(f"{MAPS}/a", {"metadata": {"uid": "other"}, "data": {"x": "1"}})
    assert refused["code"] == 422
    assert [cause["field"] for cause in refused["details"]["causes"]] == ["metadata.uid"]


async def test_status_is_written_through_its_subresource_only(api: ApiUser, make_pod: Any) -> None:
    await api("POST", PODS, make_pod("a"))
    await api.merge(f"{PODS}/a", {"status": {"phase": "Running"}})
    assert (await api("GET", f"{PODS}/a"))["status"]["phase"] == "Pending"
    await api.merge(f"{PODS}/a/status", {"status": {"phase": "Running"}, "spec": {"nodeName": "n"}})
    now = await api("GET", f"{PODS}/a")
    assert now["status"]["phase"] == "Running"
    assert "nodeName" not in now["spec"]


async def test_delete_of_a_plain_object_answers_success(api: ApiUser, make_map: Any) -> None:
    made = await api("POST", MAPS, make_map("a"))
    done = await api("DELETE", f"{MAPS}/a")
    assert done["status"] == "Success"
    assert done["details"] == {"name": "a", "kind": "configmaps", "uid": made["metadata"]["uid"]}
    assert (await api("GET", f"{MAPS}/a"))["code"] == 404


async def test_a_running_pod_dies_when_kubelet_confirms(api: ApiUser, make_pod: Any) -> None:
    await api("POST", PODS, make_pod("a", nodeName="n", terminationGracePeriodSeconds=7))
    dying = await api("DELETE", f"{PODS}/a")
    assert dying["metadata"]["deletionGracePeriodSeconds"] == 7
    assert dying["metadata"]["deletionTimestamp"] == "2023-11-14T22:13:27Z"
    await api("DELETE", f"{PODS}/a", {"gracePeriodSeconds": 0})
    assert (await api("GET", f"{PODS}/a"))["code"] == 404


async def test_finalizers_hold_an_object_until_the_last_is_gone(api: ApiUser, make_map: Any) -> None:
    held = make_map("a")
    held["metadata"]["finalizers"] = ["example.com/hold"]
    await api("POST", MAPS, held)
    await api("DELETE", f"{MAPS}/a")
    assert (await api("GET", f"{MAPS}/a"))["metadata"]["deletionTimestamp"]
    refused = await api.merge(f"{MAPS}/a", {"metadata": {"finalizers": ["example.com/hold", "example.com/b"]}})
    assert "no new finalizers can be added if the object is being deleted" in refused["message"]
    await api.merge(f"{MAPS}/a", {"metadata": {"finalizers": None}})
    assert (await api("GET", f"{MAPS}/a"))["code"] == 404


async def test_unknown_paths_and_verbs_are_refused(api: ApiUser) -> None:
    assert (await api("GET", "/api/v1/podss"))["code"] == 404
    assert (await api("GET", f"{PODS}/a/ghost"))["code"] == 404
    assert (await api("GET", f"{PODS}/a/attach"))["code"] == 501
    assert (await api("PUT", PODS, {}))["code"] == 405
    assert (await api("PATCH", f"{PODS}/a", {}, "text/plain"))["code"] == 415


async def test_lists_are_paged_from_one_consistent_state(api: ApiUser, make_map: Any) -> None:
    for name in "abcd":
        await api("POST", MAPS, make_map(name))
    first = await api("GET", f"{MAPS}?limit=2")
    assert [item["metadata"]["name"] for item in first["items"]] == ["a", "b"]
    assert first["metadata"]["remainingItemCount"] == 2
    await api("DELETE", f"{MAPS}/c")
    rest = await api("GET", f"{MAPS}?limit=2&continue={first['metadata']['continue']}")
    assert [item["metadata"]["name"] for item in rest["items"]] == ["c", "d"]
    assert rest["metadata"]["resourceVersion"] == first["metadata"]["resourceVersion"]


async def test_selectors(api: ApiUser, make_pod: Any) -> None:
    for name, node in (("a", "n1"), ("b", "n2"), ("c", "n1")):
        made = make_pod(name, nodeName=node)
        made["metadata"]["labels"] = {"app": name}
        await api("POST", PODS, made)
    by_node = await api("GET", f"{PODS}?fieldSelector=spec.nodeName%3Dn1".replace("%3D", "="))
    assert [item["metadata"]["name"] for item in by_node["items"]] == ["a", "c"]
    by_label = await api("GET", f"{PODS}?labelSelector=app in (a,b),app!=a")
    assert [item["metadata"]["name"] for item in by_label["items"]] == ["b"]
    refused = await api("GET", f"{PODS}?fieldSelector=spec.color=red")
    assert (refused["code"], refused["message"]) == (400, "field label not supported: spec.color")


async def test_a_node_registers_with_its_status(api: ApiUser) -> None:
    node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n"}, "status": {"capacity": {"cpu": "1000m"}}}
    assert (await api("POST", "/api/v1/nodes", node))["status"]["capacity"] == {"cpu": "1"}


async def test_events_have_two_faces_and_one_storage(api: ApiUser) -> None:
    path = "/apis/events.k8s.io/v1/namespaces/default/events"
    event = {
        "apiVersion": "events.k8s.io/v1",
        "kind": "Event",
        "metadata": {"name": "e"},
        "eventTime": "2026-01-01T00:00:00.000000Z",
        "regarding": {"kind": "Pod", "name": "p", "namespace": "default"},
        "note": "hello",
        "reason": "Because",
        "type": "Normal",
        "action": "Acting",
        "reportingController": "me",
        "reportingInstance": "me-0",
    }
    made = await api("POST", path, event)
    assert (made["apiVersion"], made["note"]) == ("events.k8s.io/v1", "hello")
    core = await api("GET", "/api/v1/namespaces/default/events?fieldSelector=involvedObject.name=p")
    assert [(e["apiVersion"], e["message"], e["reportingComponent"]) for e in core["items"]] == [("v1", "hello", "me")]


async def test_an_update_is_checked_where_it_changes(api: ApiUser) -> None:
    deployments = "/apis/apps/v1/namespaces/default/deployments"
    labels = {"app": "web"}
    spec = {
        "selector": {"matchLabels": labels},
        "template": {"metadata": {"labels": labels}, "spec": {"containers": [{"name": "c", "image": "i"}]}},
    }
    made = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web"}, "spec": spec}
    await api("POST", deployments, made)
    now = await api.merge(f"{deployments}/web", {"spec": {"replicas": 3, "colour": "red"}})
    assert now["spec"]["replicas"] == 3
    assert "colour" not in now["spec"]
    assert "unknown field" in api.headers["warning"]
    back = await api.merge(f"{deployments}/web", {"spec": {"replicas": None}})
    assert back["spec"]["replicas"] == 1
    assert back["metadata"]["generation"] == 3
    assert (await api.merge(f"{deployments}/web", {"spec": {"replicas": "x"}}))["code"] == 400
    assert (await api.merge(f"{deployments}/web", {"spec": {"selector": None}}))["code"] == 422
    assert (await api.merge(f"{deployments}/web", {"spec": {"template": None}}))["code"] == 422
    assert (await api.merge(f"{deployments}/web", {"spec": None}))["code"] == 422


async def test_a_new_object_brings_no_version(api: ApiUser, make_map: Any) -> None:
    made = make_map("a")
    made["metadata"]["resourceVersion"] = "5"
    refused = await api("POST", MAPS, made)
    assert (refused["code"], refused["message"]) == (500, "resourceVersion should not be set on objects to be created")
