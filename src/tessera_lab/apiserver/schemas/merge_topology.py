"""Merge rules of the lists and maps of a kind, read from its schema.

Strategic merge looks at ``x-kubernetes-patch-strategy`` and ``x-kubernetes-patch-merge-key``, server-side apply at
``x-kubernetes-list-type``, ``-list-map-keys`` and ``-map-type``. Defaults: maps merge, lists are atomic. A definition
that contains itself is cut at its second appearance.
"""

from collections.abc import Mapping
from functools import cache
from typing import Any

from tessera_lab.apiserver.resource_types import MergeTopology
from tessera_lab.apiserver.schemas import schema_library

#: Rules of a plain value; parents leave such children out.
PLAIN = MergeTopology()


def _key_defaults(items: Mapping[str, Any], keys: tuple[str, ...]) -> dict[str, Any]:
    properties = items.get("properties", {})
    return {key: properties[key]["default"] for key in keys if "default" in properties.get(key, {})}


def _node(
    schema: Mapping[str, Any], definitions: Mapping[str, Any], path: tuple[str, ...], done: dict[str, MergeTopology]
) -> MergeTopology:
    """Returns the merge rules at one place; those of a definition are made once and shared."""
    name = schema.get("$ref")
    if name is None:
        return _own(schema, schema, definitions, path, done)
    if name in path:
        return PLAIN
    target = definitions[name]
    if name not in done:
        done[name] = _own(target, target, definitions, (*path, name), done)
    if not any(key.startswith("x-kubernetes-") for key in schema):
        return done[name]
    return _own(target, {**target, **schema}, definitions, (*path, name), done)


def _own(
    schema: Mapping[str, Any],
    rules: Mapping[str, Any],
    definitions: Mapping[str, Any],
    path: tuple[str, ...],
    done: dict[str, MergeTopology],
) -> MergeTopology:
    fields = {
        field: node
        for field, child in schema.get("properties", {}).items()
        if (node := _node(child, definitions, path, done)) != PLAIN
    }
    below = schema.get("items") or schema.get("additionalProperties")
    items = _node(below, definitions, path, done) if isinstance(below, Mapping) else None
    keys = tuple(rules.get("x-kubernetes-list-map-keys", ()))
    strategy = rules.get("x-kubernetes-patch-strategy", "").split(",")
    merge_key = rules.get("x-kubernetes-patch-merge-key", "") if "merge" in strategy else ""
    element = definitions[below["$ref"]] if isinstance(below, Mapping) and "$ref" in below else below
    return MergeTopology(
        fields=fields,
        items=items if items is not None and items != PLAIN else None,
        list_type=rules.get("x-kubernetes-list-type", "atomic"),
        keys=keys,
        key_defaults=_key_defaults(element, keys) if isinstance(element, Mapping) else {},
        merge_key=merge_key,
        merge_set="merge" in strategy and not merge_key and schema.get("type") == "array",
        retain_keys="retainKeys" in strategy,
        atomic_map=rules.get("x-kubernetes-map-type") == "atomic",
    )


@cache
def builtin_topology(group: str, version: str, kind: str) -> MergeTopology:
    """Merge rules of a built-in kind.

    Raises:
        KeyError: the kind is not built in.
    """
    found = schema_library()
    name = found.kinds[f"{group}/{version}/{kind}"]
    return _node({"$ref": name}, found.definitions, (), {})


def crd_topology(schema: Mapping[str, Any]) -> MergeTopology:
    """Returns the merge rules of a custom resource with this ``openAPIV3Schema``; metadata merges as in every kind."""
    own = _node(schema, {}, (), {})
    metadata = builtin_topology("", "v1", "ConfigMap").fields["metadata"]
    return MergeTopology(fields={**own.fields, "metadata": metadata})
