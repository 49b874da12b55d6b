"""Validation of a CustomResourceDefinition, with apiextensions-apiserver's rules and texts.

The server refuses features that it lacks instead of storing them: conversion webhooks answer 501.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tessera_lab.apiserver import field_errors
from tessera_lab.apiserver.crd.structural_rules import check_structural
from tessera_lab.apiserver.interfaces import StatusCause
from tessera_lab.apiserver.status import not_implemented_error
from tessera_lab.apiserver.tables.jsonpath import parse_path

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
