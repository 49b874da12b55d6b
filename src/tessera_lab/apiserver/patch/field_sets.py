"""Sets of fields as in managedFields (``FieldsV1``), and the fields in which two objects differ.

A set is a tree: ``f:name`` is a field, ``k:{...}`` an element of an associative list, ``v:...`` of a set; the key ``.``
means that the place itself is a member. A stored leaf is ``{}``; in this module every member has its ``.``. The kind's
topology says which lists are associative (``sigs.k8s.io/structured-merge-diff``). Pure.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from tessera_lab.apiserver.resource_types import MergeTopology

#: A tree of fields; every value is such a tree.
Fields = dict[str, Any]

SELF = "."
_PLAIN = MergeTopology()
_LEAF: Fields = {SELF: {}}
_MISSING = object()


def new_leaf() -> Fields:
    """Returns the set whose only member is the place itself."""
    return {SELF: {}}


def expand(stored: Mapping[str, Any]) -> Fields:
    """Converts a set from the form of ``fieldsV1``."""
    if not stored:
        return new_leaf()
    return {key: {} if key == SELF else expand(value) for key, value in stored.items()}


def compact(fields: Mapping[str, Any]) -> Fields:
    """Converts a set to the form of ``fieldsV1``."""
    return {key: {} if value == {SELF: {}} or key == SELF else compact(value) for key, value in fields.items()}


def remove_from_stored(stored: Fields, *taken: Mapping[str, Any]) -> Fields:
    """Removes the members of other sets from a stored set; the same set if none is removed, ``{}`` if all are."""
    for each in taken:
        if stored and each:
            remaining = _subtract(stored, each)
            stored = {} if remaining is None else remaining
    return stored


def _subtract(stored: Fields, taken: Mapping[str, Any]) -> Fields | None:
    """Returns None if no members are left; ``{}`` is a leaf."""
    if not stored:
        return None if SELF in taken else stored
    remaining: Fields | None = None
    for key in stored.keys() & taken.keys():
        rest = None if key == SELF else _subtract(stored[key], taken[key])
        if rest is stored[key]:
            continue
        if remaining is None:
            remaining = dict(stored)
        if rest is None:
            del remaining[key]
        else:
            remaining[key] = rest
    if remaining is None:
        return stored
    return ({} if remaining.keys() == {SELF} else remaining) if remaining else None


def add_to_stored(stored: Fields, added: Mapping[str, Any]) -> Fields:
    """Adds members to a stored set, in the stored form; returns the same set if it has them all.

    ``stored`` is the set of a whole object, so its root is no member.
    """
    joined: Fields | None = None
    for key, value in added.items():
        if key not in stored:
            more = {} if key == SELF or value == _LEAF else compact(value)
        elif key == SELF or (value == _LEAF and not stored[key]):
            continue
        else:
            was = stored[key] or _LEAF
            more = add_to_stored(was, value)
            if more is was:
                continue
        if joined is None:
            joined = dict(stored)
        joined[key] = more
    return stored if joined is None else joined


def child_topology(node: MergeTopology, key: str) -> MergeTopology:
    """Merge rules of a field."""
    return node.fields.get(key) or node.items or _PLAIN


def item_key(item: Any, node: MergeTopology) -> str:
    """The key of an element of an associative list or set, in a set of fields."""
    if node.list_type == "set":
        return "v:" + msgspec.json.encode(item).decode()
    values = {key: item.get(key, node.key_defaults.get(key)) for key in sorted(node.keys)}
    present = {key: value for key, value in values.items() if value is not None}
    return "k:" + msgspec.json.encode(present).decode()


def is_associative(value: Any, node: MergeTopology) -> bool:
    """True if the value is a list whose elements have owners of their own."""
    if not isinstance(value, list) or node.list_type == "atomic":
        return False
    return node.list_type == "set" or all(isinstance(each, dict) for each in value)


def fields_of(value: Any, node: MergeTopology) -> Fields:
    """Every field that a value sets."""
    if isinstance(value, dict) and value and not node.atomic_map:
        return {f"f:{key}": fields_of(each, child_topology(node, key)) for key, each in value.items()}
    if value and is_associative(value, node):
        return {item_key(each, node): _fields_of_item(each, node) for each in value}
    return new_leaf()


def _fields_of_item(item: Any, node: MergeTopology) -> Fields:
    inner = fields_of(item, node.items or _PLAIN) if isinstance(item, dict) else {}
    return {**inner, SELF: {}}


def union(one: Mapping[str, Any], other: Mapping[str, Any]) -> Fields:
    """Members of either."""
    joined = dict(one)
    for key, value in other.items():
        joined[key] = union(joined[key], value) if key in joined else value
    return joined


def difference(one: Mapping[str, Any], other: Mapping[str, Any]) -> Fields:
    """Members of ``one`` that are not in ``other``."""
    remaining: Fields = {}
    for key, value in one.items():
        if key not in other:
            remaining[key] = value
        elif key != SELF and (rest := difference(value, other[key])):
            remaining[key] = rest
    return remaining


def intersection(one: Mapping[str, Any], other: Mapping[str, Any]) -> Fields:
    """Members of both."""
    shared: Fields = {}
    for key in one.keys() & other.keys():
        if key == SELF:
            shared[key] = {}
        elif rest := intersection(one[key], other[key]):
            shared[key] = rest
    return shared


def field_paths(fields: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    """Members as texts: ``.spec.containers[name="main"].image``."""
    if SELF in fields:
        yield prefix
    for key in sorted(fields):
        if key != SELF:
            yield from field_paths(fields[key], prefix + _describe_key(key))


def _describe_key(key: str) -> str:
    kind, _, name = key.partition(":")
    if kind == "f":
        return f".{name}"
    if kind == "v":
        return f"[={name}]"
    pairs = msgspec.json.decode(name).items()
    return "[" + ",".join(f"{field}={msgspec.json.encode(value).decode()}" for field, value in pairs) + "]"


def changed_fields(old: Any, new: Any, node: MergeTopology) -> tuple[Fields, Fields]:
    """Returns the fields that differ between ``old`` and ``new``: (added or changed, removed). Skips equal parts."""
    if old == new:
        return {}, {}
    if isinstance(old, dict) and isinstance(new, dict) and old and new and not node.atomic_map:
        return _changed_map_fields(old, new, node)
    if old and new and is_associative(old, node) and is_associative(new, node):
        were, are = _items_by_key(old, node), _items_by_key(new, node)
        inner = node.items or _PLAIN
        changed, removed = _changed_children([(key, inner) for key in {**were, **are}], were, are)
        for key in are.keys() - were.keys():
            changed[key] = {**changed.get(key, {}), SELF: {}}
        for key in were.keys() - are.keys():
            removed[key] = {**removed.get(key, {}), SELF: {}}
        return changed, removed
    if old is _MISSING:
        return fields_of(new, node), {}
    if new is _MISSING:
        return {}, fields_of(old, node)
    return fields_of(new, node), difference(fields_of(old, node), fields_of(new, node))


def _changed_map_fields(old: Mapping[str, Any], new: Mapping[str, Any], node: MergeTopology) -> tuple[Fields, Fields]:
    changed: Fields = {}
    removed: Fields = {}
    for key in (*old, *(k for k in new if k not in old)):
        was, now = old.get(key, _MISSING), new.get(key, _MISSING)
        if was == now:
            continue
        added, deleted = changed_fields(was, now, child_topology(node, key))
        if added:
            changed[f"f:{key}"] = added
        if deleted:
            removed[f"f:{key}"] = deleted
    return changed, removed


def _items_by_key(items: Sequence[Any], node: MergeTopology) -> dict[str, Any]:
    return {item_key(each, node): each for each in items}


def _changed_children(
    nodes: Sequence[tuple[str, MergeTopology]], old: Mapping[str, Any], new: Mapping[str, Any]
) -> tuple[Fields, Fields]:
    changed: Fields = {}
    removed: Fields = {}
    for key, node in nodes:
        added, deleted = changed_fields(old.get(key, _MISSING), new.get(key, _MISSING), node)
        if added:
            changed[key] = added
        if deleted:
            removed[key] = deleted
    return changed, removed
