"""Schema of a built-in kind: unknown fields, static defaults, types, enumerations, required fields.

Rules of kube-apiserver: null is the same as absent; a value of the wrong type is refused (400) before validation; a
field that the OpenAPI definitions require is only checked if the server's validation checks it (ENFORCED), because
clients of status subresources often leave such fields out. Rules between several fields (a pod's immutable spec,
selectors that must match) are checked elsewhere: :mod:`tessera_lab.apiserver.kinds`, :mod:`tessera_lab.apiserver.pods`.
"""

from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any

from tessera_lab.apiserver.field_errors import child, required_cause, unsupported_cause
from tessera_lab.apiserver.interfaces import Obj, StatusCause
from tessera_lab.apiserver.schemas import Definition, SchemaLibrary, schema_library
from tessera_lab.apiserver.schemas.compiled_schema import (
    QUANTITY,
    CompiledSchemas,
    describe_base64_error,
    is_blank,
    is_time,
)
from tessera_lab.apiserver.status import bad_request_error

#: Definitions, by the last part of their name, whose required fields the server's validation checks.
ENFORCED = frozenset(
    {
        "ClusterRoleBinding",
        "Container",
        "ContainerPort",
        "CustomResourceColumnDefinition",
        "CustomResourceDefinitionNames",
        "CustomResourceDefinitionVersion",
        "DaemonSetSpec",
        "DeploymentSpec",
        "EnvVar",
        "JobSpec",
        "LabelSelectorRequirement",
        "MatchCondition",
        "MutatingWebhook",
        "NodeSelector",
        "NodeSelectorRequirement",
        "OwnerReference",
        "PodAffinityTerm",
        "PodSpec",
        "PodTemplateSpec",
        "PolicyRule",
        "ReplicaSetSpec",
        "RoleBinding",
        "RoleRef",
        "ServicePort",
        "StatefulSetSpec",
        "Subject",
        "Taint",
        "TopologySpreadConstraint",
        "Validation",
        "ValidatingWebhook",
        "Variable",
        "Volume",
        "VolumeMount",
    }
)

#: Fields that the definitions require, but neither the server's validation nor its defaulting.
NOT_ENFORCED = {("StatefulSetSpec", "serviceName"), ("RoleRef", "apiGroup"), ("CustomResourceDefinitionNames", "kind")}

GO_KINDS = {bool: "bool", int: "number", float: "number", str: "string", list: "array", dict: "object"}


class BuiltinSchema:
    """Implements :class:`tessera_lab.apiserver.interfaces.Schema` for one built-in kind."""

    def __init__(self, found: SchemaLibrary, version: str, kind: str, definition: str) -> None:
        self._library = found
        self._version = version
        self._kind = kind
        self._name = definition
        self._shape = _shapes().kind(definition)

    def is_sound(self, obj: Mapping[str, Any]) -> bool:
        """True if all types are right and no field is unknown. A quick check: False needs the full checks."""
        return self._shape.sound(obj)

    def unknown_fields(self, obj: Mapping[str, Any]) -> Sequence[str]:
        """Paths of fields that the kind does not have."""
        if self._shape.sound(obj):
            return []
        return [path for path, _, _ in self._unknown_fields(obj, {"$ref": self._name}, "")]

    def prune(self, obj: Obj) -> None:
        """Removes unknown fields."""
        for _, parent, field in list(self._unknown_fields(obj, {"$ref": self._name}, "")):
            del parent[field]

    def settle(self, obj: Obj) -> None:
        """Removes fields with null, which is the same as absent."""
        self._shape.settle(obj)

    def default(self, obj: Obj) -> None:
        """Sets the defaults that depend on no other field."""
        self._shape.fill(obj)

    def validate(self, obj: Mapping[str, Any], old: Mapping[str, Any] | None) -> Sequence[StatusCause]:
        """Returns errors for missing and unsupported values.

        Raises:
            tessera_lab.apiserver.status.StatusError: 400, a value has the wrong type.
        """
        del old
        if self._shape.complete(obj):
            return []
        self._check_types(obj, {"$ref": self._name}, "", self._kind)
        return list(self._validate_value(obj, {"$ref": self._name}, ""))

    def check_types(self, obj: Mapping[str, Any]) -> None:
        """Checks types in the order in which the server decodes.

        Raises:
            tessera_lab.apiserver.status.StatusError: 400, a value has the wrong type.
        """
        self._check_types(obj, {"$ref": self._name}, "", self._kind)

    def _unknown_fields(self, value: Any, schema: Definition, path: str) -> Iterator[tuple[str, Any, str]]:
        """Yields path, parent and name of every unknown field."""
        node = self._library.resolve(schema)
        if isinstance(value, dict):
            properties = node.get("properties")
            extra = node.get("additionalProperties")
            for name, below in value.items():
                if properties is not None and name in properties:
                    yield from self._unknown_fields(below, properties[name], child(path, name))
                elif extra is not None:
                    yield from self._unknown_fields(below, extra, child(path, name))
                elif properties is not None:
                    yield child(path, name), value, name
        elif isinstance(value, list) and "items" in node:
            for index, each in enumerate(value):
                yield from self._unknown_fields(each, node["items"], f"{path}[{index}]")

    def _check_types(self, value: Any, schema: Definition, path: str, struct: str) -> None:
        node = self._library.resolve(schema)
        if "$ref" in schema and "properties" in node:
            struct = schema["$ref"].rpartition(".")[2]
        if value is None:
            return
        problem = _type_problem(value, node)
        if problem:
            place = f"Go struct field {struct}.{path}" if path else "Go value"
            raise bad_request_error(
                f'{self._kind} in version "{self._version}" cannot be handled as a {self._kind}: '
                + problem.replace("@", f"{place}", 1)
            )
        if isinstance(value, dict):
            properties, extra = node.get("properties", {}), node.get("additionalProperties")
            for name, below in value.items():
                following = properties.get(name, extra)
                if following is not None:
                    self._check_types(below, following, child(path, name), struct)
        elif isinstance(value, list) and "items" in node:
            for each in value:
                self._check_types(each, node["items"], path, struct)

    def _validate_value(self, value: Any, schema: Definition, path: str) -> Iterator[StatusCause]:
        node = self._library.resolve(schema)
        if isinstance(value, dict):
            yield from self._missing_fields(value, schema, node, path)
            properties, extra = node.get("properties", {}), node.get("additionalProperties")
            for name, below in value.items():
                following = properties.get(name, extra)
                if below is not None and following is not None:
                    yield from self._validate_value(below, following, child(path, name))
        elif isinstance(value, list) and "items" in node:
            for index, each in enumerate(value):
                yield from self._validate_value(each, node["items"], f"{path}[{index}]")
        elif "enum" in schema and value != "" and value not in schema["enum"]:
            yield unsupported_cause(path, value, sorted(schema["enum"]))

    def _missing_fields(
        self, value: Mapping[str, Any], schema: Definition, node: Definition, path: str
    ) -> Iterator[StatusCause]:
        for name in _required_fields(schema, node):
            if is_blank(value.get(name)):
                yield required_cause(child(path, name))


@cache
def _shapes() -> CompiledSchemas:
    return CompiledSchemas(schema_library(), _required_fields)


def _required_fields(schema: Definition, node: Definition) -> tuple[str, ...]:
    kind = schema.get("$ref", "").rpartition(".")[2]
    if kind not in ENFORCED:
        return ()
    return tuple(name for name in node.get("required", ()) if (kind, name) not in NOT_ENFORCED)


def _type_problem(value: Any, node: Definition) -> str:
    """Go's decoding error about a value of the wrong type, with ``@`` for the place; empty if the type is right."""
    have = GO_KINDS.get(type(value), "null")
    if node.get("x-kubernetes-int-or-string"):
        fits = have == "string" or (have == "number" and isinstance(value, int))
        return "" if fits else f"json: cannot unmarshal {have} into @ of type intstr.IntOrString"
    if node.get("format") == "quantity":
        if have == "number" or (have == "string" and QUANTITY.fullmatch(value)):
            return ""
        return (
            "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'"
            if have == "string"
            else f"json: cannot unmarshal {have} into @ of type resource.Quantity"
        )
    return _scalar_problem(value, node, have)


def _scalar_problem(value: Any, node: Definition, have: str) -> str:
    want = node.get("type")
    kind = node.get("format", "")
    if want is None:
        return ""
    if want == "integer":
        bits = 32 if kind == "int32" else 64
        fits = have == "number" and value == int(value) and -(2 ** (bits - 1)) <= value < 2 ** (bits - 1)
        text = f"number {value}" if have == "number" else have
        return "" if fits else f"json: cannot unmarshal {text} into @ of type int{bits}"
    fits = have == {"boolean": "bool"}.get(want, want)
    if not fits:
        go = {"boolean": "bool", "object": "map[string]interface {}", "array": "[]interface {}", "number": "float64"}
        return f"json: cannot unmarshal {have} into @ of type {go.get(want, want)}"
    if kind == "byte":
        return describe_base64_error(value)
    if kind == "date-time" and not is_time(value):
        return f'parsing time "{value}" as "2006-01-02T15:04:05Z07:00": cannot parse "{value}" as "2006"'
    return ""


def builtin_schema(group: str, version: str, kind: str) -> BuiltinSchema | None:
    """Returns the schema of a built-in kind; None for any other kind."""
    found = schema_library()
    name = found.name(group, version, kind)
    shown = f"{group}/{version}" if group else version
    return None if name is None else BuiltinSchema(found, shown, kind, name)
