"""OpenAPI v3 documents, one for each group version.

kubectl reads the parameter ``fieldValidation`` of PATCH and POST there (for ``apply`` and ``create``), how lists merge
(client-side ``apply``), and the texts for ``explain``. So a document has the paths of each resource with just those
parameters and content types, and the schemas with ``x-kubernetes-group-version-kind``. Descriptions of built-in fields
are left out.
"""

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from tessera_lab.apiserver.crd.structural_schema import StructuralSchema
from tessera_lab.apiserver.interfaces import Obj
from tessera_lab.apiserver.resource_types import ResourceRegistry, ResourceType
from tessera_lab.apiserver.schemas import schema_library

REFERENCE = "#/components/schemas/"
OBJECT_META = "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta"
GVK = "x-kubernetes-group-version-kind"

_PATCHES = ("application/apply-patch+yaml", "application/json-patch+json", "application/merge-patch+json")
_STRATEGIC = "application/strategic-merge-patch+json"
#: Kinds whose JSON form is not that of their definition.
_SPECIAL: Mapping[str, Obj] = {
    "io.k8s.apimachinery.pkg.api.resource.Quantity": {"oneOf": [{"type": "string"}, {"type": "number"}]},
    "io.k8s.apimachinery.pkg.util.intstr.IntOrString": {
        "format": "int-or-string",
        "oneOf": [{"type": "integer"}, {"type": "string"}],
    },
}


class OpenApiDocuments:
    """Implements :class:`interfaces.OpenApi` over a registry; keeps each document until the registry changes."""

    def __init__(self, registry: ResourceRegistry) -> None:
        self._registry = registry
        self._generation = -1
        self._kept: dict[str, Obj] = {}

    def index(self) -> Obj:
        """Returns the address of each group version's document; the address changes with the document's content."""
        paths = {}
        for group, version in dict.fromkeys((each.group, each.version) for each in self._registry):
            path = f"apis/{group}/{version}" if group else f"api/{version}"
            paths[path] = {"serverRelativeURL": f"/openapi/v3/{path}?hash={self._hash(group, version)}"}
        return {"paths": paths}

    def document(self, path: str) -> Obj | None:
        """The document of ``api/v1`` or ``apis/<group>/<version>``; None when nothing is served there."""
        if self._generation != self._registry.generation:
            self._kept.clear()
            self._generation = self._registry.generation
        if path not in self._kept:
            group, version = _group_version(path)
            types = self._of(group, version)
            if not types:
                return None
            self._kept[path] = _document(types)
        return self._kept[path]

    def documents(self) -> Iterator[Obj]:
        """The documents of all group versions."""
        for group, version in dict.fromkeys((each.group, each.version) for each in self._registry):
            found = self.document(f"apis/{group}/{version}" if group else f"api/{version}")
            if found is not None:
                yield found

    def _of(self, group: str, version: str) -> Sequence[ResourceType]:
        return [each for each in self._registry if (each.group, each.version) == (group, version)]

    def _hash(self, group: str, version: str) -> str:
        facts = [
            (
                each.plural,
                each.kind,
                each.verbs,
                each.schema.root if isinstance(each.schema, StructuralSchema) else None,
            )
            for each in self._of(group, version)
        ]
        return hashlib.sha256(msgspec.json.encode(facts)).hexdigest()[:32].upper()


def _group_version(path: str) -> tuple[str, str]:
    match path.strip("/").split("/"):
        case ["api", version]:
            return "", version
        case ["apis", group, version]:
            return group, version
    return "", ""


def _document(types: Sequence[ResourceType]) -> Obj:
    schemas: Obj = {}
    names = {each.kind: _schema(each, schemas) for each in types}
    return {
        "openapi": "3.0.0",
        "info": {"title": "Kubernetes", "version": "v1.32.4+tessera-lab"},
        "paths": {path: item for each in types for path, item in _paths(each, names[each.kind])},
        "components": {"schemas": dict(sorted(schemas.items()))},
    }


def _schema(each: ResourceType, schemas: Obj) -> str:
    """Adds the kind's schema and all schemas that it refers to; returns its name, empty for a kind without schema."""
    gvk = [{"group": each.group, "version": each.version, "kind": each.kind}]
    if isinstance(each.schema, StructuralSchema):
        name = ".".join([*reversed(each.group.split(".")), each.version, each.kind])
        schemas[name] = {**_custom(each.schema.root), GVK: gvk}
        _add([OBJECT_META], schemas)
        return name
    found = schema_library().name(each.group, each.version, each.kind)
    if found is None:
        return ""
    _add([found], schemas)
    schemas[found] = {**schemas[found], GVK: gvk}
    return found


def _custom(root: Mapping[str, Any]) -> Obj:
    known = {
        "apiVersion": {"type": "string", "description": "APIVersion defines the versioned schema of this object."},
        "kind": {"type": "string", "description": "Kind is a string value representing the REST resource."},
        "metadata": {"allOf": [{"$ref": REFERENCE + OBJECT_META}], "description": "Standard object's metadata."},
    }
    return {**root, "properties": {**root.get("properties", {}), **known}}


def _add(names: Iterable[str], schemas: Obj) -> None:
    waiting = list(names)
    while waiting:
        name = waiting.pop()
        if name not in schemas:
            schemas[name] = _SPECIAL.get(name) or _published(schema_library().definitions[name], waiting)


def _published(schema: Mapping[str, Any], used: list[str]) -> Obj:
    """Returns a definition as OpenAPI v3, and appends the names that it refers to to ``used``."""
    made: Obj = {}
    for key, value in schema.items():
        match key:
            case "$ref":
                used.append(value)
            case "properties":
                made[key] = {name: _published(child, used) for name, child in value.items()}
            case "items" | "additionalProperties":
                made[key] = _published(value, used)
            case _:
                made[key] = value
    if "$ref" not in schema:
        return made
    reference = {"$ref": REFERENCE + schema["$ref"]}
    return {"allOf": [reference], **made} if made else reference


def _paths(each: ResourceType, name: str) -> Iterator[tuple[str, Obj]]:
    root = f"/apis/{each.group}/{each.version}" if each.group else f"/api/{each.version}"
    collection = f"{root}/namespaces/{{namespace}}/{each.plural}" if each.namespaced else f"{root}/{each.plural}"
    create = {"post": _operation(each, name, "post", ("application/json",))} if "create" in each.verbs else {}
    yield collection, {"get": _operation(each, name, "list"), **create}
    if "get" not in each.verbs:
        return
    patches = _PATCHES if each.served_crd else (*_PATCHES, _STRATEGIC)
    yield (
        f"{collection}/{{name}}",
        {
            "get": _operation(each, name, "get"),
            "put": _operation(each, name, "put", ("application/json",)),
            "patch": _operation(each, name, "patch", patches),
            "delete": _operation(each, name, "delete"),
        },
    )


_WRITE_PARAMETERS = ("dryRun", "fieldManager", "fieldValidation")


def _operation(each: ResourceType, name: str, action: str, contents: Sequence[str] = ()) -> Obj:
    names = (*_WRITE_PARAMETERS, "force") if action == "patch" else _WRITE_PARAMETERS if contents else ()
    reference = {"$ref": REFERENCE + name} if name else {"type": "object"}
    body = {"requestBody": {"content": {content: {"schema": reference} for content in contents}}} if contents else {}
    return {
        "x-kubernetes-action": action,
        GVK: {"group": each.group, "version": each.version, "kind": each.kind},
        "parameters": [
            {"name": each_name, "in": "query", "schema": {"type": "boolean" if each_name == "force" else "string"}}
            for each_name in names
        ],
        **body,
        "responses": {"200": {"description": "OK", "content": {"application/json": {"schema": reference}}}},
    }
