"""Nobody grants more than they have; the conformance tests ask a server the same."""

from collections.abc import Mapping
from typing import Any

import pytest

from tessera_lab.apiserver.authz.escalation import Grant, check_grant
from tessera_lab.apiserver.authz.rbac import (
    BINDINGS,
    CLUSTER_BINDINGS,
    CLUSTER_ROLES,
    EVERYTHING,
    GROUP,
    ROLES,
    RbacAuthorizer,
)
from tessera_lab.apiserver.interfaces import GroupResource, UserInfo
from tessera_lab.apiserver.status import StatusError

Obj = Mapping[str, Any]

ANN = UserInfo(name="ann", groups=("system:authenticated",))
SECRETS = {"apiGroups": [""], "resources": ["secrets"], "verbs": ["get"]}
PODS = {"apiGroups": [""], "resources": ["pods", "pods/log"], "verbs": ["get", "list"]}


class Objects:
    """Ann's rights, and a ClusterRole that may be bound."""

    def __init__(self, *rules: Obj, kind: str = "ClusterRoleBinding") -> None:
        self._roles = {"held": rules, "secrets": (SECRETS,)}
        self._kind = kind

    def get(self, resource: GroupResource, namespace: str, name: str) -> Obj | None:
        rules = self._roles.get(name)
        return None if rules is None or resource != CLUSTER_ROLES else {"metadata": {"name": name}, "rules": rules}

    def list(self, resource: GroupResource, namespace: str | None = None) -> list[Obj]:
        wanted = CLUSTER_BINDINGS if self._kind == "ClusterRoleBinding" else BINDINGS
        if resource != wanted or (namespace is not None and namespace != "n" and wanted == BINDINGS):
            return []
        reference = {"apiGroup": GROUP, "kind": "ClusterRole", "name": "held"}
        return [{"metadata": {"name": "b"}, "roleRef": reference, "subjects": [{"kind": "User", "name": "ann"}]}]

    def revision(self, resource: GroupResource) -> int:
        return 0


def refused(
    resource: GroupResource, obj: Obj, *held: Obj, old: Obj | None = None, kind: str = "ClusterRoleBinding"
) -> str:
    """The refusal of Ann's write in namespace n; empty if it is allowed."""
    objects: Any = Objects(*held, kind=kind)
    namespace = "n" if resource in {ROLES, BINDINGS} else ""
    grant = Grant(user=ANN, resource=resource, namespace=namespace, obj=obj, old=old)
    try:
        check_grant(grant, RbacAuthorizer(objects), objects)
    except StatusError as error:
        return str(error.status["message"])
    return ""


def role(*rules: Obj, **metadata: Any) -> Obj:
    return {"metadata": {"name": "r", **metadata}, "rules": list(rules)}


def binding(name: str) -> Obj:
    return {"metadata": {"name": "b"}, "roleRef": {"apiGroup": GROUP, "kind": "ClusterRole", "name": name}}


def verb(which: str, plural: str, name: str) -> Obj:
    return {"apiGroups": [GROUP], "resources": [plural], "resourceNames": [name], "verbs": [which]}


def test_a_role_needs_each_of_its_rights() -> None:
    assert refused(CLUSTER_ROLES, role(PODS), PODS) == ""
    assert refused(CLUSTER_ROLES, role(PODS), {**PODS, "verbs": ["*"]}) == ""
    text = refused(CLUSTER_ROLES, role(PODS), {**PODS, "resources": ["pods"]})
    assert text.endswith(
        'not currently held:\n{APIGroups:[""], Resources:["pods/log"], Verbs:["get"]}\n'
        '{APIGroups:[""], Resources:["pods/log"], Verbs:["list"]}'
    )
    assert text.startswith('clusterroles.rbac.authorization.k8s.io "r" is forbidden: user "ann" (groups=["system:auth')


def test_a_right_with_names_grants_these_names_only() -> None:
    named = {**SECRETS, "resourceNames": ["a"]}
    assert refused(ROLES, role(named), named) == ""
    assert refused(ROLES, role(named), SECRETS) == ""
    assert 'ResourceNames:["b"]' in refused(ROLES, role({**SECRETS, "resourceNames": ["b"]}), named)
    assert 'Resources:["secrets"], Verbs' in refused(ROLES, role(SECRETS), named)


def test_a_path_is_a_right_too() -> None:
    metrics = {"nonResourceURLs": ["/metrics"], "verbs": ["get"]}
    assert refused(CLUSTER_ROLES, role(metrics), metrics) == ""
    assert 'NonResourceURLs:["/metrics"]' in refused(CLUSTER_ROLES, role(metrics), PODS)


def test_rights_in_a_namespace_grant_nothing_in_the_cluster() -> None:
    assert refused(ROLES, role(PODS), PODS, kind="RoleBinding") == ""
    assert "not currently held" in refused(CLUSTER_ROLES, role(PODS), PODS, kind="RoleBinding")


@pytest.mark.parametrize(
    ("held", "allowed"), [(SECRETS, True), (verb("bind", "clusterroles", "secrets"), True), (PODS, False)]
)
def test_a_binding_needs_the_rights_of_its_role_or_the_verb_bind(held: Obj, allowed: bool) -> None:
    assert (refused(BINDINGS, binding("secrets"), held) == "") is allowed


def test_escalate_lets_its_holder_write_anything_into_one_role() -> None:
    assert refused(CLUSTER_ROLES, role(SECRETS), verb("escalate", "clusterroles", "r")) == ""
    assert refused(CLUSTER_ROLES, role(SECRETS), verb("escalate", "clusterroles", "other")) != ""


def test_a_role_that_gathers_rules_needs_all_rights() -> None:
    gathers = {**role(), "aggregationRule": {"clusterRoleSelectors": [{"matchLabels": {"a": "b"}}]}}
    text = "must have cluster-admin privileges to use the aggregationRule"
    assert refused(CLUSTER_ROLES, gathers, {**PODS, "verbs": ["*"]}).endswith(text)
    assert refused(CLUSTER_ROLES, role(), PODS, old=gathers).endswith(text)
    assert refused(CLUSTER_ROLES, gathers, *EVERYTHING) == ""
    assert refused(CLUSTER_ROLES, gathers, verb("escalate", "clusterroles", "r")) == ""


def test_a_write_that_grants_nothing_new_is_not_checked() -> None:
    assert refused(CLUSTER_ROLES, role(SECRETS, labels={"a": "b"}), old=role(SECRETS)) == ""
    assert refused(CLUSTER_ROLES, role(SECRETS, PODS), old=role(SECRETS)) != ""
    owned = {**binding("secrets"), "metadata": {"name": "b", "ownerReferences": [{"uid": "1"}]}}
    assert refused(BINDINGS, owned, old=binding("secrets")) == ""
    assert refused(GroupResource("", "pods"), role(SECRETS)) == ""
