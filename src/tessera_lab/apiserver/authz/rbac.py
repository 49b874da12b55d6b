"""Authorization as kube-apiserver's modes ``Node,RBAC`` give it: roles, and kubelets' rights over ResourceSlices.

**RBAC.** Roles and ClusterRoles are bound to users, groups and service accounts. A request that no rule allows is
refused; no rule denies. A RoleBinding grants its rules in its namespace only, a ClusterRoleBinding everywhere.
``resourceNames`` never match a request without a name; ``system:masters`` may do everything. An aggregated ClusterRole
has the rules that are stored in it.

**Nodes.** A kubelet reads, changes and deletes the ResourceSlices of its own node, and lists those only by the field
selector ``spec.nodeName`` (``plugin/pkg/auth/authorizer/node/node_authorizer.go``). Admission checks the node of a
slice that it creates (``NodeRestriction``), since authorization does not see the object. Of a kubelet's other rights
the node authorizer knows nothing here.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from tessera_lab.apiserver.interfaces import (
    Attributes,
    AuthorizationDecision,
    Authorizer,
    GroupResource,
    Obj,
    ObjectReader,
    UserInfo,
)

Rule = Mapping[str, Any]
#: Rules, each list with a text that names its binding; and what is said of roles that do not exist.
BoundRules = tuple[Sequence[tuple[Sequence[Rule], str]], Sequence[str]]

#: All of a request that rules are about: its user's name and groups, and what it wants.
_Asked = tuple[str, tuple[str, ...], str, str, str, str, str, str, str]

GROUP = "rbac.authorization.k8s.io"
CLUSTER_ROLES, CLUSTER_BINDINGS = GroupResource(GROUP, "clusterroles"), GroupResource(GROUP, "clusterrolebindings")
ROLES, BINDINGS = GroupResource(GROUP, "roles"), GroupResource(GROUP, "rolebindings")
_KINDS = (CLUSTER_ROLES, CLUSTER_BINDINGS, ROLES, BINDINGS)

#: Most allowed requests that are remembered.
_KEPT = 4096

MASTERS = "system:masters"
AUTHENTICATED = "system:authenticated"
EVERYTHING: Sequence[Rule] = (
    {"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"]},
    {"verbs": ["*"], "nonResourceURLs": ["*"]},
)
SLICES = GroupResource("resource.k8s.io", "resourceslices")
_USER, _GROUP = "system:node:", "system:nodes"
_VERBS = "get, watch, list, create, update, patch, delete, deletecollection"


class RbacAuthorizer:
    """Implements :class:`tessera_lab.apiserver.interfaces.Authorizer` over stored roles and bindings.

    Roles seldom change, and a user asks for the same again and again: the rules of a user, and what they allow, are
    kept until roles change.
    """

    def __init__(self, reader: ObjectReader) -> None:
        self._reader = reader
        self._revisions: Sequence[int] = ()
        self._known: dict[tuple[str, tuple[str, ...], str], BoundRules] = {}
        self._allowed: dict[_Asked, AuthorizationDecision] = {}

    def authorize(self, attributes: Attributes) -> AuthorizationDecision:
        """Allows the request if any rule bound to the user allows it."""
        if MASTERS in attributes.user.groups:
            return AuthorizationDecision(allowed=True)
        self._forget_changed()
        asked = _asked(attributes)
        if asked in self._allowed:
            return self._allowed[asked]
        bound, missing = self._find_rules(attributes.user, attributes.namespace)
        for rules, reason in bound:
            for rule in rules:
                if rule_allows(rule, attributes):
                    return self._keep(asked, AuthorizationDecision(allowed=True, reason=reason))
        return AuthorizationDecision(allowed=False, reason="RBAC: " + ", ".join(missing) if missing else "")

    def rules(self, user: UserInfo, namespace: str) -> tuple[Sequence[Obj], Sequence[Obj]]:
        """Returns the ``resourceRules`` and ``nonResourceRules`` bound to the user in a namespace."""
        found = [rule for rules, _ in self._find_rules(user, namespace)[0] for rule in rules]
        if MASTERS in user.groups:
            found = [*EVERYTHING, *found]
        resources = [_select_fields(rule, "verbs", "apiGroups", "resources", "resourceNames") for rule in found]
        others = [_select_fields(rule, "verbs", "nonResourceURLs") for rule in found]
        return [each for each in resources if "resources" in each], [
            each for each in others if "nonResourceURLs" in each
        ]

    def _keep(self, asked: _Asked, decision: AuthorizationDecision) -> AuthorizationDecision:
        if len(self._allowed) >= _KEPT:
            self._allowed.clear()
        self._allowed[asked] = decision
        return decision

    def _forget_changed(self) -> None:
        revisions = [self._reader.revision(each) for each in _KINDS]
        if revisions != self._revisions:
            self._revisions = revisions
            self._known.clear()
            self._allowed.clear()

    def _find_rules(self, user: UserInfo, namespace: str) -> BoundRules:
        """Returns the rules bound to the user in a namespace, each with the binding's text, and the missing roles."""
        self._forget_changed()
        key = (user.name, tuple(user.groups), namespace)
        if key not in self._known:
            missing: list[str] = []
            self._known[key] = list(self._applicable_rules(user, namespace, missing)), missing
        return self._known[key]

    def _applicable_rules(
        self, user: UserInfo, namespace: str, missing: list[str]
    ) -> Iterator[tuple[Sequence[Rule], str]]:
        """Yields the rules of every binding that names the user, with a text that names the binding."""
        for binding in self._reader.list(CLUSTER_BINDINGS):
            who = _subject(binding, user, "")
            if who:
                name = binding["metadata"]["name"]
                reason = f'RBAC: allowed by ClusterRoleBinding "{name}" of {_role(binding)} to {who}'
                yield self._rules(binding, "", missing), reason
        for binding in self._reader.list(BINDINGS, namespace) if namespace else ():
            who = _subject(binding, user, namespace)
            if who:
                name = f"{binding['metadata']['name']}/{namespace}"
                reason = f'RBAC: allowed by RoleBinding "{name}" of {_role(binding)} to {who}'
                yield self._rules(binding, namespace, missing), reason

    def _rules(self, binding: Mapping[str, Any], namespace: str, missing: list[str]) -> Sequence[Rule]:
        reference = binding.get("roleRef") or {}
        name, cluster = reference.get("name", ""), reference.get("kind") == "ClusterRole"
        role = self._reader.get(CLUSTER_ROLES if cluster else ROLES, "" if cluster else namespace, name)
        if role is None:
            missing.append(f'{"clusterrole" if cluster else "role"}.{GROUP} "{name}" not found')
            return ()
        return role.get("rules") or ()


def _asked(of: Attributes) -> _Asked:
    user = of.user
    return (
        user.name,
        tuple(user.groups),
        of.verb,
        of.group,
        of.resource,
        of.subresource,
        of.namespace,
        of.name,
        of.path,
    )


def rule_allows(rule: Rule, attributes: Attributes) -> bool:
    """True if one PolicyRule allows the request."""
    if not _in(attributes.verb, rule.get("verbs")):
        return False
    if attributes.path:
        return any(_path(pattern, attributes.path) for pattern in rule.get("nonResourceURLs") or ())
    names = rule.get("resourceNames") or ()
    return (
        _in(attributes.group, rule.get("apiGroups"))
        and _resource(attributes.resource, attributes.subresource, rule.get("resources") or ())
        and (not names or attributes.name in names)
    )


def _in(value: str, allowed: Sequence[str] | None) -> bool:
    return allowed is not None and (value in allowed or "*" in allowed)


def _resource(resource: str, subresource: str, allowed: Sequence[str]) -> bool:
    desired = f"{resource}/{subresource}" if subresource else resource
    return desired in allowed or "*" in allowed or bool(subresource and f"*/{subresource}" in allowed)


def _path(pattern: str, path: str) -> bool:
    return path.startswith(pattern[:-1]) if pattern.endswith("*") else path == pattern


def _subject(binding: Mapping[str, Any], user: UserInfo, namespace: str) -> str:
    """Returns the binding's subject that is the user, as the reason names it; empty if none is."""
    for subject in binding.get("subjects") or ():
        kind, name = subject.get("kind"), subject.get("name", "")
        if kind == "User" and name == user.name:
            return f'User "{name}"'
        if kind == "Group" and name in user.groups:
            return f'Group "{name}"'
        home = subject.get("namespace") or namespace
        if kind == "ServiceAccount" and user.name == f"system:serviceaccount:{home}:{name}":
            return f'ServiceAccount "{name}/{home}"'
    return ""


def _role(binding: Mapping[str, Any]) -> str:
    reference = binding.get("roleRef") or {}
    return f'{reference.get("kind")} "{reference.get("name")}"'


def _select_fields(rule: Rule, *names: str) -> Obj:
    return {name: list(rule[name]) for name in names if rule.get(name)}


def node_of(user: UserInfo) -> str | None:
    """The node whose kubelet this is, empty for a kubelet of no node; None for any other user."""
    is_kubelet = user.name.startswith(_USER) and _GROUP in user.groups
    return user.name.removeprefix(_USER) if is_kubelet else None


class NodeAuthorizer:
    """Implements :class:`tessera_lab.apiserver.interfaces.Authorizer`.

    Args:
        reader: the stored slices.
        others: decides about all that this mode does not allow.
    """

    def __init__(self, reader: ObjectReader, others: Authorizer) -> None:
        self._reader = reader
        self._others = others

    def authorize(self, attributes: Attributes) -> AuthorizationDecision:
        """Allows what either mode allows; a refusal has the reasons of both."""
        node = node_of(attributes.user)
        if node is None or (attributes.group, attributes.resource) != SLICES:
            return self._others.authorize(attributes)
        reason = self._reason(node, attributes)
        if not reason:
            return AuthorizationDecision(allowed=True)
        other = self._others.authorize(attributes)
        reasons = "\n".join(filter(None, (reason, other.reason)))
        return other if other.allowed else msgspec.structs.replace(other, reason=reasons)

    def rules(self, user: UserInfo, namespace: str) -> tuple[Sequence[Obj], Sequence[Obj]]:
        """The rules of the other mode; as in Kubernetes, rights over slices are not in any list."""
        return self._others.rules(user, namespace)

    def _reason(self, node: str, attributes: Attributes) -> str:
        """Why a kubelet may not; empty if it may."""
        if not node:
            return f'unknown node for user "{attributes.user.name}"'
        if attributes.subresource:
            return "cannot authorize ResourceSlice subresources"
        match attributes.verb:
            case "create":
                return ""
            case "get" | "update" | "patch" | "delete":
                slice_ = self._reader.get(SLICES, "", attributes.name) or {}
                if not attributes.name:
                    return "No Object name found"
                own = (slice_.get("spec") or {}).get("nodeName") == node
                return "" if own else f"no relationship found between node '{node}' and this object"
            case "watch" | "list" | "deletecollection":
                if f"spec.nodeName={node}" in attributes.fields.replace("==", "=").split(","):
                    return ""
                return "can only list/watch/deletecollection resourceslices with nodeName field selector"
        return f"only the following verbs are allowed for a ResourceSlice: {_VERBS}"
