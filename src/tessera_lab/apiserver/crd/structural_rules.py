"""Rules that a CRD's schema must keep to be structural, checked node by node.

The rules and texts are those of apiextensions-apiserver (``ValidateStructural`` and
``ValidateCustomResourceDefinitionOpenAPISchema``). Rules in CEL are read by :mod:`tessera_lab.apiserver.crd.cel_rules`.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tessera_lab.apiserver import field_errors
from tessera_lab.apiserver.crd.cel_rules import LIST_TYPE, RULES, below_list, stated
from tessera_lab.apiserver.crd.value_validation import pattern_problem, wrong
from tessera_lab.apiserver.interfaces import Cause

Schema = Mapping[str, Any]

TYPES = ("array", "boolean", "integer", "number", "object", "string")
EMBEDDED, KEEP = "x-kubernetes-embedded-resource", "x-kubernetes-preserve-unknown-fields"
INT_OR_STRING, MAP_TYPE = "x-kubernetes-int-or-string", "x-kubernetes-map-type"
MAP_KEYS = "x-kubernetes-list-map-keys"

#: Type is required everywhere; the reason depends on the place.
NO_TYPE = {
    "root": "must not be empty at the root",
    "item": "must not be empty for specified array items",
    "field": "must not be empty for specified object fields",
}
UNSUPPORTED = ("id", "additionalItems", "patternProperties", "definitions", "dependencies", "$ref")
#: What may not stand inside allOf, anyOf, oneOf and not.
NESTED_FORBIDDEN = {
    "type": "must be empty to be structural",
    "additionalProperties": "must be undefined to be structural",
    "default": "must be undefined to be structural",
    "title": "must be empty to be structural",
    "description": "must be empty to be structural",
    "nullable": "must be false to be structural",
    KEEP: "must be false to be structural",
    EMBEDDED: "must be false to be structural",
    INT_OR_STRING: "must be false to be structural",
    MAP_KEYS: "must be empty to be structural",
    LIST_TYPE: "must be undefined to be structural",
    MAP_TYPE: "must be undefined to be structural",
    RULES: "must be empty to be structural",
}
INT_OR_STRING_PATTERN = [{"type": "integer"}, {"type": "string"}]


def structural(schema: Schema, path: str) -> Iterator[Cause]:
    """What keeps a root schema from being structural.

    Raises:
        tessera_lab.apiserver.status.StatusError: 501, the schema has rules in CEL that this server does not know.
    """
    yield from _node(schema, path, "root")
    if schema.get("nullable"):
        yield field_errors.forbidden(f"{path}.nullable", "nullable cannot be true at the root")


def _node(schema: Schema, path: str, level: str, uncorrelatable: str = "") -> Iterator[Cause]:
    yield from _keywords(schema, path)
    yield from _typing(schema, path, level)
    yield from _lists(schema, path)
    yield from _metadata(schema, path, level)
    yield from _default(schema, path)
    yield from _junctors(schema, schema, path)
    yield from stated(schema, path, uncorrelatable)
    yield from _below(schema, path, level, uncorrelatable)


def _below(schema: Schema, path: str, level: str, uncorrelatable: str) -> Iterator[Cause]:
    items, extra = schema.get("items"), schema.get("additionalProperties")
    if isinstance(items, Sequence):
        yield field_errors.forbidden(f"{path}.items", "items must be a schema object and not an array")
    elif isinstance(items, Mapping):
        yield from _node(items, f"{path}.items", "item", below_list(schema, path, uncorrelatable))
    if extra is not None and level == "root":
        yield field_errors.forbidden(f"{path}.additionalProperties", "must not be used at the root")
    if isinstance(extra, Mapping):
        yield from _node(extra, f"{path}.additionalProperties", "field", uncorrelatable)
    for name, below in schema.get("properties", {}).items():
        if not (name == "metadata" and level == "root"):
            yield from _node(below, f"{path}.properties[{name}]", "field", uncorrelatable)


def _keywords(schema: Schema, path: str) -> Iterator[Cause]:
    for name in UNSUPPORTED:
        if name in schema:
            yield field_errors.forbidden(f"{path}.{name}", f"{name} is not supported")
    if schema.get("uniqueItems"):
        why = "uniqueItems cannot be set to true since the runtime complexity becomes quadratic"
        yield field_errors.forbidden(f"{path}.uniqueItems", why)
    if schema.get("properties") and schema.get("additionalProperties") not in (None, True):
        yield field_errors.forbidden(
            f"{path}.additionalProperties", "additionalProperties and properties are mutual exclusive"
        )
    if schema.get(KEEP) is False:
        yield field_errors.invalid(f"{path}.{KEEP}", False, "must be true or undefined")
    problem = pattern_problem(schema.get("pattern", ""))
    if problem:
        why = f"must be a valid regular expression, but isn't: {problem}"
        yield field_errors.invalid(f"{path}.pattern", schema["pattern"], why)


def _typing(schema: Schema, path: str, level: str) -> Iterator[Cause]:
    kind = schema.get("type", "")
    where = f"{path}.type"
    if kind == "null":
        yield field_errors.forbidden(where, "type cannot be set to null, use nullable as an alternative")
    elif kind and kind not in TYPES:
        yield field_errors.unsupported(where, kind, TYPES)
    if schema.get(EMBEDDED) and kind != "object":
        why = f"must be object if {EMBEDDED} is true"
        yield field_errors.invalid(where, kind, why) if kind else field_errors.required(where, why)
    elif not kind and not schema.get(INT_OR_STRING) and not schema.get(KEEP):
        yield field_errors.required(where, NO_TYPE[level])
    if level == "root" and kind and kind != "object":
        yield field_errors.invalid(where, kind, "must be object at the root")
    if kind == "array" and "items" not in schema:
        yield field_errors.required(f"{path}.items", "must be specified")
    for other in (KEEP, EMBEDDED):
        if schema.get(INT_OR_STRING) and schema.get(other):
            yield field_errors.invalid(f"{path}.{other}", True, f"must be false if {INT_OR_STRING} is true")
    if schema.get(EMBEDDED) and not schema.get(KEEP) and not schema.get("properties"):
        why = f"must not be empty if {EMBEDDED} is true without {KEEP}"
        yield field_errors.required(f"{path}.properties", why)


def _lists(schema: Schema, path: str) -> Iterator[Cause]:
    for key, kind, known in (
        (MAP_TYPE, "object", ("atomic", "granular")),
        (LIST_TYPE, "array", ("atomic", "set", "map")),
    ):
        if key not in schema:
            continue
        if schema.get("type") != kind:
            why, have = f"must be {kind} if {key} is specified", schema.get("type", "")
            yield (
                field_errors.invalid(f"{path}.type", have, why) if have else field_errors.required(f"{path}.type", why)
            )
        if schema[key] not in known:
            yield field_errors.unsupported(f"{path}.{key}", schema[key], known)
    keys, items = schema.get(MAP_KEYS, []), schema.get("items")
    if keys and schema.get(LIST_TYPE) != "map":
        why, have = f"must be map if {MAP_KEYS} is non-empty", schema.get(LIST_TYPE)
        where = f"{path}.{LIST_TYPE}"
        yield field_errors.invalid(where, have, why) if have else field_errors.required(where, why)
    if schema.get(LIST_TYPE) in ("set", "map") and isinstance(items, Mapping):
        if items.get("nullable"):
            why = f"cannot be nullable when {LIST_TYPE} is {schema[LIST_TYPE]}"
            yield field_errors.forbidden(f"{path}.items.nullable", why)
        yield from _set(items, path) if schema[LIST_TYPE] == "set" else _map(keys, items, path)


def _set(items: Schema, path: str) -> Iterator[Cause]:
    for kind, key in (("array", LIST_TYPE), ("object", MAP_TYPE)):
        implied = "atomic" if kind == "array" else None
        if items.get("type") == kind and items.get(key, implied) != "atomic":
            why = f"must be atomic as item of a list with {LIST_TYPE}=set"
            yield field_errors.invalid(f"{path}.items.{key}", items.get(key), why)


def _map(keys: Sequence[str], items: Schema, path: str) -> Iterator[Cause]:
    if not keys:
        yield field_errors.required(f"{path}.{MAP_KEYS}", f"must not be empty if {LIST_TYPE} is map")
    if items.get("type") != "object":
        why = f"must be object if parent array's {LIST_TYPE} is map"
        yield field_errors.invalid(f"{path}.items.type", items.get("type", ""), why)
        return
    if len(set(keys)) != len(keys):
        yield field_errors.invalid(f"{path}.{MAP_KEYS}", list(keys), "must not contain duplicate entries")
    for key in keys:
        prop = items.get("properties", {}).get(key)
        where = f"{path}.items.properties[{key}]"
        if prop is None:
            yield field_errors.invalid(f"{path}.{MAP_KEYS}", list(keys), "entries must all be names of item properties")
            continue
        if prop.get("type") in ("array", "object"):
            why = f"must be a scalar type if parent array's {LIST_TYPE} is map"
            yield field_errors.invalid(f"{where}.type", items["type"], why)
        if key not in items.get("required", ()) and "default" not in prop:
            why = f"this property is in {MAP_KEYS}, so it must have a default or be a required property"
            yield field_errors.required(f"{where}.default", why)
        if prop.get("nullable"):
            yield field_errors.forbidden(
                f"{where}.nullable", f"this property is in {MAP_KEYS}, so it cannot be nullable"
            )


def _metadata(schema: Schema, path: str, level: str) -> Iterator[Cause]:
    if level != "root" and not schema.get(EMBEDDED):
        return
    properties = schema.get("properties", {})
    for name in ("apiVersion", "kind"):
        kind = properties.get(name, {}).get("type", "")
        if name in properties and kind != "string":
            yield field_errors.invalid(f"{path}.properties[{name}].type", kind, "must be string")
    metadata = properties.get("metadata")
    if metadata is None:
        return
    where = f"{path}.properties[metadata]"
    if metadata.get("type") != "object":
        yield field_errors.invalid(f"{where}.type", metadata.get("type", ""), "must be object")
    named = set(metadata.get("properties", {})) <= {"name", "generateName"}
    if level == "root" and not (named and set(metadata) <= {"type", "properties", "description"}):
        why = "must not specify anything other than name and generateName, but metadata is implicitly specified"
        yield field_errors.forbidden(where, why)


def _default(schema: Schema, path: str) -> Iterator[Cause]:
    if "default" in schema:
        plain = {key: value for key, value in schema.items() if key != "default"}
        yield from wrong(schema["default"], plain, f"{path}.default")


def _junctors(schema: Schema, structure: Schema, path: str) -> Iterator[Cause]:
    """Value validations of ``schema`` must be about what ``structure`` specifies."""
    for name in ("allOf", "anyOf", "oneOf"):
        if schema.get(INT_OR_STRING) and schema.get(name) == INT_OR_STRING_PATTERN:
            continue
        for index, each in enumerate(schema.get(name, ())):
            if not (schema.get(INT_OR_STRING) and index == 0 and each.get("anyOf") == INT_OR_STRING_PATTERN):
                yield from _nested(each, structure, f"{path}.{name}[{index}]", path)
    if "not" in schema:
        yield from _nested(schema["not"], structure, f"{path}.not", path)


def _nested(schema: Schema, structure: Schema, path: str, place: str) -> Iterator[Cause]:
    for name, why in NESTED_FORBIDDEN.items():
        if schema.get(name):
            yield field_errors.forbidden(f"{path}.{name}", why)
    for name, below in schema.get("properties", {}).items():
        if name == "metadata":
            yield field_errors.forbidden(f"{path}.properties[metadata]", "must not be specified in a nested context")
        found = structure.get("properties", {}).get(name)
        if found is None:
            why = f"because it is defined in {path}.properties[{name}]"
            yield field_errors.required(f"{place}.properties[{name}]", why)
        else:
            yield from _nested(below, found, f"{path}.properties[{name}]", f"{place}.properties[{name}]")
    if "items" in schema:
        if "items" not in structure:
            yield field_errors.required(f"{place}.items", f"because it is defined in {path}.items")
        else:
            yield from _nested(schema["items"], structure["items"], f"{path}.items", f"{place}.items")
    yield from _junctors(schema, structure, path)
