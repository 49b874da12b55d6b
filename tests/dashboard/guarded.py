"""A cluster with users who log in by token, and their rights."""

from collections.abc import Iterable
from typing import Any

from tests.support.api_clients import ADMINISTRATORS, in_process_client
from tests.support.api_user import ManualClock

from tessera.kube.client import Client
from tessera.kube.errors import ServiceUnavailable, Status
from tessera.kube.requests import Request, Response
from tessera.kube.resources.meta import resource_for
from tessera_lab.apiserver.interfaces import UserInfo
from tessera_lab.apiserver.main.inprocess_transport import InProcessTransport
from tessera_lab.apiserver.main.server import ApiServer

_RBAC = "rbac.authorization.k8s.io"
#: Resources that may be listed, by role, with their API group.
_ROLES = {"nodes": "", "pods": "", "workloads": "kueue.x-k8s.io"}


class Guarded:
    """An API server, and the client of a page that asks it.

    Attributes:
        silent: True while the server does not answer the page.
        asked: the plural of each review that the page has sent.
    """

    def __init__(self, *users: str) -> None:
        self.clock = ManualClock()
        tokens = {f"token-{name}": UserInfo(name=name, groups=("people", "system:authenticated")) for name in users}
        self.server = ApiServer(self.clock, tokens=tokens)
        self.admin = in_process_client(self.server, self.clock, "admin", ADMINISTRATORS)
        self.silent = False
        self.asked: list[str] = []
        self.page = Client(_Heard(self), field_manager="page", clock=self.clock)

    async def begin(self) -> None:
        """Makes roles to list nodes, pods and Workloads."""
        for name, group in _ROLES.items():
            rules = [{"apiGroups": [group], "resources": [name], "verbs": ["list"]}]
            await self._create(f"{_RBAC}/v1", "ClusterRole", name, rules=rules)

    async def let(self, user: str, resource: str, namespaces: Iterable[str] = ()) -> None:
        """Lets a user list a resource in namespaces, or everywhere."""
        subject = {"kind": "User", "apiGroup": _RBAC, "name": user}
        role = {"apiGroup": _RBAC, "kind": "ClusterRole", "name": resource}
        if not namespaces:
            await self._create(
                f"{_RBAC}/v1", "ClusterRoleBinding", f"{user}-{resource}", roleRef=role, subjects=[subject]
            )
        for name in namespaces:
            await self._create(
                f"{_RBAC}/v1", "RoleBinding", f"{user}-{resource}", name, roleRef=role, subjects=[subject]
            )

    async def forbid(self, user: str, resource: str, namespace: str = "") -> None:
        """Takes a right back."""
        kind = "RoleBinding" if namespace else "ClusterRoleBinding"
        metadata = {"name": f"{user}-{resource}", **({"namespace": namespace} if namespace else {})}
        found = resource_for({"apiVersion": f"{_RBAC}/v1", "kind": kind, "metadata": metadata})
        await self.admin.delete(found, metadata["name"], namespace or None)

    async def _create(self, version: str, kind: str, name: str, namespace: str = "", **fields: Any) -> None:
        metadata = {"name": name, **({"namespace": namespace} if namespace else {})}
        manifest = {"apiVersion": version, "kind": kind, "metadata": metadata, **fields}
        if namespace and namespace not in {"default", "kube-system"}:
            made = resource_for({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}})
            await self.admin.apply(made, namespace, {})
        await self.admin.create(resource_for(manifest), manifest, namespace or None)


class _Heard(InProcessTransport):
    """The page's transport; it notes reviews."""

    def __init__(self, guarded: Guarded) -> None:
        super().__init__(guarded.server, UserInfo(name="page", groups=(ADMINISTRATORS,)))
        self._guarded = guarded

    async def request(self, request: Request) -> Response:
        if self._guarded.silent:
            raise ServiceUnavailable(Status(code=503, message="the API server is away"))
        self._guarded.asked.append(request.path.rpartition("/")[2])
        return await super().request(request)
