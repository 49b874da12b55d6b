"""The OpenAPI documents of ``view.tessera.dev``, made from the types of its objects.

kube-apiserver asks an aggregated API for them once a minute, merges them into its own, and logs an error for an API
that has none. ``kubectl explain`` reads them there. Version 2 has no null: a value that may be missing has there the
type that it has if it is there. A value of several types has no type.
"""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any

import msgspec

from tessera.dashboard.view.explanations import EXPLANATIONS, GROUP, VERSION
from tessera.dashboard.view.objects import RESOURCES
from tessera.kube.resources.meta import Resource

Schema = dict[str, Any]

_RESOURCES: Sequence[Resource[Any]] = RESOURCES

#: Names of definitions begin with the group's parts in reverse order, as those of Kubernetes do.
_PREFIX = ".".join([*reversed(GROUP.split(".")), VERSION])
_GVK = "x-kubernetes-group-version-kind"
_BASE = f"/apis/{GROUP}/{VERSION}"
_KEPT = frozenset(
    {"description", "enum", "maxItems", "maxLength", "maxProperties", "maximum", "minimum", "required", "type"}
)
_INFO = {"title": GROUP, "version": VERSION}


@cache
def documents() -> Mapping[str, bytes]:
    """Returns the documents by their paths; one process may have several ports, and each asks."""
    version_3 = msgspec.json.encode(
        {
            "openapi": "3.0.0",
            "info": _INFO,
            "paths": _paths("#/components/schemas/", new=True),
            "components": {"schemas": _definitions("#/components/schemas/", new=True)},
        }
    )
    version_2 = {
        "swagger": "2.0",
        "info": _INFO,
        "paths": _paths("#/definitions/", new=False),
        "definitions": _definitions("#/definitions/", new=False),
    }
    own = f"/openapi/v3{_BASE}"
    digest = hashlib.sha256(version_3).hexdigest()[:32].upper()
    index = {"paths": {_BASE.lstrip("/"): {"serverRelativeURL": f"{own}?hash={digest}"}}}
    return {
        "/openapi/v2": msgspec.json.encode(version_2),
        "/openapi/v3": msgspec.json.encode(index),
        own: version_3,
    }


def _definitions(place: str, *, new: bool) -> Schema:
    types = [each.type for each in _RESOURCES]
    roots, made = msgspec.json.schema_components(types, ref_template=f"{place}{{name}}")
    names = {name: f"{_PREFIX}.{name.removeprefix('tessera.')}" for name in made}
    for resource, root in zip(_RESOURCES, roots, strict=True):
        names[root["$ref"].removeprefix(place)] = _name(resource.kind)
    found = {names[name]: _convert(schema, place, names, new=new) for name, schema in made.items()}
    for resource in _RESOURCES:
        schema = found[_name(resource.kind)]
        schema[_GVK] = [_kind(resource.kind)]
        schema["properties"] = {**_head(), **schema["properties"]}
        if resource is not EXPLANATIONS:
            found[_name(f"{resource.kind}List")] = _list_of(resource, place)
    used, left = set[str](), [each for each in found if _GVK in found[each]]
    while left:
        name = left.pop()
        used.add(name)
        left += [each for each in _references(found[name], place) if each not in used]
    return {name: found[name] for name in sorted(used)}


def _references(value: Any, place: str) -> Iterator[str]:
    """Yields the names of definitions that a schema refers to; the types of a union have no reference."""
    for each in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        if isinstance(each, str) and each.startswith(place):
            yield each.removeprefix(place)
        else:
            yield from _references(each, place)


def _name(kind: str) -> str:
    return f"{_PREFIX}.{kind}"


def _kind(kind: str) -> Schema:
    return {"group": GROUP, "version": VERSION, "kind": kind}


def _head() -> Schema:
    return {each: {"type": "string"} for each in ("apiVersion", "kind")}


def _list_of(resource: Resource[Any], place: str) -> Schema:
    items = {"type": "array", "items": {"$ref": place + _name(resource.kind)}}
    return {
        "type": "object",
        "description": f"The only {resource.kind}, as a list.",
        "required": ["items"],
        "properties": {**_head(), "metadata": {"type": "object"}, "items": items},
        _GVK: [_kind(f"{resource.kind}List")],
    }


def _convert(schema: Mapping[str, Any], place: str, names: Mapping[str, str], *, new: bool) -> Schema:
    """Returns a JSON schema as OpenAPI has it; ``new`` for version 3."""
    if "$ref" in schema:
        return {"$ref": place + names[schema["$ref"].removeprefix(place)]}
    if "anyOf" in schema:
        return _choice(schema, place, names, new=new)
    found = {key: value for key, value in schema.items() if key in _KEPT}
    if "description" in found:
        found["description"] = " ".join(found["description"].partition("\n\n")[0].split())
    if "properties" in schema:
        parts = schema["properties"].items()
        found["properties"] = {key: _convert(each, place, names, new=new) for key, each in parts}
    for key in ("items", "additionalProperties"):
        if isinstance(schema.get(key), dict):
            found[key] = _convert(schema[key], place, names, new=new)
    if found.get("type") == "array":
        found.setdefault("items", {})  # kubectl refuses the cluster's whole document if an array has none
    return found


def _choice(schema: Mapping[str, Any], place: str, names: Mapping[str, str], *, new: bool) -> Schema:
    values = [each for each in schema["anyOf"] if each.get("type") != "null"]
    kinds = [_convert(each, place, names, new=new) for each in values]
    nullable = {"nullable": True} if new and len(values) < len(schema["anyOf"]) else {}
    if len(kinds) != 1:
        return nullable
    # Beside a reference nothing counts.
    return {"allOf": kinds, **nullable} if nullable and "$ref" in kinds[0] else {**kinds[0], **nullable}


def _paths(place: str, *, new: bool) -> Schema:
    found: Schema = {}
    for each in _RESOURCES:
        path = f"{_BASE}/namespaces/{{namespace}}/{each.plural}"
        if each is not EXPLANATIONS:
            found[path] = _reading(each, f"{each.kind}List", "list", place, new=new)
        found[f"{path}/{{name}}"] = _reading(each, each.kind, "get", place, new=new)
    return found


def _reading(resource: Resource[Any], answer: str, action: str, place: str, *, new: bool) -> Schema:
    """The item of a path, which can only be read."""
    schema = {"$ref": place + _name(answer)}
    content = {"content": {"application/json": {"schema": schema}}} if new else {"schema": schema}
    text = {"schema": {"type": "string"}} if new else {"type": "string"}
    names = ["namespace"] if action == "list" else ["namespace", "name"]
    return {
        "parameters": [{"name": each, "in": "path", "required": True, **text} for each in names],
        "get": {
            "description": resource.type.__doc__,
            "operationId": f"{action}{resource.kind}",
            "responses": {"200": {"description": "OK", **content}},
            **({} if new else {"produces": ["application/json"]}),
            "x-kubernetes-action": action,
            _GVK: _kind(resource.kind),
        },
    }
