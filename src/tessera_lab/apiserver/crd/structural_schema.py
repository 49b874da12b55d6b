"""Applies a CRD's schema to custom resources: unknown fields, pruning, defaulting, validation.

Order of a write in kube-apiserver: prune unknown fields, set defaults (null in a field that is not nullable counts as
absent), validate, apply the CEL rules. ``apiVersion``, ``kind`` and ``metadata`` are known at the root and in embedded
resources without being in the schema.
"""

import copy
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tessera_lab.apiserver.crd.cel_rules import CelRules
from tessera_lab.apiserver.crd.value_validation import validate_value
from tessera_lab.apiserver.field_errors import child
from tessera_lab.apiserver.interfaces import Obj, StatusCause
from tessera_lab.apiserver.schemas.builtin_schema import builtin_schema

IMPLICIT = frozenset({"apiVersion", "kind", "metadata"})
KEEP = "x-kubernetes-preserve-unknown-fields"
EMBEDDED = "x-kubernetes-embedded-resource"


class StructuralSchema:
    """Implements :class:`tessera_lab.apiserver.interfaces.Schema` for one version of a CRD.

    Args:
        schema: its ``openAPIV3Schema``, checked by :mod:`tessera_lab.apiserver.crd.definition_rules`.
    """

    def __init__(self, schema: Mapping[str, Any]) -> None:
        self._schema = schema
        self._rules = CelRules(schema)

    @property
    def root(self) -> Mapping[str, Any]:
        """The ``openAPIV3Schema`` itself, read-only."""
        return self._schema

    def unknown_fields(self, obj: Mapping[str, Any]) -> Sequence[str]:
        """Returns the paths of unknown fields."""
        own = [path for path, _, _ in _unknown_fields(obj, self._schema, "", root=True)]
        return [*own, *_unknown_metadata_fields(obj)]

    def prune(self, obj: Obj) -> None:
        """Removes unknown fields."""
        for _, parent, name in list(_unknown_fields(obj, self._schema, "", root=True)):
            del parent[name]

    def default(self, obj: Obj) -> None:
        """Sets defaults and removes null from fields that are not nullable."""
        _default(obj, self._schema)

    def validate(self, obj: Mapping[str, Any], old: Mapping[str, Any] | None) -> Sequence[StatusCause]:
        """Returns the errors of an object; unchanged fields of an update pass, as in Kubernetes since 1.30."""
        found = list(validate_value(obj, self._schema, ""))
        if old is not None and found:
            before = set(validate_value(old, self._schema, ""))
            found = [cause for cause in found if cause not in before]
        return [*found, *self._rules.validate(obj, old, found)]


def _unknown_metadata_fields(obj: Mapping[str, Any]) -> Iterator[str]:
    meta = builtin_schema("", "v1", "ConfigMap")
    if meta is not None and isinstance(obj.get("metadata"), dict):
        yield from meta.unknown_fields({"metadata": obj["metadata"]})


def _unknown_fields(
    value: Any, schema: Mapping[str, Any], path: str, *, root: bool = False
) -> Iterator[tuple[str, Any, str]]:
    """Yields path, parent and name of every unknown field."""
    if isinstance(value, dict):
        properties, extra = schema.get("properties", {}), schema.get("additionalProperties")
        implicit = IMPLICIT if root or schema.get(EMBEDDED) else frozenset()
        for name, below in value.items():
            if name in implicit:
                continue
            following = properties.get(name, extra)
            if isinstance(following, Mapping):
                yield from _unknown_fields(below, following, child(path, name))
            elif not following and not schema.get(KEEP):
                yield child(path, name), value, name
    elif isinstance(value, list) and "items" in schema:
        for index, each in enumerate(value):
            yield from _unknown_fields(each, schema["items"], f"{path}[{index}]")


def _default(value: Any, schema: Mapping[str, Any]) -> None:
    if isinstance(value, dict):
        _default_object(value, schema)
    elif isinstance(value, list) and "items" in schema:
        for each in value:
            _default(each, schema["items"])


def _default_object(value: Obj, schema: Mapping[str, Any]) -> None:
    properties = schema.get("properties", {})
    for name, below in properties.items():
        absent = name not in value or (value[name] is None and not below.get("nullable"))
        if absent:
            value.pop(name, None)
            if "default" in below:
                value[name] = copy.deepcopy(below["default"])
        if name in value:
            _default(value[name], below)
    extra = schema.get("additionalProperties")
    if isinstance(extra, Mapping):
        for name in [each for each in value if each not in properties]:
            if value[name] is None and not extra.get("nullable"):
                del value[name]
            else:
                _default(value[name], extra)
