"""OpenAPI documents: ``/openapi/v3``, one for each group version, and ``/openapi/v2`` for all.

kubectl reads three things in version 3: the parameter ``fieldValidation`` of PATCH and POST (for ``apply`` and
``create``), how lists merge (client-side ``apply``), and the texts for ``explain``. So a document has the paths of each
resource with just those parameters and content types, and the schemas with ``x-kubernetes-group-version-kind``. It has
no descriptions of built-in fields.

kubectl reads version 2 for kinds that it does not find in version 3: ``kind: List`` and kinds that the server does not
have. kubectl asks for protobuf (``openapiv2/OpenAPIv2.proto`` of gnostic), other clients for JSON. The document has the
definitions that clients validate with; it has no paths, since no client reads them there.
"""

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from tessera.api.names import LAB_SUFFIX
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
    """Implements :class:`interfaces.OpenApi` over a registry; keeps each document until the registry changes.

    Args:
        registry: the resource types that are served.
        release: the release of Kubernetes that the server imitates, "1.36.2".
    """

    def __init__(self, registry: ResourceRegistry, release: str) -> None:
        self._registry = registry
        self._info = {"title": "Kubernetes", "version": f"v{release}{LAB_SUFFIX}"}
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
            self._kept[path] = {"openapi": "3.0.0", "info": self._info, **_document(types)}
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
            schemas[name] = _SPECIAL.get(name) or _to_openapi(schema_library().definitions[name], waiting)


def _to_openapi(schema: Mapping[str, Any], used: list[str]) -> Obj:
    """Returns a definition as OpenAPI v3, and appends the names that it refers to to ``used``."""
    created: Obj = {}
    for key, value in schema.items():
        match key:
            case "$ref":
                used.append(value)
            case "properties":
                created[key] = {name: _to_openapi(child, used) for name, child in value.items()}
            case "items" | "additionalProperties":
                created[key] = _to_openapi(value, used)
            case _:
                created[key] = value
    if "$ref" not in schema:
        return created
    reference = {"$ref": REFERENCE + schema["$ref"]}
    return {"allOf": [reference], **created} if created else reference


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


#: Content-Type in the request, and in the answer.
PROTOBUF = "application/com.github.proto-openapi.spec.v2@v1.0+protobuf"
PROTOBUF_ANSWER = "application/com.github.proto-openapi.spec.v2.v1.0+protobuf"

_PLAIN = ("type", "format", "description", "required", "enum", GVK)
_LENGTH_DELIMITED = 2
#: Fields of ``Schema`` by name.
_REF, _FORMAT, _DESCRIPTION, _REQUIRED, _ADDITIONAL = 1, 2, 4, 19, 21
_TYPE, _ITEMS, _PROPERTIES, _VENDOR = 22, 23, 25, 31


def build_document(documents: Iterable[Obj]) -> Obj:
    """Builds the document from the documents of version 3."""
    definitions: Obj = {}
    info: Obj = {}
    for each in documents:
        info = each["info"]
        for name, schema in each["components"]["schemas"].items():
            retained = definitions.get(name, {})
            definitions[name] = retained if GVK in retained else _schema_v2(schema)
    return {"swagger": "2.0", "info": info, "paths": {}, "definitions": dict(sorted(definitions.items()))}


def _schema_v2(schema: Mapping[str, Any]) -> Obj:
    """Converts a schema of version 3 to version 2; a part that version 2 cannot express allows anything."""
    alone = schema.get("allOf") or [schema]
    if "$ref" in alone[0]:
        return {"$ref": "#/definitions/" + alone[0]["$ref"].removeprefix(REFERENCE)}
    if schema.get("x-kubernetes-int-or-string") or schema.get("format") == "int-or-string":
        return {"type": "string", "format": "int-or-string"}
    if "oneOf" in schema:
        return {"type": "string"}
    created: Obj = {key: schema[key] for key in _PLAIN if key in schema}
    if schema.get("x-kubernetes-preserve-unknown-fields"):
        return {key: value for key, value in created.items() if key in {"type", GVK}}
    if "properties" in schema:
        created["properties"] = {name: _schema_v2(each) for name, each in schema["properties"].items()}
    if "items" in schema:
        created["items"] = _schema_v2(schema["items"])
    if isinstance(schema.get("additionalProperties"), dict):
        created["additionalProperties"] = _schema_v2(schema["additionalProperties"])
    return created


def encode_document(created: Obj) -> bytes:
    """The document as protobuf."""
    info = _text(1, created["info"]["title"]) + _text(2, created["info"]["version"])
    definitions = b"".join(_message(1, _encode_named(name, each)) for name, each in created["definitions"].items())
    return _text(1, created["swagger"]) + _message(2, info) + _message(8, b"") + _message(9, definitions)


def _encode(schema: Obj) -> bytes:
    parts = [
        _text(_REF, schema.get("$ref", "")),
        _text(_FORMAT, schema.get("format", "")),
        _text(_DESCRIPTION, schema.get("description", "")),
        *(_text(_REQUIRED, each) for each in schema.get("required", ())),
    ]
    if "additionalProperties" in schema:
        parts.append(_message(_ADDITIONAL, _message(1, _encode(schema["additionalProperties"]))))
    if "type" in schema:
        parts.append(_message(_TYPE, _text(1, schema["type"])))
    if "items" in schema:
        parts.append(_message(_ITEMS, _message(1, _encode(schema["items"]))))
    if "properties" in schema:
        properties = b"".join(_message(1, _encode_named(name, each)) for name, each in schema["properties"].items())
        parts.append(_message(_PROPERTIES, properties))
    if GVK in schema:
        value = _text(2, msgspec.json.encode(schema[GVK]).decode())  # JSON is YAML
        parts.append(_message(_VENDOR, _text(1, GVK) + _message(2, value)))
    return b"".join(parts)


def _encode_named(name: str, schema: Obj) -> bytes:
    return _text(1, name) + _message(2, _encode(schema))


def _text(number: int, text: str) -> bytes:
    return _message(number, text.encode()) if text else b""


def _message(number: int, content: bytes) -> bytes:
    return _varint(number << 3 | _LENGTH_DELIMITED) + _varint(len(content)) + content


def _varint(value: int) -> bytes:
    created = bytearray()
    while value > 0x7F:
        created.append(value & 0x7F | 0x80)
        value >>= 7
    created.append(value)
    return bytes(created)
