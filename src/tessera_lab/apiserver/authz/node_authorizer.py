"""Rights of kubelets over ResourceSlices, as kube-apiserver's modes ``Node,RBAC`` give them.

Source: ``plugin/pkg/auth/authorizer/node/node_authorizer.go``. A kubelet reads, changes and deletes slices of its own
node, and lists those only by the field selector ``spec.nodeName``. The node of a slice that it creates is checked by
admission (``NodeRestriction``), since authorization does not see the object. Of a kubelet's other rights the node
authorizer knows nothing here.
"""

from collections.abc import Sequence

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

SLICES = GroupResource("resource.k8s.io", "resourceslices")
_USER, _GROUP = "system:node:", "system:nodes"
_VERBS = "get, watch, list, create, update, patch, delete, deletecollection"


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
