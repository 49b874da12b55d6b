"""Authentication and authorization: service accounts, roles, reviews."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from tests.support.conformance_api import APPLY, MERGE, TIMEOUT, Api, configmap

RBAC = "rbac.authorization.k8s.io/v1"


@pytest.fixture
async def robot(api: Api, core: str, as_token: Any) -> Any:
    """Raw requests as a service account without rights."""
    (await api("POST", f"{core}/serviceaccounts", {"metadata": {"name": "robot"}})).ok()
    request = {"spec": {"expirationSeconds": 600}}
    answer = await api("POST", f"{core}/serviceaccounts/robot/token", request)
    return as_token(answer.ok()["status"]["token"])


async def granted(api: Api, namespace: str, **rule: Any) -> None:
    """Gives the service account a role with one rule."""
    path = f"/apis/{RBAC}/namespaces/{namespace}"
    (await api("POST", f"{path}/roles", {"metadata": {"name": "r"}, "rules": [rule]})).ok()
    binding = {
        "metadata": {"name": "r"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "r"},
        "subjects": [{"kind": "ServiceAccount", "namespace": namespace, "name": "robot"}],
    }
    (await api("POST", f"{path}/rolebindings", binding)).ok()


async def test_without_a_role_nothing_is_allowed(robot: Api, core: str, namespace: str) -> None:
    user = f"system:serviceaccount:{namespace}:robot"
    text = (await robot("GET", f"{core}/configmaps")).refused(403, "Forbidden")
    assert text == (
        f'configmaps is forbidden: User "{user}" cannot list resource "configmaps" in API group "" in the namespace '
        f'"{namespace}"'
    )
    text = (await robot("GET", "/api/v1/nodes")).refused(403, "Forbidden")
    assert text.startswith(
        f'nodes is forbidden: User "{user}" cannot list resource "nodes" in API group "" at the cluster scope'
    )
    text = (await robot("DELETE", f"{core}/configmaps/a")).refused(403, "Forbidden")
    assert text.startswith(f'configmaps "a" is forbidden: User "{user}" cannot delete resource "configmaps"')


async def test_a_role_allows_what_it_says(api: Api, robot: Api, core: str, namespace: str) -> None:
    for name in ("a", "b"):
        (await api("POST", f"{core}/configmaps", configmap(name))).ok()
    await granted(api, namespace, apiGroups=[""], resources=["configmaps"], resourceNames=["a"], verbs=["get"])

    async def allowed(path: str) -> bool:
        return (await robot("GET", path)).status == 200

    await robot.until(f"{core}/configmaps/a", lambda answer: answer.status == 200)
    assert not await allowed(f"{core}/configmaps/b")
    assert not await allowed(f"{core}/configmaps")


async def test_a_named_object_may_be_listed_and_watched_by_its_name(
    api: Api, robot: Api, core: str, namespace: str
) -> None:
    for name in ("a", "b"):
        (await api("POST", f"{core}/configmaps", configmap(name))).ok()
    verbs = ["list", "watch", "patch", "create"]
    await granted(api, namespace, apiGroups=[""], resources=["configmaps"], resourceNames=["a"], verbs=verbs)
    mine = f"{core}/configmaps?fieldSelector=metadata.name=a"
    found = await robot.until(mine, lambda answer: answer.status == 200)
    assert [each["metadata"]["name"] for each in found.body["items"]] == ["a"]
    async with robot.watch(f"{mine}&resourceVersion={found.body['metadata']['resourceVersion']}") as watch:
        assert (await robot("PATCH", f"{core}/configmaps/a", {"data": {"k": "v"}}, content=MERGE)).status == 200
        assert await watch.names(1) == [("MODIFIED", "a")]
    for refused in (
        await robot("GET", f"{core}/configmaps"),
        await robot("GET", f"{core}/configmaps?fieldSelector=metadata.name=b"),
        await robot("GET", f"{core}/configmaps?labelSelector=a"),
        await robot("POST", f"{core}/configmaps", configmap("a")),
    ):
        refused.refused(403, "Forbidden")


async def test_reviews_agree_with_what_happens(api: Api, robot: Api, core: str, namespace: str) -> None:
    await granted(api, namespace, apiGroups=[""], resources=["pods"], verbs=["list"])
    await robot.until(f"{core}/pods", lambda answer: answer.status == 200)
    path = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
    for verb, wanted in (("list", True), ("delete", False)):
        asked = {"spec": {"resourceAttributes": {"namespace": namespace, "verb": verb, "resource": "pods"}}}
        answer = await robot("POST", path, asked)
        assert answer.status == 201
        assert answer.body["status"]["allowed"] is wanted
    rules = await robot(
        "POST", "/apis/authorization.k8s.io/v1/selfsubjectrulesreviews", {"spec": {"namespace": namespace}}
    )
    found = rules.ok()["status"]["resourceRules"]
    assert {"verbs": ["list"], "apiGroups": [""], "resources": ["pods"]} in found


async def test_who_am_i(robot: Api, namespace: str) -> None:
    answer = await robot("POST", "/apis/authentication.k8s.io/v1/selfsubjectreviews", {})
    user = answer.ok()["status"]["userInfo"]
    assert user["username"] == f"system:serviceaccount:{namespace}:robot"
    assert {"system:serviceaccounts", f"system:serviceaccounts:{namespace}", "system:authenticated"} <= set(
        user["groups"]
    )


async def test_a_token_ends_with_its_account(api: Api, robot: Api, core: str) -> None:
    assert (await robot("GET", "/version")).status == 200
    (await api("DELETE", f"{core}/serviceaccounts/robot")).ok()
    await robot.until(f"{core}/pods", lambda answer: answer.status == 401)


async def test_a_token_bound_to_a_pod_tells_its_pod_and_node(
    api: Api, core: str, unique: str, as_token: Any, cleanup: Any
) -> None:
    """Policies know by it on which node a process runs; ``ServiceAccountTokenPodNodeInfo``, on since 1.30."""
    cleanup(f"/api/v1/nodes/{unique}")
    node = (await api("POST", "/api/v1/nodes", {"metadata": {"name": unique}})).ok()["metadata"]
    pod = {"metadata": {"name": "p"}, "spec": {"nodeName": unique, "containers": [{"name": "a", "image": "e.com/a:1"}]}}
    pod = (await api("POST", f"{core}/pods", pod)).ok()["metadata"]
    ref = {"kind": "Pod", "apiVersion": "v1", "name": "p", "uid": pod["uid"]}
    request = {"spec": {"expirationSeconds": 600, "boundObjectRef": ref}}
    answer = await api("POST", f"{core}/serviceaccounts/default/token", request)
    bound = as_token(answer.ok()["status"]["token"])
    answer = await bound("POST", "/apis/authentication.k8s.io/v1/selfsubjectreviews", {})
    extra = answer.ok()["status"]["userInfo"]["extra"]
    about = "authentication.kubernetes.io/"
    assert extra[f"{about}pod-name"] == ["p"]
    assert extra[f"{about}pod-uid"] == [pod["uid"]]
    assert extra[f"{about}node-name"] == [unique]
    assert extra[f"{about}node-uid"] == [node["uid"]]
    assert extra[f"{about}credential-id"][0].startswith("JTI=")
    await api("DELETE", f"{core}/pods/p?gracePeriodSeconds=0")


async def test_a_token_bound_to_no_pod_tells_no_node(robot: Api) -> None:
    answer = await robot("POST", "/apis/authentication.k8s.io/v1/selfsubjectreviews", {})
    assert set(answer.ok()["status"]["userInfo"].get("extra", {})) <= {"authentication.kubernetes.io/credential-id"}


ROLE = {"rules": [{"apiGroups": [""], "resources": ["secrets"], "verbs": ["get"]}]}
HELD = {
    "apiGroups": [RBAC.partition("/")[0]],
    "resources": ["roles", "rolebindings"],
    "verbs": ["get", "create", "patch"],
}


async def as_robot(robot: Any, method: str, path: str, body: Any, **form: Any) -> Any:
    """The answer once the robot's new rights are in force."""
    return await until(
        lambda: robot(method, path, body, **form),
        lambda answer: answer.status != 403 or "cannot" not in answer.body["message"],
    )


async def until(send: Callable[[], Awaitable[Any]], found: Callable[[Any], bool]) -> Any:
    """The first answer that satisfies; new rights need a moment on a real server."""
    async with asyncio.timeout(TIMEOUT):
        while True:
            answer = await send()
            if found(answer):
                return answer
            await asyncio.sleep(0.05)


async def test_nobody_grants_a_right_that_they_do_not_have(api: Api, robot: Any, namespace: str) -> None:
    await granted(api, namespace, **HELD)
    roles = f"/apis/{RBAC}/namespaces/{namespace}/roles"
    wanted = {"metadata": {"name": "reader"}, **ROLE}
    text = (await as_robot(robot, "POST", roles, wanted)).refused(403, "Forbidden")
    user = f"system:serviceaccount:{namespace}:robot"
    assert text.startswith(f'roles.rbac.authorization.k8s.io "reader" is forbidden: user "{user}" (groups=[')
    assert text.endswith(
        "is attempting to grant RBAC permissions not currently held:\n"
        '{APIGroups:[""], Resources:["secrets"], Verbs:["get"]}'
    )
    own = {"metadata": {"name": "own"}, "rules": [HELD]}
    (await as_robot(robot, "POST", roles, own)).ok()
    text = (await robot("PATCH", f"{roles}/own", ROLE, content=MERGE)).refused(403, "Forbidden")
    assert '{APIGroups:[""], Resources:["secrets"], Verbs:["get"]}' in text
    (await robot("PATCH", f"{roles}/own", {"metadata": {"labels": {"a": "b"}}}, content=MERGE)).ok()


async def test_nobody_binds_a_role_with_rights_that_they_do_not_have(api: Api, robot: Any, namespace: str) -> None:
    place = f"/apis/{RBAC}/namespaces/{namespace}"
    (await api("POST", f"{place}/roles", {"metadata": {"name": "reader"}, **ROLE})).ok()
    await granted(api, namespace, **HELD)
    binding: dict[str, Any] = {
        "metadata": {"name": "reader"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "reader"},
        "subjects": [{"kind": "ServiceAccount", "namespace": namespace, "name": "robot"}],
    }
    text = (await as_robot(robot, "POST", f"{place}/rolebindings", binding)).refused(403, "Forbidden")
    assert "is attempting to grant RBAC permissions not currently held" in text
    missing = {**binding, "roleRef": {**binding["roleRef"], "name": "none"}}
    (await robot("POST", f"{place}/rolebindings", missing)).refused(404, "NotFound")
    bind = {
        "apiGroups": [RBAC.partition("/")[0]],
        "resources": ["roles"],
        "resourceNames": ["reader"],
        "verbs": ["bind"],
    }
    (await api("PATCH", f"{place}/roles/r", {"rules": [HELD, bind]}, content=MERGE)).ok()
    path = f"{place}/rolebindings"

    await until(lambda: robot("POST", path, binding), lambda answer: answer.status == 201)


async def test_the_verb_escalate_lets_its_holder_write_any_rules(api: Api, robot: Any, namespace: str) -> None:
    await granted(api, namespace, **{**HELD, "verbs": [*HELD["verbs"], "escalate"]})
    roles = f"/apis/{RBAC}/namespaces/{namespace}/roles"
    (await as_robot(robot, "POST", roles, {"metadata": {"name": "reader"}, **ROLE})).ok()


async def test_an_apply_creates_only_by_the_right_to_create_and_that_may_have_a_name(
    api: Api, robot: Any, core: str, namespace: str
) -> None:
    named = {"apiGroups": [""], "resources": ["configmaps"], "resourceNames": ["a"], "verbs": ["create", "patch"]}
    other = {"apiGroups": [""], "resources": ["configmaps"], "resourceNames": ["b"], "verbs": ["patch"]}
    await granted(api, namespace, **named)
    (await api("PATCH", f"/apis/{RBAC}/namespaces/{namespace}/roles/r", {"rules": [named, other]}, content=MERGE)).ok()

    async def applied(name: str) -> Any:
        body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}}
        return await robot("PATCH", f"{core}/configmaps/{name}?fieldManager=robot", body, content=APPLY)

    await until(lambda: applied("a"), lambda answer: answer.status in {200, 201})
    text = (await applied("b")).refused(403, "Forbidden")
    assert 'cannot create resource "configmaps"' in text or 'cannot patch resource "configmaps"' in text
