"""Built-in types with their schemas, table columns and merge rules; and the initial objects of every cluster.

Events are served as ``v1`` and as ``events.k8s.io/v1`` over one storage; the two versions name their fields
differently, and the conversion is here. That of HorizontalPodAutoscalers is with their rules.

An aggregated ClusterRole has the union of the rules of the ClusterRoles that its selectors choose.

As kube-controller-manager's clusterrole-aggregation-controller does it, but inside the write: sources in the order of
their names, equal rules once, never a role itself. Roles that aggregate each other in a circle are settled within as
many rounds as there are aggregated roles; what would change after them is left as it is.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from tessera_lab.apiserver.authz.bootstrap_roles import bootstrap_roles
from tessera_lab.apiserver.authz.rbac import CLUSTER_ROLES
from tessera_lab.apiserver.authz.rbac import GROUP as RBAC_GROUP
from tessera_lab.apiserver.interfaces import GroupResource, Obj
from tessera_lab.apiserver.kinds.autoscaler_rules import to_first_autoscaler, to_stored_autoscaler
from tessera_lab.apiserver.kinds.builtin_types import builtin_types
from tessera_lab.apiserver.pods.binding_and_eviction import label_selector_matches
from tessera_lab.apiserver.request.server_state import ServerState
from tessera_lab.apiserver.resource_types import MergeTopology, ResourceType
from tessera_lab.apiserver.schemas.builtin_schema import builtin_schema
from tessera_lab.apiserver.schemas.merge_topology import builtin_topology
from tessera_lab.apiserver.storage.store import Change, deep_copy
from tessera_lab.apiserver.tables.table import builtin_columns

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


#: Namespaces of every cluster.
NAMESPACES = ("default", "kube-node-lease", "kube-public", "kube-system")
#: Priority classes of every cluster and their values.
PRIORITIES = {"system-cluster-critical": 2_000_000_000, "system-node-critical": 2_000_001_000}


def build_builtin_types(version: str) -> Iterable[ResourceType]:
    """Returns every built-in type of a minor version with schema, columns and merge rules."""
    return [_complete_type(each) for each in builtin_types(version)]


def _complete_type(each: ResourceType) -> ResourceType:
    try:
        topology = builtin_topology(each.group, each.version, each.kind)
    except KeyError:
        topology = MergeTopology()
    wired = msgspec.structs.replace(
        each,
        schema=builtin_schema(each.group, each.version, each.kind),
        columns=builtin_columns(each.group, each.kind),
        topology=topology,
    )
    if each.storage == CORE_EVENTS and each.group:
        return msgspec.structs.replace(wired, from_storage=to_new_event, to_storage=to_core_event)
    if (each.kind, each.version) == ("HorizontalPodAutoscaler", "v1"):
        return msgspec.structs.replace(wired, from_storage=to_first_autoscaler, to_storage=to_stored_autoscaler)
    return wired


def create_initial_objects(core: ServerState) -> None:
    """Stores the initial objects of every cluster, and gives each namespace its service account.

    In Kubernetes a controller creates the service account a moment later, so a pod created at once may be refused.
    """

    def new_namespace(change: Change) -> None:
        if change.kind == "ADDED":
            _store(core, "serviceaccounts", _default_account(change.new.obj["metadata"]["name"]))

    core.store.listen(GroupResource("", "namespaces"), new_namespace)
    for name in NAMESPACES:
        _store(core, "namespaces", _namespace(name))
    keep_aggregated(core)
    for each in bootstrap_roles():
        plural = "clusterroles" if each["kind"] == "ClusterRole" else "clusterrolebindings"
        _store(core, plural, each, group=RBAC_GROUP)
    for name, value in PRIORITIES.items():
        _store(core, "priorityclasses", _priority(name, value), group="scheduling.k8s.io")


def _store(core: ServerState, plural: str, obj: Obj, *, group: str = "") -> None:
    obj["metadata"] |= {"uid": core.new_uid(), "creationTimestamp": core.timestamp()}
    core.store.put(GroupResource(group, plural), obj, None)


def _namespace(name: str) -> Obj:
    return {
        "apiVersion": "v1",
        "kind": "Namespace",
        "metadata": {"name": name, "labels": {"kubernetes.io/metadata.name": name}},
        "spec": {"finalizers": ["kubernetes"]},
        "status": {"phase": "Active"},
    }


def _default_account(namespace: str) -> Obj:
    meta = {"name": "default", "namespace": namespace}
    return {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": meta}


def _priority(name: str, value: int) -> Obj:
    return {
        "apiVersion": "scheduling.k8s.io/v1",
        "kind": "PriorityClass",
        "metadata": {"name": name, "generation": 1},
        "value": value,
        "description": "Used for system critical pods that must not be moved from their current node.",
        "preemptionPolicy": "PreemptLowerPriority",
    }


CORE_EVENTS = GroupResource("", "events")
#: Field names in ``events.k8s.io/v1`` and in ``v1``.
_NAMES = {
    "note": "message",
    "regarding": "involvedObject",
    "reportingController": "reportingComponent",
    "deprecatedSource": "source",
    "deprecatedFirstTimestamp": "firstTimestamp",
    "deprecatedLastTimestamp": "lastTimestamp",
    "deprecatedCount": "count",
}
_BACK = {core: new for new, core in _NAMES.items()}


def to_core_event(obj: Obj) -> Obj:
    """Converts an ``events.k8s.io/v1`` Event to ``v1``, the stored form."""
    return {_NAMES.get(key, key): value for key, value in obj.items()}


def to_new_event(obj: Obj) -> Obj:
    """Converts a ``v1`` Event to ``events.k8s.io/v1``."""
    return {_BACK.get(key, key): value for key, value in obj.items()}
