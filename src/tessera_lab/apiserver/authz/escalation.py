"""Nobody grants more than they have: the check of a write to a Role, a ClusterRole or a binding of one.

Rules of Kubernetes (``pkg/registry/rbac``) that hold here: members of ``system:masters`` may grant everything; the verb
``escalate`` on a role lets its holder write any rules into it, and ``bind`` on a role lets its holder bind it; anybody
else must hold each single right of the rules, and all rights for an ``aggregationRule``. A write that changes no rules,
or nothing of a binding, is not checked.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from tessera_lab.apiserver.authz.rbac import (
    BINDINGS,
    CLUSTER_BINDINGS,
    CLUSTER_ROLES,
    EVERYTHING,
    GROUP,
    MASTERS,
    ROLES,
    rule_allows,
)
from tessera_lab.apiserver.interfaces import Attributes, Authorizer, GroupResource, ObjectReader, UserInfo
from tessera_lab.apiserver.status import forbidden_error, not_found_error

Read = Mapping[str, Any]

_CHECKED = frozenset({ROLES, CLUSTER_ROLES, BINDINGS, CLUSTER_BINDINGS})
#: Metadata that the garbage collector and field managers change.
_BOOKKEEPING = ("managedFields", "ownerReferences", "finalizers", "resourceVersion", "generation")


class Grant(msgspec.Struct, frozen=True, kw_only=True):
    """A write that may grant rights.

    Attributes:
        user: who writes.
        resource: the kind of the object.
        namespace: its namespace; empty for kinds of the cluster.
        obj: the wanted object.
        old: the object before; None for a new one.
    """

    user: UserInfo
    resource: GroupResource
    namespace: str
    obj: Read
    old: Read | None


def check_grant(grant: Grant, authorizer: Authorizer, reader: ObjectReader) -> None:
    """Refuses a write that grants a right which the user does not have.

    Raises:
        StatusError: 403 with the rights that are missing; 404 if a binding's role does not exist.
    """
    if grant.resource not in _CHECKED or MASTERS in grant.user.groups or not _changes(grant):
        return
    name = grant.obj["metadata"].get("name", "")
    if grant.resource in {ROLES, CLUSTER_ROLES}:
        if not _may(authorizer, grant, "escalate", grant.resource.resource, name):
            _confirm(grant, name, grant.obj.get("rules") or (), authorizer)
            _confirm_aggregation(grant, name, authorizer)
        return
    reference = grant.obj.get("roleRef") or {}
    roles = CLUSTER_ROLES if reference.get("kind") == "ClusterRole" else ROLES
    role = reference.get("name", "")
    if not _may(authorizer, grant, "bind", roles.resource, role):
        found = reader.get(roles, "" if roles == CLUSTER_ROLES else grant.namespace, role)
        if found is None:
            raise not_found_error(GROUP, roles.resource, role)
        _confirm(grant, name, found.get("rules") or (), authorizer)


def _changes(grant: Grant) -> bool:
    if grant.old is None:
        return True
    if grant.resource in {ROLES, CLUSTER_ROLES}:
        return any(grant.obj.get(part) != grant.old.get(part) for part in ("rules", "aggregationRule"))
    return _content(grant.obj) != _content(grant.old)


def _content(obj: Read) -> Read:
    metadata = {key: value for key, value in obj["metadata"].items() if key not in _BOOKKEEPING}
    return {**obj, "metadata": metadata}


def _may(authorizer: Authorizer, grant: Grant, verb: str, plural: str, name: str) -> bool:
    return authorizer.authorize(
        Attributes(
            user=grant.user,
            verb=verb,
            group=GROUP,
            version="v1",
            resource=plural,
            namespace=grant.namespace,
            name=name,
        )
    ).allowed


def _confirm(grant: Grant, name: str, rules: Sequence[Read], authorizer: Authorizer) -> None:
    resources, others = authorizer.rules(grant.user, grant.namespace)
    held = [*resources, *others]
    missing = [each for rule in rules for each in _single_rights(rule) if not _holds(held, each)]
    if not missing:
        return
    groups = " ".join(f'"{each}"' for each in grant.user.groups)
    text = (
        f'user "{grant.user.name}" (groups=[{groups}]) is attempting to grant RBAC permissions not currently held:\n'
        + "\n".join(dict.fromkeys(map(_text, missing)))
    )
    raise forbidden_error(GROUP, grant.resource.resource, name, text)


def _confirm_aggregation(grant: Grant, name: str, authorizer: Authorizer) -> None:
    """A role that is aggregated can gather any rules, so its writer must have all rights."""
    if any(((role or {}).get("aggregationRule") or {}).get("clusterRoleSelectors") for role in (grant.obj, grant.old)):
        resources, others = authorizer.rules(grant.user, grant.namespace)
        held = [*resources, *others]
        if not all(_holds(held, each) for rule in EVERYTHING for each in _single_rights(rule)):
            text = "must have cluster-admin privileges to use the aggregationRule"
            raise forbidden_error(GROUP, grant.resource.resource, name, text)


def _single_rights(rule: Read) -> Iterator[Attributes]:
    """Each right of a rule as the request that it allows; a wildcard stays one."""
    nobody = UserInfo(name="")
    for verb in rule.get("verbs") or ():
        for path in rule.get("nonResourceURLs") or ():
            yield Attributes(user=nobody, verb=verb, path=path)
        for group in rule.get("apiGroups") or ():
            for resource in rule.get("resources") or ():
                plural, _, subresource = resource.partition("/")
                for name in rule.get("resourceNames") or ("",):
                    yield Attributes(
                        user=nobody, verb=verb, group=group, resource=plural, subresource=subresource, name=name
                    )


def _holds(held: Iterable[Read], right: Attributes) -> bool:
    return any(rule_allows(rule, right) for rule in held)


def _text(right: Attributes) -> str:
    if right.path:
        return f'{{NonResourceURLs:["{right.path}"], Verbs:["{right.verb}"]}}'
    resource = f"{right.resource}/{right.subresource}" if right.subresource else right.resource
    named = f', ResourceNames:["{right.name}"]' if right.name else ""
    return f'{{APIGroups:["{right.group}"], Resources:["{resource}"]{named}, Verbs:["{right.verb}"]}}'
