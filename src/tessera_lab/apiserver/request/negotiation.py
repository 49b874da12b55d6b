"""The format of an answer, by the ``Accept`` header: JSON, a Table, or objects reduced to their metadata.

Pure. A representation turns stored objects into bytes; it joins a list from the encodings that stored objects cache.
"""

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

import msgspec

from tessera_lab.apiserver.interfaces import Obj
from tessera_lab.apiserver.resource_types import ResourceType
from tessera_lab.apiserver.status import not_acceptable_error
from tessera_lab.apiserver.storage.store import StoredObject

JSON = "application/json"
YAML = "application/yaml"
#: Content types and kinds that the server can answer with.
ACCEPTED = (JSON, YAML)

_ENCODE = msgspec.json.Encoder().encode


class AcceptedFormat(msgspec.Struct, frozen=True, kw_only=True):
    """One clause of an ``Accept`` header that the server can satisfy.

    Attributes:
        as_kind: ``Table``, ``PartialObjectMetadata``, ``PartialObjectMetadataList`` or empty.
    """

    media: str = JSON
    as_kind: str = ""


def parse_accept(header: str) -> AcceptedFormat:
    """Returns the first clause of the header that the server can satisfy.

    Raises:
        StatusError: 406, there is none.
    """
    for clause in (header or "*/*").split(","):
        media, *raw = (part.strip() for part in clause.split(";"))
        params = dict(part.split("=", 1) for part in raw if "=" in part)
        if media in {"*/*", "application/*"}:
            media = JSON
        if media not in ACCEPTED:
            continue
        kind = params.get("as", "")
        if not kind:
            return AcceptedFormat(media=media)
        if params.get("g") == "meta.k8s.io" and params.get("v") == "v1" and kind in _AS:
            return AcceptedFormat(media=media, as_kind=kind)
    raise not_acceptable_error(ACCEPTED)


_AS = frozenset({"Table", "PartialObjectMetadata", "PartialObjectMetadataList"})


def encode_in_version(resource: ResourceType, stored: StoredObject) -> bytes:
    """The object's JSON in the resource's version."""
    if stored.obj.get("apiVersion") == resource.api_version:
        return stored.form("", _identity)
    return stored.form(resource.api_version, lambda obj: to_version(resource, obj))


def _identity(obj: Obj) -> Obj:
    return obj


def to_version(resource: ResourceType, obj: Mapping[str, Any]) -> Obj:
    """The object in the resource's version; shares parts with the given one."""
    shown = resource.from_storage(dict(obj))
    return {**shown, "apiVersion": resource.api_version, "kind": resource.kind}


def partial_metadata(obj: Mapping[str, Any]) -> Obj:
    """PartialObjectMetadata of an object."""
    return {"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": obj["metadata"]}


class ResponseForm:
    """One representation of one resource's objects, for single answers, lists and watches.

    Args:
        now: seconds since 1970; the time for ages in tables.
        include: ``includeObject`` of a Table: ``Metadata``, ``Object`` or ``None``.
    """

    def __init__(
        self, resource: ResourceType, desired: AcceptedFormat, now: Callable[[], float], include: str = ""
    ) -> None:
        self._resource = resource
        self._kind = desired.as_kind.removesuffix("List")
        self._now = now
        self._include = include or "Metadata"
        self._headed = False

    @property
    def key(self) -> Hashable:
        """Identifies the representation: equal keys mean equal bytes. Tables share none, as their rows have ages."""
        return (self._resource.api_version, self._kind) if self._kind != "Table" else object()

    def one(self, stored: StoredObject) -> bytes:
        """A single object."""
        match self._kind:
            case "Table":
                return _ENCODE(self._table([stored], {"resourceVersion": str(stored.rv)}))
            case "PartialObjectMetadata":
                return stored.form("meta", partial_metadata)
            case _:
                return encode_in_version(self._resource, stored)

    def many(self, stored: Sequence[StoredObject], meta: Mapping[str, Any]) -> bytes:
        """A list; ``meta`` is its ListMeta."""
        if self._kind == "Table":
            return _ENCODE(self._table(stored, meta))
        kind, version = self._resource.list_kind, self._resource.api_version
        if self._kind:
            kind, version = "PartialObjectMetadataList", "meta.k8s.io/v1"
        head = _ENCODE({"kind": kind, "apiVersion": version, "metadata": meta})
        return b'%s,"items":[%s]}' % (head[:-1], b",".join(self.one(each) for each in stored))

    def frame(self, event: str, stored: StoredObject) -> bytes:
        """One line of a watch."""
        return b'{"type":"%s","object":%s}\n' % (event.encode(), self.one(stored))

    def bookmark(self, rv: int, ends_initial: bool) -> bytes:
        """A bookmark's line."""
        meta: Obj = {"resourceVersion": str(rv), "creationTimestamp": None}
        if ends_initial:
            meta["annotations"] = {"k8s.io/initial-events-end": "true"}
        obj: Obj = {"kind": self._resource.kind, "apiVersion": self._resource.api_version, "metadata": meta}
        if self._kind == "Table":
            obj = {"kind": "Table", "apiVersion": "meta.k8s.io/v1", "metadata": {"resourceVersion": str(rv)}}
            obj |= {"columnDefinitions": None, "rows": [{"cells": [], "object": partial_metadata({"metadata": meta})}]}
        elif self._kind:
            obj = partial_metadata(obj)
        return _ENCODE({"type": "BOOKMARK", "object": obj}) + b"\n"

    def _table(self, stored: Sequence[StoredObject], meta: Mapping[str, Any]) -> Obj:
        columns = self._resource.columns
        assert columns is not None
        headers = None if self._headed else columns.definitions()
        self._headed = True
        now = self._now()
        return {
            "kind": "Table",
            "apiVersion": "meta.k8s.io/v1",
            "metadata": meta,
            "columnDefinitions": headers,
            "rows": [self._row(columns.cells(self._convert(each), now), each) for each in stored],
        }

    def _convert(self, stored: StoredObject) -> Mapping[str, Any]:
        same = stored.obj.get("apiVersion") == self._resource.api_version
        return stored.obj if same else to_version(self._resource, stored.obj)

    def _row(self, cells: Sequence[Any], stored: StoredObject) -> Obj:
        if self._include == "None":
            return {"cells": cells}
        if self._include == "Object":
            return {"cells": cells, "object": self._convert(stored)}
        return {"cells": cells, "object": partial_metadata(stored.obj)}
