"""Identity and rights of clients: tokens, reviews, RBAC refusals, the audit log."""

from typing import Any

import pytest
from tests.support.api_user import ApiUser, ManualClock

from tessera_lab.apiserver.authz.identity import service_account_user
from tessera_lab.apiserver.interfaces import UserInfo
from tessera_lab.apiserver.main.inprocess_transport import InProcessTransport
from tessera_lab.apiserver.main.server import ApiServer

ACCOUNTS = "/api/v1/namespaces/default/serviceaccounts"
REQUEST = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"expirationSeconds": 600}}


@pytest.fixture
def nobody(server: ApiServer, api: ApiUser) -> Any:
    other = type(api)(server)
    other.transport = InProcessTransport(server, UserInfo(name="nobody", groups=("system:authenticated",)))
    return other


async def test_a_token_is_good_until_it_expires(server: ApiServer, api: ApiUser, clock: ManualClock) -> None:
    issued = await api("POST", f"{ACCOUNTS}/default/token", REQUEST)
    token = issued["status"]["token"]
    user = server.identities.authenticate(token)
    assert user is not None
    assert user.name == "system:serviceaccount:default:default"
    assert "system:serviceaccounts:default" in user.groups
    await clock.sleep(601)
    assert server.identities.authenticate(token) is None


async def test_a_token_ends_with_its_account(server: ApiServer, api: ApiUser) -> None:
    await api("POST", ACCOUNTS, {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "z"}})
    token = (await api("POST", f"{ACCOUNTS}/z/token", REQUEST))["status"]["token"]
    await api("DELETE", f"{ACCOUNTS}/z")
    assert server.identities.authenticate(token) is None


async def test_forged_tokens_are_nobodys(server: ApiServer, api: ApiUser) -> None:
    token = (await api("POST", f"{ACCOUNTS}/default/token", REQUEST))["status"]["token"]
    assert server.identities.authenticate(token[:-2] + "xx") is None
    assert server.identities.authenticate("") is None
    assert server.identities.authenticate("a.b") is None


async def test_what_is_not_allowed_is_refused_in_rbacs_words(nobody: Any) -> None:
    refused = await nobody("GET", "/api/v1/namespaces/default/pods/a")
    assert (refused["code"], refused["reason"]) == (403, "Forbidden")
    assert refused["message"] == (
        'pods "a" is forbidden: User "nobody" cannot get resource "pods" in API group "" in the namespace "default"'
    )


async def test_a_role_binding_opens_its_namespace(server: ApiServer, api: ApiUser, nobody: Any) -> None:
    rbac = "/apis/rbac.authorization.k8s.io/v1"
    rules = [{"apiGroups": [""], "resources": ["pods"], "verbs": ["list"]}]
    role = {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRole",
        "metadata": {"name": "r"},
        "rules": rules,
    }
    await api("POST", f"{rbac}/clusterroles", role)
    binding = {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "RoleBinding",
        "metadata": {"name": "b"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "r"},
        "subjects": [{"kind": "User", "name": "nobody"}],
    }
    await api("POST", f"{rbac}/namespaces/default/rolebindings", binding)
    assert (await nobody("GET", "/api/v1/namespaces/default/pods"))["items"] == []
    assert (await nobody("GET", "/api/v1/pods"))["code"] == 403


async def test_reviews(api: ApiUser, nobody: Any) -> None:
    asked = {"resourceAttributes": {"verb": "create", "resource": "pods", "namespace": "default"}}
    review = {"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview", "spec": asked}
    path = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
    assert (await api("POST", path, review))["status"]["allowed"] is True
    assert (await nobody("POST", path, review))["status"]["allowed"] is False
    me = {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}
    who = await nobody("POST", "/apis/authentication.k8s.io/v1/selfsubjectreviews", me)
    assert who["status"]["userInfo"]["username"] == "nobody"


async def test_the_audit_log_tells_writes_from_reads(server: ApiServer, api: ApiUser, make_pod: Any) -> None:
    server.audit.clear()
    pods = "/api/v1/namespaces/default/pods"
    await api("POST", pods, make_pod("a"))
    await api("GET", f"{pods}/a")
    await api.merge(f"{pods}/a/status", {"status": {"phase": "Running"}})
    await api("DELETE", f"{pods}/ghost")
    assert [(e.verb, e.subresource, e.code) for e in server.audit.writes(resource="pods", name="a")] == [
        ("patch", "status", 200)
    ]
    assert server.audit.verbs["admin", "create", "pods", ""] == 1
    assert server.audit.codes[404] == 1


def test_a_service_accounts_groups() -> None:
    assert service_account_user("ns", "a").groups == (
        "system:serviceaccounts",
        "system:serviceaccounts:ns",
        "system:authenticated",
    )
