"""Roles, bindings, and the reviews that ask about them."""

from collections.abc import Iterable, Mapping
from typing import Any

import pytest

from tessera_lab.apiserver.authz.bootstrap_roles import bootstrap_roles
from tessera_lab.apiserver.authz.identity import service_account_user
from tessera_lab.apiserver.authz.rbac import RbacAuthorizer, rule_allows
from tessera_lab.apiserver.handlers.dispatch import review_access
from tessera_lab.apiserver.interfaces import Attributes, GroupResource, Obj, UserInfo
from tessera_lab.apiserver.status import StatusError

ANN = UserInfo(name="ann", groups=("dev", "system:authenticated"))
PLURALS = {
    "Role": "roles",
    "ClusterRole": "clusterroles",
    "RoleBinding": "rolebindings",
    "ClusterRoleBinding": "clusterrolebindings",
}


class Objects:
    """Roles and bindings in memory."""

    def __init__(self, objects: Iterable[Obj]) -> None:
        self._objects = list(objects)

    def get(self, resource: GroupResource, namespace: str, name: str) -> Mapping[str, Any] | None:
        return next((each for each in self.list(resource, namespace) if each["metadata"]["name"] == name), None)

    def list(self, resource: GroupResource, namespace: str | None = None) -> Iterable[Mapping[str, Any]]:
        for each in self._objects:
            home = each["metadata"].get("namespace", "")
            if PLURALS[each["kind"]] == resource.resource and namespace in (None, home):
                yield each

    def revision(self, resource: GroupResource) -> int:
        return 0


def role(*rules: Obj, kind: str = "ClusterRole", name: str = "r", namespace: str = "") -> Obj:
    return {"kind": kind, "metadata": {"name": name, "namespace": namespace}, "rules": list(rules)}


def bind(subject: Obj, *, kind: str = "ClusterRoleBinding", role: str = "ClusterRole", namespace: str = "") -> Obj:
    meta = {"name": "b", "namespace": namespace}
    return {"kind": kind, "metadata": meta, "roleRef": {"kind": role, "name": "r"}, "subjects": [subject]}


def user(name: str) -> Obj:
    return {"kind": "User", "name": name}


PODS = {"verbs": ["get", "list"], "apiGroups": [""], "resources": ["pods"]}


def ask(verb: str = "get", resource: str = "pods", *, who: UserInfo = ANN, **more: str) -> Attributes:
    return Attributes(user=who, verb=verb, resource=resource, **more)


@pytest.mark.parametrize(
    ("rule", "asked", "allowed"),
    [
        (PODS, ask("get"), True),
        (PODS, ask("delete"), False),
        (PODS, ask(group="apps"), False),
        (PODS, ask(subresource="status"), False),
        ({**PODS, "resources": ["pods/status"]}, ask(subresource="status"), True),
        ({**PODS, "resources": ["*/status"]}, ask(subresource="status"), True),
        ({**PODS, "resources": ["*"]}, ask(subresource="status"), True),
        ({**PODS, "resourceNames": ["a"]}, ask(name="a"), True),
        ({**PODS, "resourceNames": ["a"]}, ask(name="b"), False),
        ({**PODS, "resourceNames": ["a"]}, ask("list"), False),
        ({"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"]}, ask("patch", group="x", name="y"), True),
        ({"verbs": ["get"], "nonResourceURLs": ["/api/*"]}, ask(resource="", path="/api/v1"), True),
        ({"verbs": ["get"], "nonResourceURLs": ["/version"]}, ask(resource="", path="/version/x"), False),
        (PODS, ask(resource="", path="/version"), False),
    ],
)
def test_one_rule(rule: Obj, asked: Attributes, allowed: bool) -> None:
    assert rule_allows(rule, asked) is allowed


@pytest.mark.parametrize(
    ("subject", "who"),
    [
        (user("ann"), ANN),
        ({"kind": "Group", "name": "dev"}, ANN),
        ({"kind": "ServiceAccount", "name": "s", "namespace": "n"}, service_account_user("n", "s")),
        ({"kind": "Group", "name": "system:serviceaccounts:n"}, service_account_user("n", "s")),
    ],
)
def test_subjects(subject: Obj, who: UserInfo) -> None:
    found = RbacAuthorizer(Objects([role(PODS), bind(subject)]))
    assert found.authorize(ask(who=who)).allowed
    assert not found.authorize(ask(who=UserInfo(name="eve"))).allowed


def test_a_role_binding_reaches_its_namespace_only() -> None:
    objects = [
        role(PODS, kind="Role", namespace="n"),
        bind(user("ann"), kind="RoleBinding", role="Role", namespace="n"),
    ]
    found = RbacAuthorizer(Objects(objects))
    assert found.authorize(ask(namespace="n")).allowed
    assert not found.authorize(ask(namespace="m")).allowed
    assert not found.authorize(ask()).allowed


def test_a_role_binding_may_use_a_cluster_role() -> None:
    found = RbacAuthorizer(Objects([role(PODS), bind(user("ann"), kind="RoleBinding", namespace="n")]))
    assert found.authorize(ask(namespace="n")).allowed
    assert not found.authorize(ask(namespace="m")).allowed


def test_the_reason_names_the_binding_or_what_is_missing() -> None:
    found = RbacAuthorizer(Objects([role(PODS), bind(user("ann"))]))
    assert found.authorize(ask()).reason == 'RBAC: allowed by ClusterRoleBinding "b" of ClusterRole "r" to User "ann"'
    missing = RbacAuthorizer(Objects([bind(user("ann"))])).authorize(ask())
    assert not missing.allowed
    assert missing.reason == 'RBAC: clusterrole.rbac.authorization.k8s.io "r" not found'


def test_masters_need_no_binding() -> None:
    assert (
        RbacAuthorizer(Objects([])).authorize(ask("delete", who=UserInfo(name="x", groups=("system:masters",)))).allowed
    )


def test_what_every_authenticated_user_may_ask() -> None:
    found = RbacAuthorizer(Objects(bootstrap_roles()))
    assert found.authorize(ask(resource="", path="/apis/apps/v1")).allowed
    assert found.authorize(ask("create", "selfsubjectaccessreviews", group="authorization.k8s.io")).allowed
    assert not found.authorize(ask("create", "subjectaccessreviews", group="authorization.k8s.io")).allowed
    nobody = UserInfo(name="system:anonymous", groups=("system:unauthenticated",))
    assert found.authorize(ask(resource="", path="/version", who=nobody)).allowed
    assert not found.authorize(ask(resource="", path="/apis", who=nobody)).allowed


def test_access_reviews() -> None:
    found = RbacAuthorizer(Objects([role(PODS), bind(user("ann"))]))
    spec = {"resourceAttributes": {"verb": "get", "resource": "pods", "namespace": "n"}}
    assert review_access(spec, ANN, found)["allowed"] is True
    assert review_access(spec, UserInfo(name="eve"), found) == {"allowed": False}
    path = {"nonResourceAttributes": {"verb": "get", "path": "/version"}}
    assert review_access(path, ANN, found) == {"allowed": False}


def test_an_access_review_asks_exactly_one_thing() -> None:
    with pytest.raises(StatusError, match="exactly one"):
        review_access({}, ANN, RbacAuthorizer(Objects([])))


def test_rules_that_reach_a_user() -> None:
    found = RbacAuthorizer(Objects([role(PODS, {"verbs": ["get"], "nonResourceURLs": ["/x"]}), bind(user("ann"))]))
    resources, others = found.rules(ANN, "n")
    assert resources == [PODS]
    assert others == [{"verbs": ["get"], "nonResourceURLs": ["/x"]}]
