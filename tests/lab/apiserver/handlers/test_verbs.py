"""What this server does beside the rules of Kubernetes that tests/conformance holds."""

from typing import Any

from tests.support.api_user import ApiUser

PODS = "/api/v1/namespaces/default/pods"
MAPS = "/api/v1/namespaces/default/configmaps"


async def test_a_running_pod_dies_when_kubelet_confirms(api: ApiUser, make_pod: Any) -> None:
    await api("POST", PODS, make_pod("a", nodeName="n", terminationGracePeriodSeconds=7))
    dying = await api("DELETE", f"{PODS}/a")
    assert dying["metadata"]["deletionGracePeriodSeconds"] == 7
    assert dying["metadata"]["deletionTimestamp"] == "2023-11-14T22:13:27Z"
    await api("DELETE", f"{PODS}/a", {"gracePeriodSeconds": 0})
    assert (await api("GET", f"{PODS}/a"))["code"] == 404


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


async def test_what_it_does_not_serve_is_refused(api: ApiUser) -> None:
    assert (await api("GET", f"{PODS}/a/ghost"))["code"] == 404
    assert (await api("GET", f"{PODS}/a/attach"))["code"] == 501


async def test_a_page_says_how_many_objects_follow(api: ApiUser, make_map: Any) -> None:
    for name in "abc":
        await api("POST", MAPS, make_map(name))
    assert (await api("GET", f"{MAPS}?limit=2"))["metadata"]["remainingItemCount"] == 1


async def test_a_field_that_selects_nothing_is_named(api: ApiUser) -> None:
    refused = await api("GET", f"{PODS}?fieldSelector=spec.color=red")
    assert (refused["code"], refused["message"]) == (400, "field label not supported: spec.color")
