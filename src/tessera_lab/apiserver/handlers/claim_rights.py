"""Rights inside a write, beside those of the request.

Those of a ResourceClaim are of ``pkg/registry/resource/utils.go``. A claim that asks for administrative access needs a
labelled namespace. Since 1.36 a change of ``status.allocation`` or ``status.reservedFor`` needs the request's verb on
``resourceclaims/binding`` in the whole cluster, and a change of ``status.devices`` needs ``associated-node:VERB`` or
``arbitrary-node:VERB`` on ``resourceclaims/driver`` by the name of each driver. A refusal is an error of the object
(422), as in Kubernetes.

A create by server-side apply, and rights that an object grants, are asked for here too.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from tessera_lab.apiserver.authz.escalation import Grant, check_grant
from tessera_lab.apiserver.field_errors import forbidden_cause
from tessera_lab.apiserver.interfaces import Attributes, GroupResource, Obj, StatusCause, UserInfo
from tessera_lab.apiserver.kinds.claim_rules import device_key
from tessera_lab.apiserver.request.server_state import NAMESPACES, ResourceRequest, ServerState
from tessera_lab.apiserver.status import StatusError, forbidden_error

Read = Mapping[str, Any]
GROUP = "resource.k8s.io"
#: Label of a namespace in which claims may ask for administrative access.
ADMIN_LABEL = "resource.kubernetes.io/admin-access"
_NODE_NAME = "authentication.kubernetes.io/node-name"
_KINDS = frozenset({GroupResource(GROUP, "resourceclaims"), GroupResource(GROUP, "resourceclaimtemplates")})


def not_allowed_error(attributes: Attributes, reason: str) -> StatusError:
    """403: no rule allows the request."""
    resource = attributes.resource + (f"/{attributes.subresource}" if attributes.subresource else "")
    scope = f' in the namespace "{attributes.namespace}"' if attributes.namespace else " at the cluster scope"
    verb = f'cannot {attributes.verb} resource "{resource}" in API group "{attributes.group}"'
    message = f'User "{attributes.user.name}" {verb}{scope}' + (f": {reason}" if reason else "")
    return forbidden_error(attributes.group, attributes.resource, attributes.name, message)


def check_create(core: ServerState, request: ResourceRequest) -> None:
    """Refuses an apply that would create an object which the user may not create; here the create has a name.

    Raises:
        StatusError: 403.
    """
    if core.parts.authorizer is None:
        return
    attributes = msgspec.structs.replace(request.attributes, verb="create")
    decision = core.parts.authorizer.authorize(attributes)
    if not decision.allowed:
        raise not_allowed_error(attributes, decision.reason)


def check_rights(core: ServerState, request: ResourceRequest, obj: Obj, old: Obj | None) -> None:
    """Refuses a role or a binding that grants rights which the user does not have.

    Raises:
        StatusError: 403; 404 if a binding's role does not exist.
    """
    if core.parts.authorizer is None:
        return
    resource = GroupResource(request.resource.group, request.resource.plural)
    grant = Grant(user=request.user, resource=resource, namespace=request.namespace, obj=obj, old=old)
    check_grant(grant, core.parts.authorizer, core.store)


def check_claim_rights(core: ServerState, request: ResourceRequest, obj: Obj, old: Obj | None) -> Sequence[StatusCause]:
    """Returns what the user may not write into a claim or a template."""
    if request.resource.group_resource not in _KINDS:
        return ()
    if request.route.subresource == "status":
        return list(_check_status(core, request, obj.get("status") or {}, (old or {}).get("status") or {}))
    return list(_check_admin_access(core, request, obj)) if old is None else ()


def _check_admin_access(core: ServerState, request: ResourceRequest, obj: Read) -> Iterator[StatusCause]:
    spec = obj.get("spec") or {}
    if request.resource.plural == "resourceclaimtemplates":
        spec = spec.get("spec") or {}
    for index, each in enumerate((spec.get("devices") or {}).get("requests") or ()):
        if (each.get("exactly") or {}).get("adminAccess"):
            yield from _needs_label(core, request.namespace, f"spec.devices.requests[{index}].adminAccess")
            return


def _needs_label(core: ServerState, namespace: str, path: str) -> Iterator[StatusCause]:
    found = core.store.get(NAMESPACES, "", namespace)
    if ((found or {}).get("metadata") or {}).get("labels", {}).get(ADMIN_LABEL) != "true":
        text = f"admin access to devices requires the `{ADMIN_LABEL}: true` label on the containing namespace"
        yield forbidden_cause(path, text)


def _check_status(core: ServerState, request: ResourceRequest, new: Read, old: Read) -> Iterator[StatusCause]:
    results, was = _results(new), _results(old)
    if not any(each.get("adminAccess") for each in was):
        for index, each in enumerate(results):
            if each.get("adminAccess"):
                path = f"status.allocation.devices.results[{index}].adminAccess"
                yield from _needs_label(core, request.namespace, path)
                break
    if request.resource.shape < "1.36" or core.parts.authorizer is None:
        return
    yield from _check_binding(core, request, new, old)
    yield from _check_drivers(core, request, new, old)


def _results(status: Read) -> Sequence[Read]:
    return ((status.get("allocation") or {}).get("devices") or {}).get("results") or ()


def _check_binding(core: ServerState, request: ResourceRequest, new: Read, old: Read) -> Iterator[StatusCause]:
    if all(new.get(key) == old.get(key) for key in ("allocation", "reservedFor")):
        return
    attributes = msgspec.structs.replace(request.attributes, subresource="binding", namespace="", name="")
    refusal = _refusal(core, attributes)
    if refusal:
        text = (
            'changing status.allocation or status.reservedFor requires resource="resourceclaims/binding", '
            f'verb="{attributes.verb}" permission: {refusal}'
        )
        yield forbidden_cause("status.allocation", text)


def _check_drivers(core: ServerState, request: ResourceRequest, new: Read, old: Read) -> Iterator[StatusCause]:
    now = {device_key(each): each for each in new.get("devices") or ()}
    was = {device_key(each): each for each in old.get("devices") or ()}
    drivers = sorted({key[0] for key in now.keys() | was.keys() if now.get(key) != was.get(key)})
    verb = request.attributes.verb
    verbs = [f"arbitrary-node:{verb}"]
    if _is_on_node(request.user, _allocated_node(new)):
        verbs.insert(0, f"associated-node:{verb}")
    for driver in drivers:
        wanted = [
            msgspec.structs.replace(request.attributes, verb=each, subresource="driver", name=driver) for each in verbs
        ]
        refusals = [_refusal(core, each) for each in wanted]
        if all(refusals):
            text = (
                f'changing status.devices requires resource="resourceclaims/driver", verb="[{" ".join(verbs)}]" '
                f"permission: {refusals[0]}"
            )
            yield forbidden_cause("status.devices", text)


def _refusal(core: ServerState, attributes: Attributes) -> str:
    """Why the user may not; empty if allowed."""
    assert core.parts.authorizer is not None
    decision = core.parts.authorizer.authorize(attributes)
    return "" if decision.allowed else str(not_allowed_error(attributes, decision.reason))


def _allocated_node(status: Read) -> str:
    """The node of an allocation whose node selector has exactly the form of one node; empty for any other."""
    terms: Sequence[Read] = ((status.get("allocation") or {}).get("nodeSelector") or {}).get("nodeSelectorTerms") or []
    if len(terms) != 1 or terms[0].get("matchExpressions") or len(terms[0].get("matchFields") or ()) != 1:
        return ""
    field = terms[0]["matchFields"][0]
    values = field.get("values") or []
    one = field.get("key") == "metadata.name" and field.get("operator") == "In" and len(values) == 1
    return str(values[0]) if one else ""


def _is_on_node(user: UserInfo, node: str) -> bool:
    """True for a service account whose token is bound to the node."""
    return bool(node) and user.name.startswith("system:serviceaccount:") and user.extra.get(_NODE_NAME) == (node,)
