"""The aggregation layer: groups and versions that a Service serves instead of this server (``kube-aggregator``).

An APIService names a group, a version and a Service. A request below its path is authenticated and authorized here, and
then sent on with the user in the headers ``X-Remote-*``, by a client certificate of the front proxy. Discovery has its
groups beside those of this server. While the Service cannot be reached, its paths answer 503 and its version is stale.

Not implemented: watches and other streams, upgrades, OpenAPI documents of the Service.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol
from urllib.parse import quote

import msgspec

from tessera.kube.requests import Request, Response
from tessera_lab.apiserver.authz.identity import AUTHENTICATED
from tessera_lab.apiserver.discovery.discovery import version_priority
from tessera_lab.apiserver.interfaces import GroupResource, Obj, ObjectReader, UserInfo

API_SERVICES = GroupResource("apiregistration.k8s.io", "apiservices")
#: As kube-aggregator asks for discovery itself.
_AGGREGATOR = UserInfo(name="system:kube-aggregator", groups=("system:masters", AUTHENTICATED))
_TEXT = {"content-type": "text/plain; charset=utf-8"}


class Target(NamedTuple):
    """The Service of an APIService, and how to trust it."""

    namespace: str
    name: str
    port: int
    bundle: str
    insecure: bool


class ServiceCaller(Protocol):
    """Sends requests to Services."""

    async def __call__(self, target: Target, request: Request) -> Response:
        """Sends a request.

        Raises:
            OSError: the Service cannot be reached.
        """
        ...


class Aggregator:
    """Sends requests for the groups of APIServices on.

    Args:
        reader: stored APIServices.
        call: sends requests; None if this server reaches no Services.
    """

    def __init__(self, reader: ObjectReader, call: ServiceCaller | None = None) -> None:
        self._reader = reader
        self.call = call

    def find(self, group: str, version: str) -> Target | None:
        """The Service of a group's version; None if there is no APIService with one."""
        found = self._reader.get(API_SERVICES, "", f"{version}.{group}")
        return None if found is None else _target(found)

    async def send(self, target: Target, request: Request, user: UserInfo) -> Response:
        """Sends a request of a user on; 503 if the Service does not answer."""
        headers = {key: value for key, value in request.headers.items() if not _is_own(key)}
        headers |= _user_headers(user)
        if self.call is None:
            return _unavailable("service unavailable")
        try:
            return await self.call(target, msgspec.structs.replace(request, headers=headers))
        except LookupError:
            return _unavailable("service unavailable")
        except OSError as error:
            return _unavailable(f"error trying to reach service: {error}")

    # Discovery

    def groups(self) -> list[Obj]:
        """The groups of all APIServices with a Service, as an APIGroupList has them."""
        return [_group(group, versions) for group, versions in sorted(self._versions().items())]

    async def discovered(self) -> list[Obj]:
        """The same groups with their resources, as an APIGroupDiscoveryList has them."""
        return [
            {
                "metadata": {"name": group, "creationTimestamp": None},
                "versions": [await self._discovered_version(group, each) for each in versions],
            }
            for group, versions in sorted(self._versions().items())
        ]

    def group(self, name: str) -> Obj | None:
        """One of these groups."""
        versions = self._versions().get(name)
        return None if versions is None else _group(name, versions)

    async def _discovered_version(self, group: str, version: str) -> Obj:
        target = self.find(group, version)
        assert target is not None, "versions() lists those with a Service"
        answer = await self.send(target, Request(method="GET", path=f"/apis/{group}/{version}"), _AGGREGATOR)
        if answer.status != 200:
            return {"version": version, "freshness": "Stale"}
        listed = msgspec.json.decode(answer.body).get("resources") or ()
        resources = [_resource(each, group, version) for each in listed if "/" not in each["name"]]
        return {"version": version, "freshness": "Current", "resources": resources}

    def _versions(self) -> dict[str, list[str]]:
        found: dict[str, list[str]] = {}
        for each in self._reader.list(API_SERVICES):
            if _target(each) is not None:
                found.setdefault(each["spec"]["group"], []).append(each["spec"]["version"])
        return {group: sorted(versions, key=version_priority, reverse=True) for group, versions in found.items()}


def _target(service: Mapping[str, Any]) -> Target | None:
    spec = service.get("spec") or {}
    found = spec.get("service")
    if found is None:
        return None
    return Target(
        found["namespace"],
        found["name"],
        found.get("port", 443),
        spec.get("caBundle") or "",
        bool(spec.get("insecureSkipTLSVerify")),
    )


def _is_own(header: str) -> bool:
    """True for headers that this server sets itself, so that no client can."""
    return header.startswith("x-remote-") or header in {"authorization", "host", "connection", "content-length"}


def _user_headers(user: UserInfo) -> dict[str, str]:
    """The user as headers; several values of one are joined by newlines, which the caller splits."""
    headers = {"x-remote-user": user.name, "x-remote-group": "\n".join(user.groups)}
    return headers | {f"x-remote-extra-{quote(key, safe='')}": "\n".join(each) for key, each in user.extra.items()}


def _group(name: str, versions: list[str]) -> Obj:
    listed = [{"groupVersion": f"{name}/{each}", "version": each} for each in versions]
    return {"name": name, "versions": listed, "preferredVersion": listed[0]}


def _resource(listed: Mapping[str, Any], group: str, version: str) -> Obj:
    return {
        "resource": listed["name"],
        "responseKind": {"group": group, "version": version, "kind": listed["kind"]},
        "scope": "Namespaced" if listed.get("namespaced") else "Cluster",
        "singularResource": listed.get("singularName", ""),
        "verbs": sorted(listed.get("verbs") or ()),
    }


def _unavailable(text: str) -> Response:
    return Response(status=503, headers=_TEXT, body=f"{text}\n".encode())
