"""Identity and rights of clients: tokens, reviews, RBAC refusals, the audit log."""

from typing import Any

from tests.support.api_user import ApiUser, ManualClock

from tessera_lab.apiserver.main.server import ApiServer

ACCOUNTS = "/api/v1/namespaces/default/serviceaccounts"
REQUEST = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"expirationSeconds": 600}}


async def test_a_token_is_good_until_it_expires(server: ApiServer, api: ApiUser, clock: ManualClock) -> None:
    issued = await api("POST", f"{ACCOUNTS}/default/token", REQUEST)
    token = issued["status"]["token"]
    user = server.identities.authenticate(token)
    assert user is not None
    assert user.name == "system:serviceaccount:default:default"
    assert "system:serviceaccounts:default" in user.groups
    await clock.sleep(601)
    assert server.identities.authenticate(token) is None


async def test_forged_tokens_are_nobodys(server: ApiServer, api: ApiUser) -> None:
    token = (await api("POST", f"{ACCOUNTS}/default/token", REQUEST))["status"]["token"]
    assert server.identities.authenticate(token[:-2] + "xx") is None
    assert server.identities.authenticate("") is None
    assert server.identities.authenticate("a.b") is None


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
