"""ClusterRoles that are aggregated by labels, and the roles that every cluster has for its users."""

from collections.abc import Callable
from typing import Any

import pytest
from tests.support.conformance_api import MERGE, Api

ROLES = "/apis/rbac.authorization.k8s.io/v1/clusterroles"
LABEL = "rbac.authorization.k8s.io/aggregate-to-"


def has(answer: Any, rule: Any) -> bool:
    return answer.status == 200 and rule in (answer.body.get("rules") or ())


def rule(unique: str, *verbs: str) -> dict[str, Any]:
    return {"apiGroups": ["example.com"], "resources": [unique], "verbs": list(verbs)}


def allows(role: Any, verb: str, group: str, resource: str) -> bool:
    return any(
        verb in each["verbs"] and group in each.get("apiGroups", ()) and resource in each.get("resources", ())
        for each in role["rules"]
    )


async def test_an_aggregated_role_has_the_rules_of_the_roles_it_selects(
    api: Api, unique: str, cleanup: Callable[[str], None]
) -> None:
    cleanup(f"{ROLES}/{unique}")
    cleanup(f"{ROLES}/{unique}-a")
    label = f"example.com/{unique}"
    whole = {
        "metadata": {"name": unique},
        "aggregationRule": {"clusterRoleSelectors": [{"matchLabels": {label: "true"}}]},
    }
    (await api("POST", ROLES, whole)).ok()
    first, second = rule(unique, "get"), rule(unique, "list")
    part = {"metadata": {"name": f"{unique}-a", "labels": {label: "true"}}, "rules": [first]}
    (await api("POST", ROLES, part)).ok()
    await api.until(f"{ROLES}/{unique}", lambda answer: has(answer, first))

    (await api("PATCH", f"{ROLES}/{unique}-a", {"rules": [second]}, content=MERGE)).ok()
    await api.until(f"{ROLES}/{unique}", lambda answer: has(answer, second) and not has(answer, first))

    (await api("PATCH", f"{ROLES}/{unique}", {"rules": [first]}, content=MERGE)).ok()
    await api.until(f"{ROLES}/{unique}", lambda answer: has(answer, second) and not has(answer, first))

    (await api("DELETE", f"{ROLES}/{unique}-a")).ok()
    await api.until(f"{ROLES}/{unique}", lambda answer: not answer.body.get("rules"))


async def test_a_label_adds_rules_to_view_and_so_to_edit_and_admin(
    api: Api, unique: str, cleanup: Callable[[str], None]
) -> None:
    cleanup(f"{ROLES}/{unique}")
    added = rule(unique, "get")
    part = {"metadata": {"name": unique, "labels": {f"{LABEL}view": "true"}}, "rules": [added]}
    (await api("POST", ROLES, part)).ok()
    for name in ("view", "edit", "admin"):
        await api.until(f"{ROLES}/{name}", lambda answer: has(answer, added))
    (await api("DELETE", f"{ROLES}/{unique}")).ok()
    for name in ("view", "edit", "admin"):
        await api.until(f"{ROLES}/{name}", lambda answer: not has(answer, added))


@pytest.mark.parametrize(
    ("verb", "group", "resource", "least"),
    [
        ("list", "", "pods", "view"),
        ("get", "", "pods/log", "view"),
        ("watch", "apps", "deployments", "view"),
        ("get", "batch", "jobs/status", "view"),
        ("list", "networking.k8s.io", "networkpolicies", "view"),
        ("create", "", "pods", "edit"),
        ("get", "", "secrets", "edit"),
        ("create", "", "pods/eviction", "edit"),
        ("update", "coordination.k8s.io", "leases", "edit"),
        ("create", "rbac.authorization.k8s.io", "rolebindings", "admin"),
        ("list", "", "nodes", ""),
        ("update", "", "resourcequotas", ""),
        ("create", "rbac.authorization.k8s.io", "clusterroles", ""),
    ],
)
async def test_the_roles_for_users_allow_what_they_should(
    api: Api, verb: str, group: str, resource: str, least: str
) -> None:
    names = ("view", "edit", "admin")
    roles = {name: (await api("GET", f"{ROLES}/{name}")).ok() for name in names}
    expected = names[names.index(least) :] if least else ()
    assert tuple(name for name in names if allows(roles[name], verb, group, resource)) == expected


@pytest.mark.parametrize(
    ("rule", "field"),
    [
        ({"clusterRoleSelectors": []}, "aggregationRule.clusterRoleSelectors"),
        ({"clusterRoleSelectors": [{"matchExpressions": [{"key": "a", "operator": "Is"}]}]}, "operator"),
        ({"clusterRoleSelectors": [{"matchExpressions": [{"key": "a", "operator": "In"}]}]}, "values"),
    ],
)
async def test_a_rule_that_selects_nothing_is_refused(api: Api, unique: str, rule: Any, field: str) -> None:
    text = (await api("POST", ROLES, {"metadata": {"name": unique}, "aggregationRule": rule})).refused(422, "Invalid")
    assert field in text
