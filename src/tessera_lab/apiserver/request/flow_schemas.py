"""Flow schemas: rules by which a request gets its priority level. Stored ones, and those that every API server has.

A request goes to the level of the matching schema with the smallest precedence (Kubernetes, "API Priority and
Fairness"). A stored schema with a level that this server lacks matches nothing, as there.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from tessera_lab.apiserver import field_errors
from tessera_lab.apiserver.interfaces import GroupResource, Obj, StatusCause, UserInfo
from tessera_lab.apiserver.request.routing import Route
from tessera_lab.apiserver.storage.store import Change, Store

Part = Mapping[str, Any]

FLOW_SCHEMAS = GroupResource("flowcontrol.apiserver.k8s.io", "flowschemas")
#: Precedence of a schema that states none, and the largest one (pkg/apis/flowcontrol).
PRECEDENCE, LAST = 1000, 10_000
_ALL = "*"
_SUBJECTS = ("User", "Group", "ServiceAccount")

#: Levels with their shares (k8s.io/apiserver/pkg/apis/flowcontrol/bootstrap/default.go).
SHARES: Mapping[str, int] = {
    "leader-election": 10,
    "node-high": 40,
    "system": 30,
    "workload-high": 40,
    "workload-low": 100,
    "global-default": 20,
}
_CONTROL_PLANE = frozenset({"system:kube-controller-manager", "system:kube-scheduler"})
_ELECTION_VERBS = frozenset({"get", "create", "update"})


class FlowSchema(msgspec.Struct, frozen=True):
    """A stored schema.

    Attributes:
        precedence: of two that match, the one with the smaller number counts.
        name: of two with the same precedence, the first name counts.
        level: its priority level.
        rules: of ``spec.rules``.
    """

    precedence: int
    name: str
    level: str
    rules: Sequence[Part]

    def matches(self, user: UserInfo, route: Route | None) -> bool:
        """True if one of the rules names the user and the request."""
        return route is not None and any(
            any(_is_subject(each, user) for each in rule.get("subjects") or ())
            and any(_is_request(each, route) for each in rule.get("resourceRules") or ())
            for rule in self.rules
        )


class StoredSchemas:
    """The schemas of a server's store, in the order in which they are tried."""

    def __init__(self, store: Store) -> None:
        self._by_name: dict[str, FlowSchema] = {}
        self._ordered: Sequence[FlowSchema] = ()
        store.listen(FLOW_SCHEMAS, self._take_in)

    def _take_in(self, change: Change) -> None:
        schema = read_schema(change.new.obj)
        self._by_name.pop(schema.name, None)
        if change.kind != "DELETED" and schema.level in SHARES:
            self._by_name[schema.name] = schema
        self._ordered = sorted(self._by_name.values(), key=lambda each: (each.precedence, each.name))

    def level_of(self, user: UserInfo, route: Route | None = None) -> str:
        """Returns the level of a user's request; ``route`` is None for one that names no resource."""
        return level_of(user, route, self._ordered)


def read_schema(obj: Part) -> FlowSchema:
    """Returns a stored schema, whose fields the API server has checked."""
    spec = obj["spec"]
    return FlowSchema(
        precedence=spec.get("matchingPrecedence", PRECEDENCE),
        name=obj["metadata"]["name"],
        level=spec["priorityLevelConfiguration"]["name"],
        rules=spec.get("rules") or (),
    )


def level_of(user: UserInfo, route: Route | None = None, schemas: Iterable[FlowSchema] = ()) -> str:
    """Returns the priority level of a request.

    Args:
        user: its sender.
        route: the resource that it names; None for none.
        schemas: stored schemas, in their order.
    """
    own, level = _level_of_every_server(user, route)
    found = next((each for each in schemas if each.precedence < own and each.matches(user, route)), None)
    return found.level if found else level


def _level_of_every_server(user: UserInfo, route: Route | None) -> tuple[int, str]:
    """The precedence and level of the schemas that every server makes by itself."""
    resource = (route.group, route.resource) if route else None
    is_lease = resource == ("coordination.k8s.io", "leases")
    in_control_plane = user.name in _CONTROL_PLANE or "system:serviceaccounts:kube-system" in user.groups
    if is_lease and in_control_plane and route and route.verb in _ELECTION_VERBS:
        return (100 if user.name in _CONTROL_PLANE else 200), "leader-election"
    if "system:nodes" in user.groups:
        return (400, "node-high") if is_lease or resource == ("", "nodes") else (500, "system")
    if in_control_plane:
        return (800 if user.name in _CONTROL_PLANE else 900), "workload-high"
    return (9000, "workload-low") if "system:serviceaccounts" in user.groups else (9900, "global-default")


def _is_subject(subject: Part, user: UserInfo) -> bool:
    match subject["kind"]:
        case "User":
            return (subject.get("user") or {}).get("name") in {_ALL, user.name}
        case "Group":
            return (subject.get("group") or {}).get("name") in {_ALL, *user.groups}
    account = subject.get("serviceAccount") or {}
    prefix, _, name = user.name.rpartition(":")
    return prefix == f"system:serviceaccount:{account.get('namespace')}" and account.get("name") in {_ALL, name}


def _is_request(rule: Part, route: Route) -> bool:
    resource = f"{route.resource}/{route.subresource}" if route.subresource else route.resource
    asked = (("verbs", route.verb), ("apiGroups", route.group), ("resources", resource))
    if any(not {_ALL, value} & set(rule.get(field) or ()) for field, value in asked):
        return False
    if not route.namespace:
        return bool(rule.get("clusterScope"))
    return bool({_ALL, route.namespace} & set(rule.get("namespaces") or ()))


def default_flow_schema(obj: Obj) -> None:
    """Defaults of a FlowSchema."""
    if isinstance(obj.get("spec"), dict):
        obj["spec"].setdefault("matchingPrecedence", PRECEDENCE)


def validate_flow_schema(obj: Part) -> Sequence[StatusCause]:
    """Returns the errors of a FlowSchema; its defaults are set."""
    return list(_check(obj.get("spec") or {}))


def _check(spec: Part) -> Iterator[StatusCause]:
    precedence = spec.get("matchingPrecedence", PRECEDENCE)
    if not 1 <= precedence <= LAST:
        text = f"must be between 1 and {LAST} (inclusive)"
        yield field_errors.invalid_cause("spec.matchingPrecedence", precedence, text)
    if not (spec.get("priorityLevelConfiguration") or {}).get("name"):
        yield field_errors.required_cause("spec.priorityLevelConfiguration.name", "must reference a priority level")
    for index, rule in enumerate(spec.get("rules") or ()):
        yield from _check_rule(rule, f"spec.rules[{index}]")


def _check_rule(rule: Part, place: str) -> Iterator[StatusCause]:
    if not rule.get("subjects"):
        yield field_errors.required_cause(f"{place}.subjects", "subjects must contain at least one value")
    for number, subject in enumerate(rule.get("subjects") or ()):
        if subject.get("kind") not in _SUBJECTS:
            yield field_errors.unsupported_cause(f"{place}.subjects[{number}].kind", subject.get("kind"), _SUBJECTS)
    if rule.get("nonResourceRules"):
        text = "this API server orders requests for resources only"
        yield field_errors.forbidden_cause(f"{place}.nonResourceRules", text)
    elif not rule.get("resourceRules"):
        text = "at least one of resourceRules and nonResourceRules has to be non-empty"
        yield field_errors.required_cause(place, text)
    for number, each in enumerate(rule.get("resourceRules") or ()):
        if not each.get("namespaces") and not each.get("clusterScope"):
            text = "resource rules that are not cluster scoped must supply at least one namespace"
            yield field_errors.required_cause(f"{place}.resourceRules[{number}].namespaces", text)
