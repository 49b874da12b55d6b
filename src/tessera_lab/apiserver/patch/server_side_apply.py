"""Server-side apply: a manager states the fields that it wants; fields that it stated before and omits now are removed.

1. Merge the configuration into the live object; associative lists merge by their keys.
2. A change of a field that another manager owns is a conflict: it is refused, or with force the field changes owner.
3. Remove fields of the manager's last configuration that are not in this one and that no other manager owns.
4. The manager owns exactly the fields that it stated.

Rules and texts: ``k8s.io/apimachinery/pkg/util/managedfields``. Pure.

Why no library: the algorithm exists in Go only (structured-merge-diff); kmock 0.8, the one API server written in
Python, has neither server-side apply nor strategic merge.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tessera_lab.apiserver.interfaces import Obj, StatusCause
from tessera_lab.apiserver.patch.field_sets import (
    SELF,
    Fields,
    changed_fields,
    child_topology,
    difference,
    field_paths,
    fields_of,
    intersection,
    is_associative,
    item_key,
    union,
)
from tessera_lab.apiserver.patch.managed_fields import (
    FieldWriter,
    ManagedFieldsEntry,
    owners_before_apply,
    remove_system_fields,
    store_entries,
)
from tessera_lab.apiserver.resource_types import MergeTopology
from tessera_lab.apiserver.status import StatusError
from tessera_lab.apiserver.storage.store import deep_copy

_PLAIN = MergeTopology()


def apply_configuration(
    live: Obj,
    config: Obj,
    writer: FieldWriter,
    topology: MergeTopology,
    *,
    settle: Callable[[Obj], None],
    force: bool,
    now: str,
) -> Obj:
    """Returns the live object with the configuration applied.

    Args:
        live: the stored object; only name and namespace if there is none.
        config: the configuration that the manager sends.
        writer: the manager.
        topology: merge rules of the kind.
        settle: brings an object into its stored form in place (``cpu: 0.5`` is ``"500m"``), so that only fields that
            really change can conflict.
        force: true to take over fields from other managers.
        now: time of a new entry of managedFields.

    Raises:
        StatusError: 409, another manager owns a field that would change.
    """
    desired = remove_nulls(config)
    merged: Obj = _merge(live, desired, topology)
    stated = fields_of(remove_system_fields(desired), topology) if remove_system_fields(desired) else {}
    entries = owners_before_apply(live, topology, now)
    others = [each for each in entries if not each.is_by(writer)]
    last = next((each for each in entries if each.is_by(writer)), None)
    settled = deep_copy(merged)
    settle(settled)
    changed, _ = changed_fields(remove_system_fields(live), remove_system_fields(settled), topology)
    contested = intersection(changed, stated)
    clashes = [(each, intersection(each.fields, contested)) for each in others]
    clashes = [(each, fields) for each, fields in clashes if fields]
    if clashes and not force:
        raise _conflict(clashes)
    lost = {id(each): fields for each, fields in clashes}
    others = [
        ManagedFieldsEntry(e.writer, e.time, difference(e.fields, lost[id(e)])) if id(e) in lost else e for e in others
    ]
    if last is not None:
        owned: Fields = {}
        for each in others:
            owned = union(owned, each.fields)
        merged = _remove_fields(
            merged, difference(difference(last.fields, stated), owned), union(owned, stated), topology
        )
    time = last.time if last is not None and last.fields == stated else now
    store_entries(merged, [*others, ManagedFieldsEntry(writer, time, stated)])
    return merged


def remove_nulls(value: Any) -> Any:
    """Returns a configuration without its null fields, which state nothing."""
    if isinstance(value, dict):
        return {key: remove_nulls(each) for key, each in value.items() if each is not None}
    return [remove_nulls(each) for each in value] if isinstance(value, list) else value


def _merge(live: Any, config: Any, node: MergeTopology) -> Any:
    if isinstance(config, dict) and isinstance(live, dict) and not node.atomic_map:
        merged = dict(live)
        for key, value in config.items():
            merged[key] = _merge(live[key], value, child_topology(node, key)) if key in live else deep_copy(value)
        return merged
    if isinstance(live, list) and is_associative(config, node) and is_associative(live, node):
        return _merge_list(live, config, node)
    return deep_copy(config)


def _merge_list(live: Sequence[Any], config: Sequence[Any], node: MergeTopology) -> list[Any]:
    """Merges a list in the configuration's order; live elements that it does not name keep their relative place."""
    was = {item_key(each, node): each for each in live}
    desired = {item_key(each, node): each for each in config}
    result: list[Any] = []
    rest = list(was)
    for key, item in desired.items():
        while rest and rest[0] not in desired:
            result.append(was[rest.pop(0)])
        if rest:
            rest.pop(0)
        result.append(_merge(was[key], item, node.items or _PLAIN) if key in was else deep_copy(item))
    return [*result, *(was[key] for key in rest if key not in desired)]


def _remove_fields(value: Any, removed: Mapping[str, Any], owned: Mapping[str, Any], node: MergeTopology) -> Any:
    """Returns the value without the fields in ``removed``; a place that contains an owned field stays."""
    if isinstance(value, dict):
        retained = {}
        for key, each in value.items():
            name = f"f:{key}"
            if name not in removed:
                retained[key] = each
            elif not _is_removed(removed[name], owned.get(name)):
                remaining = _remove_fields(each, removed[name], owned.get(name) or {}, child_topology(node, key))
                if remaining not in ({}, []) or owned.get(name):
                    retained[key] = remaining
        return retained
    if is_associative(value, node):
        left_items = []
        for each in value:
            name = item_key(each, node)
            if name not in removed:
                left_items.append(each)
            elif not _is_removed(removed[name], owned.get(name)):
                left_items.append(_remove_fields(each, removed[name], owned.get(name) or {}, node.items or _PLAIN))
        return left_items
    return value


def _is_removed(removed: Mapping[str, Any], owned: Mapping[str, Any] | None) -> bool:
    return SELF in removed and not owned


def _conflict(clashes: Sequence[tuple[ManagedFieldsEntry, Fields]]) -> StatusError:
    found = [(entry.writer.describe, path) for entry, fields in clashes for path in field_paths(fields)]
    causes = [
        StatusCause(reason="FieldManagerConflict", message=f"conflict with {who}", field=path) for who, path in found
    ]
    if len(found) == 1:
        text = f"Apply failed with 1 conflict: conflict with {found[0][0]}: {found[0][1]}"
    else:
        lines = []
        for who in sorted({who for who, _ in found}):
            lines.append(f"conflicts with {who}:")
            lines += [f"- {path}" for manager, path in found if manager == who]
        text = f"Apply failed with {len(found)} conflicts: " + "\n".join(lines)
    return StatusError(409, "Conflict", text, causes=causes)
