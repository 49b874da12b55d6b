"""Columns of ``resource.k8s.io``."""

from collections.abc import Mapping, Sequence
from typing import Any

from tessera_lab.apiserver.tables.core_columns import age_of, name_of

Part = Mapping[str, Any]
_GROUP = "resource.k8s.io"


def _named(obj: Part, now: float) -> Sequence[Any]:
    return [name_of(obj), age_of(obj, now)]


def _claim(obj: Part, now: float) -> Sequence[Any]:
    status, deleted = obj.get("status") or {}, bool(obj["metadata"].get("deletionTimestamp"))
    allocated = status.get("allocation") is not None
    states = ["deleted"] if deleted else [] if allocated else ["pending"]
    states += ["allocated"] if allocated else []
    states += ["reserved"] if allocated and status.get("reservedFor") else []
    return [name_of(obj), ",".join(states), age_of(obj, now)]


def _slice(obj: Part, now: float) -> Sequence[Any]:
    spec = obj.get("spec") or {}
    pool = (spec.get("pool") or {}).get("name", "")
    return [name_of(obj), spec.get("nodeName") or "<unset>", spec.get("driver", ""), pool, age_of(obj, now)]


COLUMNS: Mapping[tuple[str, str], tuple[tuple[str, ...], Any]] = {
    (_GROUP, "DeviceClass"): (("Name", "Age"), _named),
    (_GROUP, "ResourceClaim"): (("Name", "State", "Age"), _claim),
    (_GROUP, "ResourceClaimTemplate"): (("Name", "Age"), _named),
    (_GROUP, "ResourceSlice"): (("Name", "Node", "Driver", "Pool", "Age"), _slice),
}
