"""Keeps the rules of aggregated ClusterRoles: the union of the rules of the ClusterRoles that their selectors choose.

As kube-controller-manager's clusterrole-aggregation-controller does it, but inside the write: sources in the order of
their names, equal rules once, never a role itself. Roles that aggregate each other in a circle are settled within as
many rounds as there are aggregated roles; what would change after them is left as it is.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from tessera_lab.apiserver.authz.rbac import CLUSTER_ROLES
from tessera_lab.apiserver.pods.binding_and_eviction import label_selector_matches
from tessera_lab.apiserver.request.server_state import ServerState
from tessera_lab.apiserver.storage.store import Change, deep_copy

Role = Mapping[str, Any]
Rules = Sequence[Mapping[str, Any]]


def aggregate_rules(roles: Sequence[Role]) -> Mapping[str, Rules]:
    """The rules of each aggregated role, by its name."""
    ordered = sorted(roles, key=lambda role: str(role["metadata"]["name"]))
    sources = {_name(role): [_name(each) for each in ordered if _selects(role, each)] for role in ordered if _is(role)}
    rules: dict[str, Rules] = {_name(role): role.get("rules") or () for role in ordered}
    for _ in range(len(sources) + 1):
        before = dict(rules)
        for name, chosen in sources.items():
            rules[name] = _unite([rules[each] for each in chosen])
        if rules == before:
            break
    return {name: rules[name] for name in sources}


def _is(role: Role) -> bool:
    return bool((role.get("aggregationRule") or {}).get("clusterRoleSelectors"))


def _name(role: Role) -> str:
    return str(role["metadata"]["name"])


def _selects(role: Role, source: Role) -> bool:
    labels = source["metadata"].get("labels") or {}
    selectors = role["aggregationRule"]["clusterRoleSelectors"]
    return role is not source and any(label_selector_matches(each, labels) for each in selectors)


def _unite(parts: Sequence[Rules]) -> Rules:
    found: list[Mapping[str, Any]] = []
    for rules in parts:
        found += [rule for rule in rules if rule not in found]
    return found


def keep_aggregated(core: ServerState) -> None:
    """Stores the rules of aggregated ClusterRoles whenever a ClusterRole changes."""

    def on_change(_: Change) -> None:
        for name, rules in aggregate_rules([each.obj for each in core.store.select(CLUSTER_ROLES, None)]).items():
            stored = core.store.find(CLUSTER_ROLES, "", name)
            if stored is not None and list(stored.obj.get("rules") or ()) != list(rules):
                core.store.put(CLUSTER_ROLES, deep_copy({**stored.obj, "rules": list(rules)}), stored)

    core.store.listen(CLUSTER_ROLES, on_change)
