"""The fields of a Node that Tessera's processes have set, and the patches that remove them.

The API server records the owner of each field (``metadata.managedFields``), and each of Tessera's processes writes
under names of its own. So there is no list of labels to keep up to date, and a label that somebody else set under the
same name stays. Fields that another owner holds as well stay too.

The memory quota is an amount that the agent patched. The amounts of devices are kubelet's: it shows 0 of a resource
whose plugin has ended, and would write that 0 again (docs/decisions/node-status.md), so they stay.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import msgspec

from tessera.api.names import QUOTA_RESOURCE

Json = Mapping[str, Any]

#: Beginning of the names of Tessera's field managers (:class:`tessera.kube.client.client.Client`).
OURS = "tessera-"
#: Beginning of the keys of taints that only Tessera removes.
_TAINT = "tessera.dev/"


class NodeFields(msgspec.Struct, frozen=True, kw_only=True):
    """Fields of one Node.

    Attributes:
        labels: keys of labels.
        annotations: keys of annotations.
        conditions: types of conditions.
        taints: keys of taints.
        quota: true if the memory quota is in capacity or allocatable.
        cordoned: true if Tessera cordoned the node.
    """

    labels: tuple[str, ...] = ()
    annotations: tuple[str, ...] = ()
    conditions: tuple[str, ...] = ()
    taints: tuple[str, ...] = ()
    quota: bool = False
    cordoned: bool = False


def our_fields(node: Json) -> NodeFields:
    """The fields of a Node that Tessera set and that are still there."""
    ours, others = _Owned(), _Owned()
    metadata, spec, status = node["metadata"], node.get("spec") or {}, node.get("status") or {}
    for entry in metadata.get("managedFields") or ():
        (ours if str(entry.get("manager", "")).startswith(OURS) else others).add(entry.get("fieldsV1") or {})
    return NodeFields(
        labels=_present(ours.labels - others.labels, metadata.get("labels") or {}),
        annotations=_present(ours.annotations - others.annotations, metadata.get("annotations") or {}),
        conditions=_present(
            ours.conditions - others.conditions, {each["type"]: each for each in status.get("conditions") or ()}
        ),
        taints=tuple(sorted({each["key"] for each in spec.get("taints") or () if each["key"].startswith(_TAINT)})),
        quota=any(QUOTA_RESOURCE in (status.get(each) or {}) for each in ("capacity", "allocatable")),
        cordoned=ours.cordon and not others.cordon and bool(spec.get("unschedulable")),
    )


def metadata_patch(node: Json, fields: NodeFields, keep: Collection[str] = ()) -> dict[str, Any]:
    """The merge patch of the Node itself; empty if there is nothing to remove there.

    Args:
        node: the Node.
        fields: our fields of it.
        keep: keys of labels that stay.
    """
    patch: dict[str, Any] = {}
    gone = {"labels": [each for each in fields.labels if each not in keep], "annotations": fields.annotations}
    if metadata := {field: _without(node["metadata"][field], keys) for field, keys in gone.items() if keys}:
        patch["metadata"] = metadata
    spec: dict[str, Any] = {}
    if fields.taints:
        kept = [each for each in node["spec"].get("taints") or () if each["key"] not in fields.taints]
        spec["taints"] = kept or None
    if fields.cordoned:
        spec["unschedulable"] = None
    if spec:
        patch["spec"] = spec
    return patch


def _without(shown: Mapping[str, str], keys: Collection[str]) -> dict[str, None] | None:
    """The patch of a map; ``None`` if all of it goes, so that nobody owns an empty map."""
    return dict.fromkeys(keys) if shown.keys() - set(keys) else None


def status_patch(node: Json, fields: NodeFields) -> dict[str, Any]:
    """The merge patch of the Node's status; empty if there is nothing to remove there."""
    status: dict[str, Any] = {}
    if fields.conditions:
        status["conditions"] = [
            each for each in node["status"].get("conditions") or () if each["type"] not in fields.conditions
        ]
    if fields.quota:
        status |= {"capacity": {QUOTA_RESOURCE: None}, "allocatable": {QUOTA_RESOURCE: None}}
    return {"status": status} if status else {}


def _present(keys: set[str], shown: Mapping[str, object]) -> tuple[str, ...]:
    return tuple(sorted(keys & shown.keys()))


class _Owned:
    """The fields of some owners."""

    def __init__(self) -> None:
        self.labels: set[str] = set()
        self.annotations: set[str] = set()
        self.conditions: set[str] = set()
        self.cordon = False

    def add(self, fields: Json) -> None:
        metadata, spec, status = (_part(fields, f"f:{name}") for name in ("metadata", "spec", "status"))
        self.labels |= _names(_part(metadata, "f:labels"))
        self.annotations |= _names(_part(metadata, "f:annotations"))
        self.conditions |= set(_condition_types(_part(status, "f:conditions")))
        self.cordon |= "f:unschedulable" in spec


def _part(fields: Json, name: str) -> Json:
    found = fields.get(name)
    return found if isinstance(found, Mapping) else {}


def _names(fields: Json) -> set[str]:
    return {name.removeprefix("f:") for name in fields if name.startswith("f:")}


def _condition_types(fields: Json) -> Sequence[str]:
    found: list[str] = []
    for name in fields:
        if name.startswith("k:"):
            try:
                key = msgspec.json.decode(name.removeprefix("k:"), type=dict[str, str])
            except msgspec.DecodeError:
                continue
            found.append(key.get("type", ""))
    return found
