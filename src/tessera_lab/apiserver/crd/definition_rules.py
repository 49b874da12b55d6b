"""Validation of a CustomResourceDefinition, with apiextensions-apiserver's rules and texts.

The server refuses features that it lacks instead of storing them: conversion webhooks answer 501.

A CRD's schema must be structural; :func:`check_structural` looks at it node by node.

The rules and texts are those of apiextensions-apiserver (``ValidateStructural`` and
``ValidateCustomResourceDefinitionOpenAPISchema``). Rules in CEL are read by :mod:`tessera_lab.apiserver.crd.cel_rules`.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tessera_lab.apiserver import field_errors
from tessera_lab.apiserver.crd.cel_rules import LIST_TYPE, RULES, check_cel_rules, path_below_list
from tessera_lab.apiserver.crd.value_validation import describe_pattern_error, validate_value
from tessera_lab.apiserver.interfaces import StatusCause
from tessera_lab.apiserver.status import not_implemented_error
from tessera_lab.apiserver.tables.jsonpath import parse_path

Schema = Mapping[str, Any]

TYPES = ("array", "boolean", "integer", "number", "object", "string")
EMBEDDED, KEEP = "x-kubernetes-embedded-resource", "x-kubernetes-preserve-unknown-fields"
INT_OR_STRING, MAP_TYPE = "x-kubernetes-int-or-string", "x-kubernetes-map-type"
MAP_KEYS = "x-kubernetes-list-map-keys"

#: Reasons why ``type`` is required, by place.
NO_TYPE = {
    "root": "must not be empty at the root",
    "item": "must not be empty for specified array items",
    "field": "must not be empty for specified object fields",
}
UNSUPPORTED = ("id", "additionalItems", "patternProperties", "definitions", "dependencies", "$ref")
#: Fields that are forbidden inside allOf, anyOf, oneOf and not.
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


def check_structural(schema: Schema, path: str) -> Iterator[StatusCause]:
    """Yields the reasons why a root schema is not structural.

    Raises:
        tessera_lab.apiserver.status.StatusError: 501, the schema has CEL rules that this server does not support.
    """
    yield from _check_node(schema, path, "root")
    if schema.get("nullable"):
        yield field_errors.forbidden_cause(f"{path}.nullable", "nullable cannot be true at the root")


def _check_node(schema: Schema, path: str, level: str, uncorrelatable: str = "") -> Iterator[StatusCause]:
    yield from _check_keywords(schema, path)
    yield from _check_type(schema, path, level)
    yield from _check_list_keywords(schema, path)
    yield from _check_metadata(schema, path, level)
    yield from _check_default(schema, path)
    yield from _check_junctors(schema, schema, path)
    yield from check_cel_rules(schema, path, uncorrelatable)
    yield from _check_children(schema, path, level, uncorrelatable)


def _check_children(schema: Schema, path: str, level: str, uncorrelatable: str) -> Iterator[StatusCause]:
    items, extra = schema.get("items"), schema.get("additionalProperties")
    if isinstance(items, Sequence):
        yield field_errors.forbidden_cause(f"{path}.items", "items must be a schema object and not an array")
    elif isinstance(items, Mapping):
        yield from _check_node(items, f"{path}.items", "item", path_below_list(schema, path, uncorrelatable))
    if extra is not None and level == "root":
        yield field_errors.forbidden_cause(f"{path}.additionalProperties", "must not be used at the root")
    if isinstance(extra, Mapping):
        yield from _check_node(extra, f"{path}.additionalProperties", "field", uncorrelatable)
    for name, below in schema.get("properties", {}).items():
        if not (name == "metadata" and level == "root"):
            yield from _check_node(below, f"{path}.properties[{name}]", "field", uncorrelatable)


def _check_keywords(schema: Schema, path: str) -> Iterator[StatusCause]:
    for name in UNSUPPORTED:
        if name in schema:
            yield field_errors.forbidden_cause(f"{path}.{name}", f"{name} is not supported")
    if schema.get("uniqueItems"):
        reason = "uniqueItems cannot be set to true since the runtime complexity becomes quadratic"
        yield field_errors.forbidden_cause(f"{path}.uniqueItems", reason)
    if schema.get("properties") and schema.get("additionalProperties") not in (None, True):
        yield field_errors.forbidden_cause(
            f"{path}.additionalProperties", "additionalProperties and properties are mutual exclusive"
        )
    if schema.get(KEEP) is False:
        yield field_errors.invalid_cause(f"{path}.{KEEP}", False, "must be true or undefined")
    problem = describe_pattern_error(schema.get("pattern", ""))
    if problem:
        reason = f"must be a valid regular expression, but isn't: {problem}"
        yield field_errors.invalid_cause(f"{path}.pattern", schema["pattern"], reason)


def _check_type(schema: Schema, path: str, level: str) -> Iterator[StatusCause]:
    kind = schema.get("type", "")
    where = f"{path}.type"
    if kind == "null":
        yield field_errors.forbidden_cause(where, "type cannot be set to null, use nullable as an alternative")
    elif kind and kind not in TYPES:
        yield field_errors.unsupported_cause(where, kind, TYPES)
    if schema.get(EMBEDDED) and kind != "object":
        reason = f"must be object if {EMBEDDED} is true"
        yield field_errors.invalid_cause(where, kind, reason) if kind else field_errors.required_cause(where, reason)
    elif not kind and not schema.get(INT_OR_STRING) and not schema.get(KEEP):
        yield field_errors.required_cause(where, NO_TYPE[level])
    if level == "root" and kind and kind != "object":
        yield field_errors.invalid_cause(where, kind, "must be object at the root")
    if kind == "array" and "items" not in schema:
        yield field_errors.required_cause(f"{path}.items", "must be specified")
    for other in (KEEP, EMBEDDED):
        if schema.get(INT_OR_STRING) and schema.get(other):
            yield field_errors.invalid_cause(f"{path}.{other}", True, f"must be false if {INT_OR_STRING} is true")
    if schema.get(EMBEDDED) and not schema.get(KEEP) and not schema.get("properties"):
        reason = f"must not be empty if {EMBEDDED} is true without {KEEP}"
        yield field_errors.required_cause(f"{path}.properties", reason)


def _check_list_keywords(schema: Schema, path: str) -> Iterator[StatusCause]:
    for key, kind, known in (
        (MAP_TYPE, "object", ("atomic", "granular")),
        (LIST_TYPE, "array", ("atomic", "set", "map")),
    ):
        if key not in schema:
            continue
        if schema.get("type") != kind:
            reason, have = f"must be {kind} if {key} is specified", schema.get("type", "")
            yield (
                field_errors.invalid_cause(f"{path}.type", have, reason)
                if have
                else field_errors.required_cause(f"{path}.type", reason)
            )
        if schema[key] not in known:
            yield field_errors.unsupported_cause(f"{path}.{key}", schema[key], known)
    keys, items = schema.get(MAP_KEYS, []), schema.get("items")
    if keys and schema.get(LIST_TYPE) != "map":
        reason, have = f"must be map if {MAP_KEYS} is non-empty", schema.get(LIST_TYPE)
        where = f"{path}.{LIST_TYPE}"
        yield field_errors.invalid_cause(where, have, reason) if have else field_errors.required_cause(where, reason)
    if schema.get(LIST_TYPE) in ("set", "map") and isinstance(items, Mapping):
        if items.get("nullable"):
            reason = f"cannot be nullable when {LIST_TYPE} is {schema[LIST_TYPE]}"
            yield field_errors.forbidden_cause(f"{path}.items.nullable", reason)
        yield from _check_set(items, path) if schema[LIST_TYPE] == "set" else _check_map(keys, items, path)


def _check_set(items: Schema, path: str) -> Iterator[StatusCause]:
    for kind, key in (("array", LIST_TYPE), ("object", MAP_TYPE)):
        implied = "atomic" if kind == "array" else None
        if items.get("type") == kind and items.get(key, implied) != "atomic":
            reason = f"must be atomic as item of a list with {LIST_TYPE}=set"
            yield field_errors.invalid_cause(f"{path}.items.{key}", items.get(key), reason)


def _check_map(keys: Sequence[str], items: Schema, path: str) -> Iterator[StatusCause]:
    if not keys:
        yield field_errors.required_cause(f"{path}.{MAP_KEYS}", f"must not be empty if {LIST_TYPE} is map")
    if items.get("type") != "object":
        reason = f"must be object if parent array's {LIST_TYPE} is map"
        yield field_errors.invalid_cause(f"{path}.items.type", items.get("type", ""), reason)
        return
    if len(set(keys)) != len(keys):
        yield field_errors.invalid_cause(f"{path}.{MAP_KEYS}", list(keys), "must not contain duplicate entries")
    for key in keys:
        prop = items.get("properties", {}).get(key)
        where = f"{path}.items.properties[{key}]"
        if prop is None:
            yield field_errors.invalid_cause(
                f"{path}.{MAP_KEYS}", list(keys), "entries must all be names of item properties"
            )
            continue
        if prop.get("type") in ("array", "object"):
            reason = f"must be a scalar type if parent array's {LIST_TYPE} is map"
            yield field_errors.invalid_cause(f"{where}.type", items["type"], reason)
        if key not in items.get("required", ()) and "default" not in prop:
            reason = f"this property is in {MAP_KEYS}, so it must have a default or be a required property"
            yield field_errors.required_cause(f"{where}.default", reason)
        if prop.get("nullable"):
            yield field_errors.forbidden_cause(
                f"{where}.nullable", f"this property is in {MAP_KEYS}, so it cannot be nullable"
            )


def _check_metadata(schema: Schema, path: str, level: str) -> Iterator[StatusCause]:
    if level != "root" and not schema.get(EMBEDDED):
        return
    properties = schema.get("properties", {})
    for name in ("apiVersion", "kind"):
        kind = properties.get(name, {}).get("type", "")
        if name in properties and kind != "string":
            yield field_errors.invalid_cause(f"{path}.properties[{name}].type", kind, "must be string")
    metadata = properties.get("metadata")
    if metadata is None:
        return
    where = f"{path}.properties[metadata]"
    if metadata.get("type") != "object":
        yield field_errors.invalid_cause(f"{where}.type", metadata.get("type", ""), "must be object")
    named = set(metadata.get("properties", {})) <= {"name", "generateName"}
    if level == "root" and not (named and set(metadata) <= {"type", "properties", "description"}):
        reason = "must not specify anything other than name and generateName, but metadata is implicitly specified"
        yield field_errors.forbidden_cause(where, reason)


def _check_default(schema: Schema, path: str) -> Iterator[StatusCause]:
    if "default" in schema:
        plain = {key: value for key, value in schema.items() if key != "default"}
        yield from validate_value(schema["default"], plain, f"{path}.default")


def _check_junctors(schema: Schema, structure: Schema, path: str) -> Iterator[StatusCause]:
    """Yields errors of value validations in ``schema`` about fields that ``structure`` does not specify."""
    for name in ("allOf", "anyOf", "oneOf"):
        if schema.get(INT_OR_STRING) and schema.get(name) == INT_OR_STRING_PATTERN:
            continue
        for index, each in enumerate(schema.get(name, ())):
            if not (schema.get(INT_OR_STRING) and index == 0 and each.get("anyOf") == INT_OR_STRING_PATTERN):
                yield from _check_nested(each, structure, f"{path}.{name}[{index}]", path)
    if "not" in schema:
        yield from _check_nested(schema["not"], structure, f"{path}.not", path)


def _check_nested(schema: Schema, structure: Schema, path: str, place: str) -> Iterator[StatusCause]:
    for name, reason in NESTED_FORBIDDEN.items():
        if schema.get(name):
            yield field_errors.forbidden_cause(f"{path}.{name}", reason)
    for name, below in schema.get("properties", {}).items():
        if name == "metadata":
            yield field_errors.forbidden_cause(
                f"{path}.properties[metadata]", "must not be specified in a nested context"
            )
        found = structure.get("properties", {}).get(name)
        if found is None:
            reason = f"because it is defined in {path}.properties[{name}]"
            yield field_errors.required_cause(f"{place}.properties[{name}]", reason)
        else:
            yield from _check_nested(below, found, f"{path}.properties[{name}]", f"{place}.properties[{name}]")
    if "items" in schema:
        if "items" not in structure:
            yield field_errors.required_cause(f"{place}.items", f"because it is defined in {path}.items")
        else:
            yield from _check_nested(schema["items"], structure["items"], f"{path}.items", f"{place}.items")
    yield from _check_junctors(schema, structure, path)


Part = Mapping[str, Any]

_LABEL = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")
_LABEL_RULE = (
    "a DNS-1035 label must consist of lower case alphanumeric characters or '-', start with an alphabetic character, "
    "and end with an alphanumeric character (e.g. 'my-name',  or 'abc-123', regex used for validation is "
    "'[a-z]([-a-z0-9]*[a-z0-9])?')"
)
COLUMN_TYPES = ("boolean", "date", "integer", "number", "string")
COLUMN_FORMATS = ("byte", "date", "date-time", "double", "float", "int32", "int64", "password")
APPROVED = "api-approved.kubernetes.io"


def validate_definition(crd: Part) -> Sequence[StatusCause]:
    """Returns the errors of a definition; the caller has set its defaults (listKind, singular).

    Raises:
        tessera_lab.apiserver.status.StatusError: 501, it uses a feature that this server lacks.
    """
    spec = crd.get("spec") or {}
    if (spec.get("conversion") or {}).get("strategy", "None") != "None":
        raise not_implemented_error("spec.conversion.strategy Webhook (conversion of custom resources)")
    if any(version.get("selectableFields") for version in spec.get("versions") or ()):
        raise not_implemented_error("spec.versions[*].selectableFields (field selectors of custom resources)")
    return [*_check_identity(crd, spec), *_check_names(spec.get("names") or {}), *_check_versions(spec)]


def _check_label(field: str, value: str) -> Iterator[StatusCause]:
    if len(value) > 63:
        yield field_errors.invalid_cause(field, value, "must be no more than 63 characters")
    if not _LABEL.fullmatch(value):
        yield field_errors.invalid_cause(field, value, _LABEL_RULE)


def _check_identity(crd: Part, spec: Part) -> Iterator[StatusCause]:
    group, plural = spec.get("group", ""), (spec.get("names") or {}).get("plural", "")
    name = (crd.get("metadata") or {}).get("name", "")
    if name != f"{plural}.{group}":
        yield field_errors.invalid_cause("metadata.name", name, 'must be spec.names.plural+"."+spec.group')
    if not group:
        yield field_errors.required_cause("spec.group")
    elif not field_errors.SUBDOMAIN.fullmatch(group):
        yield field_errors.invalid_cause("spec.group", group, field_errors.SUBDOMAIN_RULE)
    elif "." not in group:
        yield field_errors.invalid_cause("spec.group", group, "should be a domain with at least one dot")
    if not spec.get("scope"):
        yield field_errors.required_cause("spec.scope")
    elif spec["scope"] not in ("Cluster", "Namespaced"):
        yield field_errors.unsupported_cause("spec.scope", spec["scope"], ("Cluster", "Namespaced"))
    approval = ((crd.get("metadata") or {}).get("annotations") or {}).get(APPROVED)
    if group.endswith((".k8s.io", ".kubernetes.io")) and not approval:
        reason = f"protected groups must have approval annotation {field_errors.quote(APPROVED)}, see https://github.com/kubernetes/enhancements/pull/1111"
        yield field_errors.required_cause(f"metadata.annotations[{APPROVED}]", reason)
    if spec.get("preserveUnknownFields"):
        reason = (
            "cannot set to true, set x-kubernetes-preserve-unknown-fields to true in spec.versions[*].schema instead"
        )
        yield field_errors.invalid_cause("spec.preserveUnknownFields", True, reason)


def _check_names(names: Part) -> Iterator[StatusCause]:
    for name in ("plural", "singular", "kind", "listKind"):
        value = names.get(name, "")
        if not value:
            yield field_errors.required_cause(f"spec.names.{name}")
        elif name in ("kind", "listKind") and not _LABEL.fullmatch(value.lower()):
            reason = f"may have mixed case, but should otherwise match: {_LABEL_RULE}"
            yield field_errors.invalid_cause(f"spec.names.{name}", value, reason)
        elif name in ("plural", "singular"):
            yield from _check_label(f"spec.names.{name}", value)
    for name in ("shortNames", "categories"):
        for index, value in enumerate(names.get(name) or ()):
            yield from _check_label(f"spec.names.{name}[{index}]", value)
    if names.get("kind") and names.get("kind") == names.get("listKind"):
        yield field_errors.invalid_cause(
            "spec.names.listKind", names["listKind"], "kind and listKind may not be the same"
        )


def _check_versions(spec: Part) -> Iterator[StatusCause]:
    versions = spec.get("versions") or []
    names = [version.get("name", "") for version in versions]
    for index, name in enumerate(names):
        if not _LABEL.fullmatch(name):
            yield field_errors.invalid_cause(f"spec.versions[{index}].name", name, _LABEL_RULE)
    if len(set(names)) != len(names):
        yield field_errors.invalid_cause("spec.versions", names, "must contain unique version names")
    if sum(1 for version in versions if version.get("storage")) != 1:
        reason = "must have exactly one version marked as storage version"
        yield field_errors.invalid_cause("spec.versions", names, reason)
    shared = len({field_errors.format_value(version.get("schema")) for version in versions}) == 1
    for index, version in enumerate(versions):
        place = f"spec.versions[{index}]"
        schema = (version.get("schema") or {}).get("openAPIV3Schema")
        if schema is None:
            yield field_errors.required_cause(f"{place}.schema.openAPIV3Schema", "schemas are required")
        elif not shared or index == 0:
            root = "spec.validation.openAPIV3Schema" if shared else f"{place}.schema.openAPIV3Schema"
            yield from check_structural(schema, root)
        yield from _check_scale(((version.get("subresources") or {}).get("scale")), f"{place}.subresources")
        for number, column in enumerate(version.get("additionalPrinterColumns") or ()):
            yield from _check_column(column, f"{place}.additionalPrinterColumns[{number}]")


def _check_scale(scale: Part | None, place: str) -> Iterator[StatusCause]:
    if scale is None:
        return
    for name, prefixes, rule in (
        ("specReplicasPath", (".spec.",), "should be a json path under .spec"),
        ("statusReplicasPath", (".status.",), "should be a json path under .status"),
        ("labelSelectorPath", (".spec.", ".status."), "should be a json path under either .spec or .status"),
    ):
        value = scale.get(name, "")
        where = f"{place}.scale.{name}"
        if not value and name != "labelSelectorPath":
            yield field_errors.required_cause(where)
        elif value and not value.startswith("."):
            yield field_errors.invalid_cause(where, value, "must be a simple json path starting with .")
        elif value and not value.startswith(prefixes):
            yield field_errors.invalid_cause(where, value, rule)


def _check_column(column: Part, place: str) -> Iterator[StatusCause]:
    kind, path = column.get("type", ""), column.get("jsonPath", "")
    known = f"must be one of {','.join(COLUMN_TYPES)}"
    if not column.get("name"):
        yield field_errors.required_cause(f"{place}.name")
    if not kind:
        yield field_errors.required_cause(f"{place}.type", known)
    elif kind not in COLUMN_TYPES:
        yield field_errors.invalid_cause(f"{place}.type", kind, known)
    if column.get("format") and column["format"] not in COLUMN_FORMATS:
        yield field_errors.invalid_cause(
            f"{place}.format", column["format"], f"must be one of {','.join(COLUMN_FORMATS)}"
        )
    if not path:
        yield field_errors.required_cause(f"{place}.JSONPath")
    elif not path.startswith("."):
        yield field_errors.invalid_cause(f"{place}.JSONPath", path, "must be a simple json path starting with .")
    else:
        yield from _parse_path(path, place)


def _parse_path(path: str, place: str) -> Iterator[StatusCause]:
    try:
        parse_path(path)
    except ValueError as error:
        yield field_errors.invalid_cause(f"{place}.JSONPath", path, str(error))
