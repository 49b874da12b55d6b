"""Discovery: the documents in which kubectl and client-go read the groups, versions and resources of the server.

Two forms. Aggregated (``APIGroupDiscoveryList``, v2 and v2beta1) answers ``/api`` and ``/apis`` at once and must carry
exactly the Content-Type that the client asked for; a client that does not name it gets ``APIVersions``,
``APIGroupList`` and one ``APIResourceList`` per group version. Documents are made from the registry and kept until it
changes.
"""

import re
from collections.abc import Iterator, Sequence

from tessera.api.names import LAB_SUFFIX, VIRTUAL_TIME_SUFFIX
from tessera_lab.apiserver.interfaces import Obj
from tessera_lab.apiserver.resource_types import ResourceRegistry, ResourceType, Subresource

JSON = "application/json"
_AGGREGATED = ("v2", "v2beta1")
_VERSION = re.compile(r"v(\d+)(?:(alpha|beta)(\d+))?")

_BUILD: Obj = {
    "gitCommit": "",
    "gitTreeState": "clean",
    "buildDate": "1970-01-01T00:00:00Z",
    "goVersion": "",
    "compiler": "cpython",
    "platform": "linux/amd64",
}


class DiscoveryDocuments:
    """Implements :class:`tessera_lab.apiserver.interfaces.Discovery` over a registry.

    Args:
        registry: the resource types that are served.
        release: the release of Kubernetes that the server imitates, "1.36.2".
        leaps: the server's time is virtual and skips waits; its version says so.
    """

    def __init__(self, registry: ResourceRegistry, release: str, *, leaps: bool = False) -> None:
        self._registry = registry
        major, minor, _ = release.split(".")
        named = f"v{release}{VIRTUAL_TIME_SUFFIX if leaps else LAB_SUFFIX}"
        self._version = {"major": major, "minor": minor, "gitVersion": named, **_BUILD}
        self._generation = -1
        self._kept: dict[tuple[str, str], Obj | None] = {}

    def answer(self, path: str, accept: str) -> tuple[str, Obj] | None:
        """Returns Content-Type and document of ``/api``, ``/apis``, the paths below them, and ``/version``."""
        version = aggregated_version(accept) if path in ("/api", "/apis") else ""
        media = f"{JSON};g=apidiscovery.k8s.io;v={version};as=APIGroupDiscoveryList" if version else JSON
        document = self._document(path, version)
        return None if document is None else (media, document)

    def _document(self, path: str, version: str) -> Obj | None:
        if self._generation != self._registry.generation:
            self._kept.clear()
            self._generation = self._registry.generation
        if (path, version) not in self._kept:
            self._kept[path, version] = self._build(path, version)
        return self._kept[path, version]

    def _build(self, path: str, version: str) -> Obj | None:
        if version:
            groups = [""] if path == "/api" else [group for group in self._groups() if group]
            return {
                "kind": "APIGroupDiscoveryList",
                "apiVersion": f"apidiscovery.k8s.io/{version}",
                "metadata": {},
                "items": [self._aggregated_group(group) for group in groups],
            }
        match path.strip("/").split("/"):
            case ["version"]:
                return self._version
            case ["api"]:
                return {"kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": []}
            case ["apis"]:
                groups = [group for group in self._groups() if group]
                return {"kind": "APIGroupList", "apiVersion": "v1", "groups": [self._group(group) for group in groups]}
            case ["apis", group]:
                known = group in self._groups()
                return {"kind": "APIGroup", "apiVersion": "v1", **self._group(group)} if known and group else None
            case ["api", api_version]:
                return self._resources("", api_version)
            case ["apis", group, api_version]:
                return self._resources(group, api_version)
        return None

    def _groups(self) -> list[str]:
        return list(dict.fromkeys(each.group for each in self._registry))

    def _versions(self, group: str) -> list[str]:
        """A group's versions, the preferred one first."""
        found = {each.version for each in self._registry if each.group == group}
        return sorted(found, key=version_priority, reverse=True)

    def _group(self, group: str) -> Obj:
        versions = [{"groupVersion": f"{group}/{each}", "version": each} for each in self._versions(group)]
        return {"name": group, "versions": versions, "preferredVersion": versions[0]}

    def _aggregated_group(self, group: str) -> Obj:
        return {
            "metadata": {"name": group, "creationTimestamp": None} if group else {"creationTimestamp": None},
            "versions": [
                {
                    "version": version,
                    "freshness": "Current",
                    "resources": [_aggregated_resource(each) for each in self._of(group, version)],
                }
                for version in self._versions(group)
            ],
        }

    def _of(self, group: str, version: str) -> list[ResourceType]:
        found = [each for each in self._registry if (each.group, each.version) == (group, version)]
        return sorted(found, key=lambda each: each.plural)

    def _resources(self, group: str, version: str) -> Obj | None:
        if not self._registry.has_group_version(group, version):
            return None
        listed = [entry for each in self._of(group, version) for entry in _list_resources(each)]
        shown = f"{group}/{version}" if group else version
        return {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": shown, "resources": listed}


def aggregated_version(accept: str) -> str:
    """The aggregated version that the client prefers; empty if it accepts none or prefers plain JSON."""
    for clause in accept.split(","):
        media, *raw = (part.strip() for part in clause.split(";"))
        params = dict(part.split("=", 1) for part in raw if "=" in part)
        if media != JSON:
            continue
        if params.get("g") == "apidiscovery.k8s.io" and params.get("as") == "APIGroupDiscoveryList":
            if params.get("v") in _AGGREGATED:
                return params["v"]
        elif "as" not in params:
            return ""
    return ""


def version_priority(version: str) -> tuple[int, int, int, str]:
    """Kubernetes' order of versions: v2 > v1 > v1beta2 > v1alpha1 > everything else; larger is preferred."""
    found = _VERSION.fullmatch(version)
    if found is None:
        return (0, 0, 0, version)
    stage = {None: 3, "beta": 2, "alpha": 1}[found[2]]
    return (stage, int(found[1]), int(found[3] or 0), "")


def _kind(each: ResourceType, sub: Subresource | None = None) -> Obj:
    """Returns the kind entry of a resource: group and version are empty if they are those of the list."""
    if sub is not None and sub.kind:
        return {"group": sub.group, "version": sub.version, "kind": sub.kind}
    if each.served_crd:
        return {"group": each.group, "version": each.version, "kind": each.kind}
    return {"group": "", "version": "", "kind": each.kind}


def _aggregated_resource(each: ResourceType) -> Obj:
    """``APIResourceDiscovery``."""
    subresources = [
        {"subresource": sub.name, "responseKind": _kind(each, sub), "verbs": sorted(sub.verbs)}
        for sub in sorted(each.subresources.values(), key=lambda sub: sub.name)
    ]
    return {
        "resource": each.plural,
        "responseKind": _kind(each),
        "scope": "Namespaced" if each.namespaced else "Cluster",
        "singularResource": each.singular,
        "verbs": sorted(each.verbs),
        **_names(each),
        **({"subresources": subresources} if subresources else {}),
    }


def _names(each: ResourceType) -> dict[str, Sequence[str]]:
    found = {"shortNames": list(each.short_names), "categories": list(each.categories)}
    return {name: value for name, value in found.items() if value}


def _list_resources(each: ResourceType) -> Iterator[Obj]:
    """``APIResource`` of the resource and of each subresource."""
    yield {
        "name": each.plural,
        "singularName": each.singular,
        "namespaced": each.namespaced,
        "kind": each.kind,
        "verbs": sorted(each.verbs),
        **_names(each),
    }
    for sub in sorted(each.subresources.values(), key=lambda sub: sub.name):
        other = {"group": sub.group, "version": sub.version} if sub.group else {}
        yield {
            "name": f"{each.plural}/{sub.name}",
            "singularName": "",
            "namespaced": each.namespaced,
            "kind": sub.kind or each.kind,
            **other,
            "verbs": sorted(sub.verbs),
        }
