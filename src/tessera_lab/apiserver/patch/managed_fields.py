"""managedFields of an object: the owner of each field, updated by every write.

An Update becomes the only owner of the fields that it changes. Server-side apply is :mod:`server_side_apply`.
Rules: ``sigs.k8s.io/structured-merge-diff/v4/merge``.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from tessera_lab.apiserver.interfaces import Obj
from tessera_lab.apiserver.patch.field_sets import (
    Fields,
    add_to_stored,
    changed_fields,
    compact,
    expand,
    remove_from_stored,
)
from tessera_lab.apiserver.resource_types import MergeTopology

#: Fields of metadata that have no owner.
_SERVER_OWNED = frozenset(
    {
        "name",
        "namespace",
        "uid",
        "creationTimestamp",
        "resourceVersion",
        "generation",
        "managedFields",
        "selfLink",
        "deletionTimestamp",
        "deletionGracePeriodSeconds",
    }
)


class FieldWriter(msgspec.Struct, frozen=True, kw_only=True):
    """A field manager with its operation: identifies an entry of managedFields."""

    manager: str
    operation: str
    api_version: str
    subresource: str = ""

    @property
    def describe(self) -> str:
        """Names the writer as conflict texts do."""
        text = msgspec.json.encode(self.manager).decode()
        if self.subresource:
            text += f' with subresource "{self.subresource}"'
        return f"{text} using {self.api_version}" if self.operation == "Update" else text


class ManagedFieldsEntry(msgspec.Struct, frozen=True):
    """One entry: the writer, the time, the fields."""

    writer: FieldWriter
    time: str
    fields: Fields

    def is_by(self, writer: FieldWriter) -> bool:
        """True if the entry is that writer's; for an applier the version does not count."""
        if writer.operation == "Apply":
            return msgspec.structs.replace(self.writer, api_version="") == msgspec.structs.replace(
                writer, api_version=""
            )
        return self.writer == writer


def remove_system_fields(obj: Mapping[str, Any]) -> Obj:
    """Returns the object without the fields that have no owners."""
    retained = {key: value for key, value in obj.items() if key not in {"apiVersion", "kind", "metadata"}}
    meta = {key: value for key, value in obj.get("metadata", {}).items() if key not in _SERVER_OWNED}
    return {**retained, "metadata": meta} if meta else retained


def parse_entries(obj: Mapping[str, Any]) -> list[ManagedFieldsEntry]:
    """The entries as stored."""
    found = obj.get("metadata", {}).get("managedFields") or ()
    return [
        ManagedFieldsEntry(
            FieldWriter(
                manager=each.get("manager", ""),
                operation=each.get("operation", "Update"),
                api_version=each.get("apiVersion", ""),
                subresource=each.get("subresource", ""),
            ),
            each.get("time", ""),
            {} if not each.get("fieldsV1") else expand(each["fieldsV1"]),
        )
        for each in found
    ]


def owners_before_apply(live: Mapping[str, Any], topology: MergeTopology, now: str) -> list[ManagedFieldsEntry]:
    """The entries of a stored object that an apply starts from: without any, all its fields have one owner."""
    entries = parse_entries(live)
    if entries or not live.get("metadata", {}).get("uid"):
        return entries
    writer = FieldWriter(manager="before-first-apply", operation="Update", api_version=str(live.get("apiVersion", "")))
    return [ManagedFieldsEntry(writer, now, changed_fields({}, remove_system_fields(live), topology)[0])]


def store_entries(obj: Obj, entries: Sequence[ManagedFieldsEntry]) -> None:
    """Sets the object's managedFields, appliers first, as Kubernetes sorts them."""
    retained = sorted((e for e in entries if e.fields), key=lambda e: (e.writer.operation, e.time, e.writer.manager))
    if retained:
        obj["metadata"]["managedFields"] = [_encode_entry(each) for each in retained]
    else:
        obj["metadata"].pop("managedFields", None)


def _encode_entry(entry: ManagedFieldsEntry) -> Obj:
    return _encode(entry.writer, entry.time, compact(entry.fields))


def _encode(writer: FieldWriter, time: str, stored: Fields) -> Obj:
    shown = {
        "manager": writer.manager,
        "operation": writer.operation,
        "apiVersion": writer.api_version,
        "time": time,
        "fieldsType": "FieldsV1",
        "fieldsV1": stored,
    }
    return {**shown, "subresource": writer.subresource} if writer.subresource else shown


def update_managed_fields(
    obj: Obj, old: Mapping[str, Any] | None, writer: FieldWriter, topology: MergeTopology, now: str
) -> None:
    """Sets managedFields after an Update from ``old`` (None: a create) to ``obj``.

    An object whose entries were taken away has no owners until the next apply (``skipnonapplied.go``).
    Entries stay in their stored form, so that a set that does not change is neither read nor built again. A client that
    writes the object may also write its entries, as kubectl does when it changes to server-side apply.
    """
    before = _entries_after_update(obj, old, writer) if old else ()
    if old and not before:
        obj["metadata"].pop("managedFields", None)
        return
    changed, removed = changed_fields(remove_system_fields(old) if old else {}, remove_system_fields(obj), topology)
    if not changed and not removed:
        _set_entries(obj, before)
        return
    after: list[Obj] = []
    own: Fields | None = None
    for each in before:
        fields = each.get("fieldsV1")
        if not fields:
            continue
        if _is_update_by(each, writer):
            own = fields
            continue
        remaining = remove_from_stored(fields, changed, removed)
        if remaining:
            after.append(each if remaining is fields else {**each, "fieldsV1": remaining})
    owned = add_to_stored(remove_from_stored(own, removed) or {}, changed) if own else compact(changed)
    if owned:
        after.append(_encode(writer, now, owned))
    if after:
        after.sort(key=lambda each: (each.get("operation", "Update"), each.get("time", ""), each.get("manager", "")))
        obj["metadata"]["managedFields"] = after
    else:
        obj["metadata"].pop("managedFields", None)


def _is_update_by(entry: Mapping[str, Any], writer: FieldWriter) -> bool:
    stated = (entry.get("manager", ""), entry.get("operation", "Update"))
    about = (entry.get("apiVersion", ""), entry.get("subresource", ""))
    return stated == (writer.manager, writer.operation) and about == (writer.api_version, writer.subresource)


def _entries_after_update(obj: Mapping[str, Any], old: Mapping[str, Any], writer: FieldWriter) -> Sequence[Obj]:
    """Returns the entries that an Update starts from: those in its object, else the stored ones.

    One empty entry means no entries. Source: ``k8s.io/apimachinery/pkg/util/managedfields``, ``decodeLiveOrNew``.
    """
    stored: Sequence[Obj] = old["metadata"].get("managedFields") or ()
    stated = obj["metadata"].get("managedFields")
    if writer.subresource or not isinstance(stated, list) or not stated or stated is stored:
        return stored
    if stated == [{}]:
        return ()
    return (
        stated if all(isinstance(each, dict) and isinstance(each.get("fieldsV1"), dict) for each in stated) else stored
    )


def _set_entries(obj: Obj, entries: Sequence[Obj]) -> None:
    if entries:
        obj["metadata"]["managedFields"] = entries
    else:
        obj["metadata"].pop("managedFields", None)
