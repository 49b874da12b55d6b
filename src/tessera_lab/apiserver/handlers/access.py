"""Authorization inside a write: a create by server-side apply, and rights that an object grants."""

import msgspec

from tessera_lab.apiserver.authz.escalation import Grant, check_grant
from tessera_lab.apiserver.interfaces import Attributes, GroupResource, Obj
from tessera_lab.apiserver.request.server_state import ResourceRequest, ServerState
from tessera_lab.apiserver.status import StatusError, forbidden_error


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
